"""Benchmarks of the way in: start of the commands, one submission, many, and how fast they reach Slurm."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

from tests.benchmarks.bench import Bench
from tests.benchmarks.figures import Figure
from tests.proof.desk import VENV_PYTHON

DRAIN_S = 1200.0
"""How long the last of many jobs is waited for; never how long it takes."""


def measure_start(bench: Bench) -> list[Figure]:
    """How long the commands take to start, beside a Python that does nothing and sbatch."""
    taken = bench.time(
        bench.knobs.repeat,
        version=["ffdl", "version"],
        help=["ffdl-submit", "--help"],
        python=[VENV_PYTHON, "-c", "pass"],
        sbatch=["sbatch", "--help"],
    )
    return [
        Figure("start", "ffdl version", "ffdl", "ms", _ms(taken["version"])),
        Figure("start", "ffdl-submit --help", "ffdl", "ms", _ms(taken["help"])),
        Figure("start", "python -c pass", "python", "ms", _ms(taken["python"])),
        Figure("start", "sbatch --help", "sbatch", "ms", _ms(taken["sbatch"])),
    ]


def measure_one(bench: Bench) -> list[Figure]:
    """One submission as a whole process, the daemon being warm."""
    taken = bench.time(bench.knobs.repeat, ffdl=["ffdl-submit", "--hold", "m/0000.yml", "model"], sbatch=bench.sbatch())
    return [
        Figure("submit one", "whole process", "ffdl", "ms", _ms(taken["ffdl"]), "<= 150"),
        Figure("submit one", "whole process", "sbatch", "ms", _ms(taken["sbatch"])),
    ]


def measure_acknowledgement(bench: Bench) -> list[Figure]:
    """How long a client of the socket waits until a job is durable."""
    taken = bench.node("acknowledge", str(bench.knobs.batch), "m/0000.yml", "model")
    rates = [len(taken) / sum(taken)]
    return [
        Figure("acknowledge", "one request, durable", "ffdl", "ms", _ms(taken), "p99 <= 50"),
        Figure("acknowledge", "one after the other", "ffdl", "1/s", rates),
    ]


def measure_many(bench: Bench) -> list[Figure]:
    """Many manifests in one command until accepted and until Slurm has them, beside a shell loop of sbatch."""
    count = bench.knobs.batch
    loop_s = bench.loop(count)
    drained = bench.node("drain", *bench.manifests(count), "model")
    accepted_s, drained_s = float(drained["accepted_s"]), float(drained["drained_s"])
    what = f"{count} jobs"
    return [
        Figure(f"submit {count}", f"{what}, one command", "ffdl", "s", [accepted_s], "<= the loop"),
        Figure(f"submit {count}", f"{what}, shell loop", "sbatch", "s", [loop_s]),
        Figure(f"submit {count}", "accepted", "ffdl", "1/s", [count / accepted_s], ">= 200"),
        Figure(f"submit {count}", "drained to Slurm", "ffdl", "1/s", [count / drained_s], ">= the loop"),
        Figure(f"submit {count}", "shell loop", "sbatch", "1/s", [count / loop_s]),
    ]


def measure_drain(bench: Bench) -> list[Figure]:
    """From a command's start until Slurm has all of its jobs, one by one and as one array, beside the plain tools."""
    count, indexes = bench.knobs.drain, f"--array=0-{bench.knobs.drain - 1}"
    loop_s = bench.loop(count)
    singly = bench.node("drain", *bench.manifests(count), "model", timeout_s=DRAIN_S)
    _cancel(bench, singly)
    (array_s,) = bench.time(1, array=bench.sbatch(indexes))["array"]
    bench.cancel_plain()
    together = bench.node("drain", indexes, "m/0000.yml", "model", timeout_s=DRAIN_S)
    _cancel(bench, together)
    what = f"drain {count}"
    return [
        Figure(what, "single jobs, accepted", "ffdl", "s", [float(singly["accepted_s"])]),
        Figure(what, "single jobs, the last id known", "ffdl", "s", [float(singly["drained_s"])], "<= the loop"),
        Figure(what, "shell loop", "sbatch", "s", [loop_s]),
        Figure(what, "one array, accepted", "ffdl", "s", [float(together["accepted_s"])]),
        Figure(what, "one array, the last id known", "ffdl", "s", [float(together["drained_s"])]),
        Figure(what, "one array", "sbatch --array", "s", [array_s]),
        Figure(what, "native jobs of the array", "ffdl", "", [float(len(together["natives"]))], "1 for 1,001 tasks"),
    ]


def _cancel(bench: Bench, drained: Mapping[str, Any]) -> None:
    """Take what was submitted out of Slurm's queue and wait until the daemon has written that down, so that the next
    ones have both for themselves. Raises RuntimeError where it takes too long."""
    natives = list(drained["natives"])
    for start in range(0, len(natives), 500):
        bench.desk.run("scancel", *natives[start : start + 500])
    deadline = time.monotonic() + DRAIN_S
    # One job stays: it was submitted to warm the daemon.
    while len(json.loads(bench.desk.run("ffdl", "list", "--json", "-t", "QUEUED", "-l", "2").stdout)["jobs"]) > 1:
        if time.monotonic() > deadline:
            raise RuntimeError(f"the daemon has not seen within {DRAIN_S:g} s that {len(natives)} jobs were cancelled")
        time.sleep(1.0)


def _ms(seconds: list[float]) -> list[float]:
    return [1000 * second for second in seconds]
