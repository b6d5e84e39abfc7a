"""From the allocation of nodes to the first instruction of every learner, on two nodes: plain jobs and ours, with a
network of their own and without, in turns."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence

from ffdl_batch.domain.outcome.controller_events import Event, EventKind, decode_events
from tests.benchmarks.allocations import allocations, told
from tests.benchmarks.bench import PLAIN_NAME, Bench
from tests.benchmarks.figures import Figure
from tests.cluster.rig.topology import CPUS

Moments = Mapping[str, float]
"""What happened when, in seconds since the epoch; for `PROLOG` how long it took, in seconds."""
ALLOCATION = "allocation"
SCRIPT, PROLOG = "batch script", "the prolog's own time"
HEAD, READY, FIRST = "head controller", "all nodes ready", "last learner's first instruction"
_IMAGE = "/shared/images/custom.sif"
_JOB = """\
#!/bin/sh
#SBATCH --nodes=2 --mem=1000 --time=10 --output=/dev/null
date +%s.%N >"$1/script"
sed -n '$s/ ms.*//p' /run/ffdl/job-$SLURM_JOB_ID/prolog.log >"$1/prolog" 2>/dev/null
srun sh -eu "$1/task.sh" "$2" >"$1/containers"
"""
_TASK = f"""\
joined=
[ "$1" = bare ] || joined="--netns-path $(sed -n s/^netns=//p /run/ffdl/job-$SLURM_JOB_ID/network)"
exec apptainer -q exec --containall --no-home --pwd / $joined {_IMAGE} date +%s.%N
"""
_MANIFEST = """\
name: begin
cpus: {cpus}
gpus: 0
memory: 128MiB
learners: {learners}
framework:
  name: custom
  version: python-numpy
  command: date +%s.%N >"$RESULT_DIR/began-$LEARNER_ID"
batch:
  time: 10m
  placement: pack
"""


def measure_beginning(bench: Bench) -> list[Figure]:
    """All figures, for each number of learners."""
    base = bench.desk.base
    bench.desk.write({f"{base}/begin/job.sh": _JOB, f"{base}/begin/task.sh": _TASK})
    for learners in bench.knobs.gangs:
        text = _MANIFEST.format(learners=learners, cpus=max(1, 2 * CPUS // learners))
        bench.desk.write({f"{base}/begin/{learners}.yml": text})
    with told(bench.cluster):
        return [figure for learners in bench.knobs.gangs for figure in _measure(bench, learners)]


def _measure(bench: Bench, learners: int) -> list[Figure]:
    ways: Mapping[str, Callable[[], Moments]] = {
        "sbatch": lambda: _begin_plain(bench, learners, ""),
        "sbatch, overlay": lambda: _begin_plain(bench, learners, f"ffdl-batch:job/{-(-learners // 2)}"),
        "ffdl, host": lambda: _begin_ours(bench, learners, "host"),
        "ffdl, job": lambda: _begin_ours(bench, learners, "job"),
    }
    runs: dict[str, list[Moments]] = {who: [] for who in ways}
    for number in range(1 + bench.knobs.rounds):
        for who, begin in ways.items():
            moments = begin()
            if number:  # the first one brings the image into memory
                runs[who].append(moments)
    return figures_of(learners, runs)


def figures_of(learners: int, runs: Mapping[str, Sequence[Moments]]) -> list[Figure]:
    """How long the prolog took, and what came how long after the allocation."""
    figures = []
    for measure in (PROLOG, SCRIPT, HEAD, READY, FIRST):
        what = measure if measure == PROLOG else f"allocation to {measure}"
        for who, moments in runs.items():
            samples = [
                one[measure] - (0.0 if measure == PROLOG else one[ALLOCATION]) for one in moments if measure in one
            ]
            if samples:
                figures.append(Figure(f"begin {learners}", what, who, "s", samples))
    return figures


def _begin_plain(bench: Bench, learners: int, mark: str) -> Moments:
    """The moments of a job of Slurm's."""
    place = f"{bench.desk.base}/begin"
    options = [f"--job-name={PLAIN_NAME}", f"--ntasks={learners}", f"--comment={mark}"]
    argv = ["sbatch", "--parsable", "--wait", *options, f"{place}/job.sh", place, "overlay" if mark else "bare"]
    job = bench.desk.run(*argv, timeout_s=300.0).stdout.strip()
    script, containers, prolog = (_numbers(bench, f"{place}/{name}") for name in ("script", "containers", "prolog"))
    if len(containers) != learners or bool(prolog) != bool(mark):
        raise RuntimeError(f"job {job} began {len(containers)} of {learners} containers, its prolog said {prolog}")
    moments = {SCRIPT: script[0], FIRST: max(containers)} | ({PROLOG: prolog[0] / 1000} if prolog else {})
    return _with_allocation(bench, job, moments)


def _begin_ours(bench: Bench, learners: int, level: str) -> Moments:
    """The moments of a job of the platform's, by its controllers' events and its learners."""
    argv = ["ffdl-submit", "--parsable", "--wait", "--network", level, f"begin/{learners}.yml", "model"]
    job_id = bench.desk.run(*argv, timeout_s=300.0).stdout.strip()
    job = json.loads(bench.desk.run("ffdl", "show", "--json", job_id).stdout)["job"]
    attempt = f"{job['job_dir']}/attempt-{job['attempt']}"
    files = bench.desk.host_path(attempt).glob("events/*.jsonl")
    moments = moments_of([event for path in files for event in decode_events(path.read_text(encoding="utf-8"))])
    first = [_numbers(bench, f"{attempt}/results/began-{number}") for number in range(1, learners + 1)]
    return _with_allocation(bench, job["native_id"], {**moments, FIRST: max(one[0] for one in first)})


def moments_of(events: Sequence[Event]) -> Moments:
    """When the head began, and when the last node said that it is ready."""
    moments = {
        measure: [event.at for event in events if event.kind is kind]
        for measure, kind in ((HEAD, EventKind.CLAIMED), (READY, EventKind.READY))
    }
    return {measure: max(found) for measure, found in moments.items() if found}


def _with_allocation(bench: Bench, job: str, moments: Moments) -> Moments:
    known = allocations(bench.cluster)
    if job not in known:
        raise RuntimeError(f"slurmctld's log does not say when nodes were allocated to job {job}")
    return {**moments, ALLOCATION: known[job]}


def _numbers(bench: Bench, path: str) -> list[float]:
    return [float(word) for word in bench.desk.host_path(path).read_text(encoding="utf-8").split()]
