"""`make proof-elastic`: eight elastic jobs on the real cluster, beside the same jobs with fixed sizes.

    python -m tests.proof.elastic [--kills N] [--plot FILE]

The jobs arrive within a minute, on 12 GPUs. Their training steps are small but real, and stretched to the step times
that were measured for their models. `--kills` kills the daemon with the scaler N times meanwhile. Prints a line for
each job and one for all. Exit status 1 if a job is lost, two of its attempts ran at the same time, training was lost
beyond the last checkpoint, the loss is not that of the fixed size, or GPUs were idle for long while a job waited.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.cluster.images import provide_image
from tests.cluster.rig import Cluster
from tests.proof.chain import ProofError
from tests.proof.elastic.jobs import GPUS
from tests.proof.elastic.scene import Trained, run_jobs
from tests.proof.elastic.verdict import report, troubles


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the proof on the cluster that is up, or on a new one."""
    parser = argparse.ArgumentParser(prog="python -m tests.proof.elastic", description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=0, metavar="N", help="Kill the daemon N times.")
    parser.add_argument("--seed", type=int, default=1, help="Of the moments of the kills.")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="Draw the allocations over time into a PNG file.")
    options = parser.parse_args(arguments)
    began = time.monotonic()

    def say(what: str) -> None:
        print(f"{time.monotonic() - began:6.1f} s  {what}", file=sys.stderr, flush=True)

    with Cluster.session() as cluster:
        provide_image(cluster, "custom")
        try:
            say("fixed sizes")
            fixed = run_jobs(cluster, elastic=False, kills=0, seed=0, say=say)
            say("elastic")
            elastic = run_jobs(cluster, elastic=True, kills=options.kills, seed=options.seed, say=say)
        except ProofError as error:
            print(f"proof-elastic: {error}", file=sys.stderr)
            return 1
    found = list(troubles(fixed, elastic))
    for trouble in found:
        print(trouble, file=sys.stderr)
    if options.plot:
        draw(fixed, elastic, options.plot)
    print(f"{time.monotonic() - began:.0f} s", file=sys.stderr)
    print(report(fixed, elastic), flush=True)
    return 1 if found else 0


def draw(fixed: Sequence[Trained], elastic: Sequence[Trained], file: Path) -> None:
    """Draw the GPUs of each job over time, fixed sizes above elastic ones."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 6), layout="constrained")
    for axes, trained, title in zip(figure.subplots(2, 1), (fixed, elastic), ("fixed", "elastic"), strict=True):
        begin = min(one.submitted for one in trained)
        moments = sorted({time for one in trained for each in one.allocations for time in (each.start, each.end)})
        gpus = [
            [sum(each.gpus for each in one.allocations if each.start <= moment < each.end) for moment in moments]
            for one in trained
        ]
        axes.stackplot(
            [moment - begin for moment in moments], gpus, labels=[one.job.name for one in trained], step="post"
        )
        axes.set(title=title, xlabel="seconds", ylabel="GPUs", ylim=(0, GPUS))
        axes.legend(loc="right", fontsize="small")
    figure.savefig(file)


if __name__ == "__main__":
    sys.exit(main())
