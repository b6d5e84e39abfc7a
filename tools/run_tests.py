"""Run the tests, tier by tier: `make check`, `make test` and `make test-full`.

    run_tests.py [--tier NAME ...] [--list]
    run_tests.py --full [--shard N]

The last line is `N passed, N failed, N skipped` over all tiers; exit status 1 on any failure. With CI set, a skipped
test and a tier that cannot run here fail the run. A check that is no test (lint, docs, a proof) counts as one.

Without `--full`, tests with the mark `full` are left out. With it, all tests, proofs and releases of Slurm run, in
shards; `--shard list` names them. Their results are stored in build/full, by commit, and what has passed there is not
run again: a shard that was interrupted, or in which something failed, can be resumed.
"""

# ruff: noqa: T201 - this is a command line program
from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from tests.cluster.rig.builder import WITHOUT_PYSLURM
from tools.checks import DOCS, LINT, QUICKSTART, proof, run_checks
from tools.packages import install_packages
from tools.processes import REPORTS, ROOT, compile_sources, end_on_sigterm, prefer_interpreter, say
from tools.pytest_runs import run_shares
from tools.tally import Tally, refuse

FULL_REPORTS = ROOT / "build" / "full"
# The clusters that are up at once; the first is the one that `make cluster-up` starts, and is used if it is up.
CLUSTERS = ("ffdl", "ffdl2")


class Lane(Enum):
    """Tiers of one lane run one after the other, and lanes beside each other: much of what they do is waiting."""

    CHECKS = "checks"
    """What is no test, and the tests of site mode, which end much earlier than the other lanes."""
    HOST = "host"
    """Daemons that are killed at every step."""
    DAEMONS = "daemons"
    """Daemons and controllers that wait for each other most of the time."""
    FAULTS = "faults"
    """Those that wait for something that does not answer, and the tests of networks."""
    CLUSTER = "cluster"
    """What needs root on Debian: the test clusters, of which a machine can hold two, and an older Debian."""
    UNIT = "unit"
    """Tests that do not wait."""


@dataclass(frozen=True)
class Run:
    """One run of this program."""

    full: bool
    results: Path


@dataclass(frozen=True)
class Tier:
    """A part of the tests."""

    name: str
    lane: Lane
    run: Callable[[Run], Tally]
    needs_root: bool = False
    """Whether it needs root on Debian."""


@dataclass(frozen=True)
class Done:
    """What came of one tier."""

    name: str
    seconds: float
    tally: Tally


def main() -> int:
    """Run the chosen tiers, or all; print times and the closing line."""
    options = _parser().parse_args()
    end_on_sigterm()
    if options.list:
        print("\n".join(tier.name for tier in TIERS))
        return 0
    if options.shard == "list":
        print("\n".join(f"{name}  {', '.join(tier.name for tier in tiers)}" for name, tiers in SHARDS.items()))
        return 0
    if not options.full:
        chosen = [tier for tier in TIERS if not options.tier or tier.name in options.tier]
        shutil.rmtree(REPORTS, ignore_errors=True)
        return run_all([chosen], Run(full=False, results=REPORTS))
    shards = [SHARDS[options.shard]] if options.shard else list(SHARDS.values())
    return run_all(shards, Run(full=True, results=FULL_REPORTS / commit()))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Run the tests, tier by tier.")
    parser.add_argument("--tier", action="append", choices=[tier.name for tier in TIERS], help="run only this tier")
    parser.add_argument("--list", action="store_true", help="print the names of the tiers")
    parser.add_argument("--full", action="store_true", help="run everything, in shards")
    parser.add_argument("--shard", choices=["list", *SHARDS], help="with --full: run only this shard, or list them")
    return parser


def commit() -> str:
    """The commit that is checked out; with the hash of the tree behind it if files differ from it."""

    def git(*arguments: str, **env: str) -> str:
        argv = ["git", *arguments]
        done = subprocess.run(argv, cwd=ROOT, env={**os.environ, **env}, check=True, stdout=subprocess.PIPE, text=True)
        return done.stdout.strip()

    with tempfile.TemporaryDirectory() as place:
        index = {"GIT_INDEX_FILE": str(Path(place, "index"))}
        git("read-tree", "HEAD", **index)
        git("add", "--all", **index)
        tree = git("write-tree", **index)
    clean = tree == git("rev-parse", "HEAD^{tree}")
    return git("rev-parse", "--short=12", "HEAD") + ("" if clean else f"-{tree[:12]}")


def run_all(shards: list[list[Tier]], run: Run) -> int:
    """Run groups of tiers, one group after the other; exit status."""
    run.results.mkdir(parents=True, exist_ok=True)
    if not run.full:
        os.environ.setdefault(WITHOUT_PYSLURM, "1")
    total = Tally()
    if any(tier.name != "lint" for tiers in shards for tier in tiers):
        total.add(install_packages())
        prefer_interpreter()
        compile_sources()
    for tiers in shards:
        for one in run_lanes(tiers, run):
            total.add(one.tally)
            print(f"{one.name:10} {one.seconds:6.0f} s {one.tally.cpu_s:6.0f} s of CPU  {one.tally}")
    for trouble in total.troubles:
        print(f"note: {trouble}")
    print(total, flush=True)
    return 1 if total.failed else 0


def run_lanes(tiers: list[Tier], run: Run) -> list[Done]:
    """Run the tiers, lane beside lane; an interrupt stops each lane after the tier that it is in."""
    lanes = [found for lane in Lane if (found := [tier for tier in tiers if tier.lane is lane])]
    stop = threading.Event()
    with ThreadPoolExecutor(max(1, len(lanes))) as pool:
        running = [pool.submit(run_lane, lane, run, stop) for lane in lanes]
        try:
            return [one for lane in running for one in lane.result()]
        finally:
            stop.set()


def run_lane(tiers: list[Tier], run: Run, stop: threading.Event) -> list[Done]:
    """Run the tiers in order."""
    done = []
    for tier in tiers:
        if stop.is_set():
            break
        say(f"tier {tier.name}")
        started = time.monotonic()
        reason = missing_for_root() if tier.needs_root else ""
        tally = refuse(f"tier {tier.name} did not run: {reason}") if reason else tier.run(run)
        done.append(Done(tier.name, time.monotonic() - started, tally))
        say(f"tier {tier.name}: {tally}")
    return done


def prepare_cluster(run: Run) -> Tally:
    """Build what the cluster needs, if no run before has. The tests try again what cannot be built, and report it."""
    with (run.results / "prepare.log").open("w+", encoding="utf-8", errors="replace") as log:
        argv = [sys.executable, "-m", "tests.cluster.prepare", *(["--full"] if run.full else [])]
        status = subprocess.call(argv, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        log.seek(0)
        if status != 0:
            say(f"preparing ended with exit status {status}: {(log.read().strip().splitlines() or ['?'])[-1]}")
    return Tally()


def missing_for_root() -> str:
    """Why this machine cannot build and run Debian systems, "" if it can."""
    if os.geteuid() != 0:
        return "the test cluster needs root (namespaces, device nodes, cgroups); run `sudo make test`"
    if shutil.which("apt-get") is None:
        return "the test cluster is built from Debian packages and this machine has no apt-get"
    return ""


def pytest_tier(
    name: str,
    lane: Lane,
    *paths: str,
    runs: int = 1,
    starts: tuple[tuple[str, ...], ...] = ((),),
    needs_root: bool = False,
) -> Tier:
    """A tier of pytest, as `runs` processes for each command of `starts`."""

    def run(of: Run) -> Tally:
        options = [] if of.full else ["-m", "not full"]
        return run_shares(name, *paths, starts=starts, runs=runs, results=of.results, options=options)

    return Tier(name, lane, run, needs_root)


def proof_tier(name: str, *arguments: str, lane: Lane = Lane.CLUSTER) -> Tier:
    """Run a proof of the Makefile, once for each commit. The proofs of the cluster's lane need root."""

    label = "-".join(("proof", name, *(word.strip("-") for word in arguments)))

    def run(of: Run) -> Tally:
        return run_checks(proof(name, *arguments), passed=of.results / f"{label}.passed")

    return Tier(label, lane, run, needs_root=lane is Lane.CLUSTER)


def conformance_tier(suite: str) -> Tier:
    """What the project relies on, against the Slurm of one Debian release."""
    starts = (("env", f"FFDL_TEST_SUITE={suite}"),)
    return pytest_tier(f"conformance-{suite}", Lane.CLUSTER, "tests/conformance", starts=starts, needs_root=True)


LINT_TIER = Tier("lint", Lane.CHECKS, lambda _: run_checks(*LINT))
QUICKSTART_TIER = Tier("quickstart", Lane.CHECKS, lambda _: run_checks(*QUICKSTART))
DOCS_TIER = Tier("docs", Lane.CHECKS, lambda _: run_checks(*DOCS))
CRASH = pytest_tier("crash", Lane.HOST, "tests/crash")
OVERLAY = pytest_tier("overlay", Lane.FAULTS, "tests/overlay")
CONTRACT = pytest_tier("contract", Lane.DAEMONS, "tests/contract", runs=3)
FAULTS = pytest_tier("faults", Lane.FAULTS, "tests/faults", runs=3)
PREPARE = Tier("prepare", Lane.CLUSTER, prepare_cluster, needs_root=True)
CLUSTER = pytest_tier(
    "cluster",
    Lane.CLUSTER,
    "tests/cluster",
    starts=tuple(("env", f"FFDL_TEST_CLUSTER={one}") for one in CLUSTERS),
    needs_root=True,
)
SITE = pytest_tier("site", Lane.CHECKS, "tests/site", needs_root=True)
PYTHON39 = pytest_tier("python39", Lane.CLUSTER, "tests/python39", needs_root=True)
PACKAGES = pytest_tier("packages", Lane.CLUSTER, "tests/packages", needs_root=True)
"""Not a tier of `make test`: it builds the packages, for minutes."""
UNIT = pytest_tier("unit", Lane.UNIT, "tests/unit", "tests/golden", runs=2)
TIERS = (
    SITE,
    LINT_TIER,
    QUICKSTART_TIER,
    DOCS_TIER,
    CRASH,
    CONTRACT,
    FAULTS,
    OVERLAY,
    PREPARE,
    CLUSTER,
    PYTHON39,
    UNIT,
)
SHARDS = {
    "1": [LINT_TIER, QUICKSTART_TIER, DOCS_TIER, UNIT, CONTRACT, proof_tier("api", lane=Lane.DAEMONS)],
    "2": [CRASH, OVERLAY, SITE, PYTHON39, PACKAGES, FAULTS],
    "3": [PREPARE, CLUSTER],
    "4": [
        PREPARE,
        *(proof_tier(name) for name in ("main", "resume", "isolation", "data", "convert", "faults", "site", "elastic")),
        proof_tier("site", "--kills", "60"),
    ],
    "5": [PREPARE, proof_tier("crash")],
    "6": [conformance_tier(suite) for suite in ("bullseye", "bookworm")],
    "7": [conformance_tier(suite) for suite in ("trixie", "sid")],
}
"""The parts of a full run, each at most 80 minutes on two cores."""

if __name__ == "__main__":
    sys.exit(main())
