# Every target works from a clean clone. `make help` lists them.

PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
# Learner images that `make images` builds, where they go, and with what.
IMAGES ?= custom pytorch
OUT ?= build/images
APPTAINER ?= apptainer
# Passed on to the tools: `make test TESTS="--tier unit"`, `make bench BENCH="submit"`.
TESTS ?=
SHARD ?=
MUTATE ?=
PROOF ?=
BENCH ?=
CLUSTER ?=
CONFORMANCE ?=
# The Debian release whose Slurm `make conformance` uses.
SUITE ?= sid

MAKE_VENV = $(PYTHON) tools/make_venv.py --venv $(VENV) --extras examples,test,lint,docs
# What builds the package is locked too, for pip's --no-build-isolation.
LOCKED_EXTRAS = functions tui postgres tensorboard s3 gcs http swift fsspec sftp ssh plots parquet debug kubernetes oidc elastic
LOCK = printf '%s\n' 'hatchling>=1.27' 'editables>=0.5' | uv pip compile - pyproject.toml --quiet --universal \
	--python-version 3.11 --generate-hashes --no-annotate --custom-compile-command 'make lock' \
	--constraint constraints.txt

.PHONY: help python venv venv-run quickstart check lint test test-full shape mutate lock docs packages images \
	cluster-up cluster-down conformance proof-main proof-resume proof-crash proof-isolation proof-data \
	proof-kubernetes proof-convert proof-faults proof-site proof-elastic fuzz-api trial-kubernetes bench bench-compare clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' Makefile

python:
	@command -v $(PYTHON) >/dev/null 2>&1 || { \
		echo "make: $(PYTHON) is not on the PATH; install Python 3.11 or newer, or: make PYTHON=/path/to/python3" >&2; \
		exit 1; }

venv: python ## .venv with everything that development needs
	@$(MAKE_VENV)

venv-run: python
	@$(PYTHON) tools/make_venv.py --venv $(VENV) --extras examples

quickstart: venv-run ## train the digits example on this machine: no service, no configuration, no root
	@$(BIN)/python tools/quickstart.py

check: venv ## format, lint, types, import layers, unit tests: before every commit
	@$(BIN)/python -m tools.run_tests --tier lint --tier unit

lint: venv
	@$(BIN)/python -m tools.run_tests --tier lint

test: python ## what CI runs, with a real Slurm cluster (that part needs root on Debian)
	@$(PYTHON) -m tools.packages & $(MAKE_VENV) && wait && $(BIN)/python -m tools.run_tests $(TESTS)

test-full: venv ## all tests, proofs and releases of Slurm, for hours: SHARD=1, or SHARD=list; can be resumed
	@$(BIN)/python -m tools.run_tests --full $(if $(SHARD),--shard $(SHARD))

shape: venv ## figures of the production code: files, lines, importers, docstrings, listed words; tests by tier
	@$(BIN)/python -m tools.shape

mutate: venv ## plant 60 small faults and count those that the tests find: MUTATE="--tests REVISION", for hours
	@$(BIN)/python -m tools.mutate $(MUTATE)

lock: ## requirements*.txt: versions and hashes for installation; needs uv (docs.astral.sh/uv)
	@$(LOCK) --output-file requirements.txt
	@$(LOCK) $(addprefix --extra ,$(LOCKED_EXTRAS)) --output-file requirements-extras.txt

docs: venv ## the site (docs/_build/html) and the man pages (docs/_build/man); warnings are errors
	@$(BIN)/python -m sphinx -q -W --keep-going -b html -d docs/_build/doctrees-html docs docs/_build/html
	@$(BIN)/python -m sphinx -q -W --keep-going -b man -d docs/_build/doctrees-man docs docs/_build/man
	@echo "docs/_build/html/index.html docs/_build/man/ffdl.1 docs/_build/man/ffdl-submit.1 docs/_build/man/ffdl-admin.1"

packages: python ## dist/: source archive, wheel, Debian package, RPM (on Debian; installs rpm and python3-venv as root)
	@$(MAKE_VENV) && $(BIN)/python -m tools.make_packages

images: python ## learner images: IMAGES="custom pytorch" OUT=build/images (needs root on Debian)
	@if command -v $(APPTAINER) >/dev/null 2>&1; \
		then $(PYTHON) containers/build.py --apptainer $(APPTAINER) --out $(OUT) $(IMAGES); \
		else $(PYTHON) -m tests.cluster.images --out $(OUT) $(IMAGES); fi

cluster-up: venv ## start the test cluster: real Slurm and Apptainer on this machine (needs root on Debian)
	@$(BIN)/python -m tests.cluster.rig up $(CLUSTER)

cluster-down: venv ## stop the test cluster
	@$(BIN)/python -m tests.cluster.rig down $(CLUSTER)

conformance: venv ## what we rely on, against a real Slurm: SUITE=bullseye (20.11), bookworm (22.05), trixie (24.11), sid
	@FFDL_TEST_SUITE=$(SUITE) $(BIN)/python -m pytest -q tests/conformance $(CONFORMANCE)

proof-main: venv ## 20 jobs of two users at once through both gateways on the real cluster, every result recomputed
	@$(BIN)/python -m tests.proof.main $(PROOF)

proof-resume: venv ## a training through preemption, a power cut and a time limit: the same weights, bit for bit
	@$(BIN)/python -m tests.proof.resume $(PROOF)

proof-crash: venv ## daemons killed at every step under a stream of work, KILLS=2000 times and 200 times with real Slurm
	@$(BIN)/python -m tests.proof.crash $(PROOF)

proof-isolation: venv ## what a learner can reach at each network level, and of other jobs on its node, with controls
	@$(BIN)/python -m tests.proof.isolation $(PROOF)

proof-data: venv ## data in through faults, results out, a cache, secrets and metrics: every byte compared
	@$(BIN)/python -m tests.proof.data $(PROOF)

proof-kubernetes: venv ## jobs, refusals and ends on the cluster that KUBECONFIG names, in a namespace of its own
	@$(BIN)/python -m tests.proof.kubernetes $(PROOF)

proof-convert: venv ## a corpus of sbatch scripts, converted and written again: what both start, argv and environment
	@$(BIN)/python -m tests.proof.convert $(PROOF)

proof-faults: venv ## faults of 15 kinds planted among 20 healthy jobs on the real cluster: precision and recall by kind
	@$(BIN)/python -m tests.proof.faults $(PROOF)

proof-site: venv ## site mode: three users, two login nodes, programs killed: results, lists, audit; PROOF="--kills 60"
	@$(BIN)/python -m tests.proof.site $(PROOF)

proof-elastic: venv ## elastic jobs on the real cluster, with kills: compare with fixed sizes and the papers
	@$(BIN)/python -m tests.proof.elastic $(PROOF)

fuzz-api: venv ## 6000 requests from the OpenAPI document to a real daemon on both databases; any server error fails
	@$(BIN)/python -m tests.proof.api $(PROOF)

trial-kubernetes: venv ## a cluster of the tests' to try jobs on; prints the variables for another shell, Ctrl-C ends it
	@$(BIN)/python -m tests.fakes.kubernetes.trial $(TRIAL)

bench: venv ## benchmarks beside the plain tools, measured in the same run
	@$(BIN)/python -m tests.benchmarks $(BENCH)

bench-compare: venv ## this tree and BASE=REV alternately: ratios with their spread; BENCH="submit many --turns 3"
	@$(BIN)/python -m tests.benchmarks.compare --base "$(BASE)" $(BENCH)

clean: ## remove what the build made here (.venv and the example's data stay)
	rm -rf build dist docs/_build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find ffdl_batch adapters tests tools docs containers -name __pycache__ -type d -prune -exec rm -rf {} +
