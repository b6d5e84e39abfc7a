"""`make proof-elastic`: run eight elastic jobs on the real cluster, and compare them with fixed-size jobs.

    python -m tests.proof.elastic [--kills N] [--break hysteresis|objective] [--plot FILE]

The jobs arrive within two minutes, on 12 GPUs. Their training steps are small but real, and are padded to step times
measured for real models. The proof kills the daemon, including the scaler, and nodes, at the same times in both runs. A
short form of `make bench BENCH=elastic` runs in parallel.

Prints one line to standard output, and the times and sizes of each job to standard error. Exits with status 1 if a job
is lost, two attempts of a job overlapped, training beyond the last checkpoint was lost, the loss differs from that of
the fixed size, a GPU was idle for too long while a job waited, elastic jobs are not faster, or a decision was not
optimal. Exits with status 2 if the proof could not run, or if `--break` does not show in both the decisions and the
simulation.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.cluster.images import provide_image
from tests.cluster.rig import Cluster
from tests.proof.chain import ProofError
from tests.proof.elastic.broken_daemon import BREAKS
from tests.proof.elastic.claims import Claims
from tests.proof.elastic.decisions import wrong_decisions
from tests.proof.elastic.evidence import Course
from tests.proof.elastic.jobs import GPUS
from tests.proof.elastic.scene import Plan, run_jobs
from tests.proof.elastic.verdict import job_lines, line, troubles

CHECKOUT = Path(__file__).resolve().parents[3]
KILLS = 3
CLAIMS_S = 300.0
"""How long the simulation may take after the jobs have ended."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the proof on the cluster that is up, or on a new one."""
    parser = argparse.ArgumentParser(prog="python -m tests.proof.elastic", description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--kills", type=int, metavar="N", help=f"number of kills; every third one kills a node (default: {KILLS})"
    )
    parser.add_argument("--seed", type=int, default=1, help="seed for the times of the kills")
    parser.add_argument(
        "--break",
        dest="broken",
        choices=sorted(BREAKS),
        default="",
        help="break the policy and skip the run with fixed sizes; the proof must exit with status 1",
    )
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the allocations over time to a PNG file")
    options = parser.parse_args(arguments)
    if options.broken and options.kills:
        parser.error(
            "--break cannot be combined with kills, because a restarted daemon would not have the fault; use --kills 0"
        )
    kills = options.kills if options.kills is not None else 0 if options.broken else KILLS
    began = time.monotonic()

    def say(what: str) -> None:
        print(f"{time.monotonic() - began:6.1f} s  {what}", file=sys.stderr, flush=True)

    simulation = start_claims(options.broken)
    try:
        with Cluster.session() as cluster:
            provide_image(cluster, "custom")
            fixed = None
            if not options.broken:
                say("running the jobs with fixed sizes")
                fixed = run_jobs(cluster, Plan(elastic=False, kills=kills, seed=options.seed), say)
            say("running the elastic jobs")
            elastic = run_jobs(cluster, Plan(True, kills, options.seed, options.broken), say)
            say("waiting for the simulation")
        claims = Claims(**json.loads(simulation.communicate(timeout=CLAIMS_S)[0]))
    except ProofError as error:
        print(f"proof-elastic: {error}", file=sys.stderr)
        return 2
    finally:
        simulation.kill()
        simulation.wait()
    if options.plot:
        draw([("fixed", fixed), ("elastic", elastic)], options.plot)
    simulated = list(claims.troubles())
    found = [*troubles(fixed, elastic), *simulated]
    for text in (*job_lines(fixed, elastic), *found):
        print(text, file=sys.stderr)
    say("done")
    print(f"{line(fixed, elastic)}; {claims.line()}", flush=True)
    if options.broken and not (simulated and list(wrong_decisions(elastic.decisions))):
        print("proof-elastic: the decisions or the simulation do not show the fault of --break", file=sys.stderr)
        return 2
    return 1 if found else 0


def start_claims(broken: str) -> subprocess.Popen[str]:
    """Start the simulation at low priority, so that it does not slow down the jobs."""
    argv = ["nice", "-n", "5", sys.executable, "-m", "tests.proof.elastic.claims", *filter(None, [broken])]
    return subprocess.Popen(argv, cwd=CHECKOUT, stdout=subprocess.PIPE, text=True)


def draw(courses: Sequence[tuple[str, Course | None]], file: Path) -> None:
    """Draw the GPUs of each job over time, fixed sizes above elastic ones."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 6), layout="constrained")
    known = [(title, course) for title, course in courses if course is not None]
    for axes, (title, course) in zip(
        figure.subplots(len(known), 1, squeeze=False, sharex=True)[:, 0], known, strict=True
    ):
        begin = min(one.submitted for one in course.trained)
        moments = sorted({at for one in course.trained for each in one.allocations for at in (each.start, each.end)})
        gpus = [
            [sum(each.gpus for each in one.allocations if each.start <= moment < each.end) for moment in moments]
            for one in course.trained
        ]
        labels = [one.job.name for one in course.trained]
        axes.stackplot([moment - begin for moment in moments], gpus, labels=labels, step="post")
        axes.set(title=title, xlabel="seconds", ylabel="GPUs", ylim=(0, GPUS))
        axes.legend(loc="right", fontsize="small")
    figure.savefig(file)


if __name__ == "__main__":
    sys.exit(main())
