"""Benchmarks of the way in: start of the commands, one submission, many, and how fast they reach Slurm."""

from __future__ import annotations

from tests.benchmarks.bench import Bench
from tests.benchmarks.figures import Figure
from tests.proof.desk import VENV_PYTHON


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
    script = f'i=0; while [ $i -lt {count} ]; do "$@" >/dev/null || exit 1; i=$((i+1)); done'
    (loop_s,) = bench.time(1, loop=["sh", "-c", script, "sh", *bench.sbatch()])["loop"]
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


def _ms(seconds: list[float]) -> list[float]:
    return [1000 * second for second in seconds]
