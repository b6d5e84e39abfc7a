"""`make bench`: every figure beside the plain tool's, in the same run, on the real cluster.

Prints a table and writes build/bench.json. Judges nothing: aims are printed beside the figures.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.benchmarks.bench import Bench, Knobs
from tests.benchmarks.figures import Figure, table
from tests.benchmarks.running import measure_phases, measure_training
from tests.benchmarks.standing import measure_standing
from tests.benchmarks.submitting import measure_acknowledgement, measure_many, measure_one, measure_start
from tests.cluster.images import provide_image
from tests.cluster.rig import Cluster
from tests.proof.desk import Desk

OUTPUT = Path(__file__).resolve().parents[2] / "build" / "bench.json"
USER = "alice"
STANDING = "standing"
BENCHMARKS: dict[str, Callable[[Bench], list[Figure]]] = {
    "start": measure_start,
    "submit": measure_one,
    "acknowledge": measure_acknowledgement,
    "many": measure_many,
    "phases": measure_phases,
    "training": measure_training,
}
NAMES = (*BENCHMARKS, STANDING)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure what was asked for."""
    names, knobs, output = _read(arguments)
    figures: list[Figure] = []
    with Cluster.session() as cluster:
        provide_image(cluster, "custom")
        versions = cluster.versions()
        # A desk for each: no benchmark pays for the jobs that another left.
        for name in names:
            began = time.monotonic()
            figures += _measure(cluster, name, knobs)
            print(f"{name}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    output.parent.mkdir(parents=True, exist_ok=True)
    document = {"versions": versions, "figures": [figure.plain() for figure in figures]}
    output.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(", ".join(f"{tool} {version}" for tool, version in versions.items()))
    print(table(figures))
    print(f"all samples: {output}")
    return 0


def _measure(cluster: Cluster, name: str, knobs: Knobs) -> list[Figure]:
    if name == STANDING:
        # The daemon inherits this PATH, in which squeue counts its calls.
        with Desk(cluster, USER, f"bench-{name}", "cli", path_first="bin") as desk:
            return measure_standing(cluster, desk, knobs)
    with Desk(cluster, USER, f"bench-{name}", "cli") as desk:
        bench = Bench(cluster, desk, knobs)
        bench.prepare()
        try:
            return BENCHMARKS[name](bench)
        finally:
            bench.cancel_plain()


def _read(arguments: Sequence[str] | None) -> tuple[list[str], Knobs, Path]:
    usual = Knobs()
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"only these: {', '.join(NAMES)}")
    parser.add_argument("--repeat", type=int, default=usual.repeat, help="runs of one command")
    parser.add_argument("--batch", type=int, default=usual.batch, help="manifests in one command")
    parser.add_argument("--trainings", type=int, default=usual.trainings, help="runs of the training, each way")
    parser.add_argument("--sights", type=int, default=usual.sights, help="jobs whose phases are watched")
    parser.add_argument("--live-jobs", type=int, default=usual.live_jobs, help="jobs of the daemon at rest")
    parser.add_argument("--seconds", type=float, default=usual.seconds, help="how long the daemon at rest is watched")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="where all samples go")
    options = parser.parse_args(arguments)
    for name in options.names:
        if name not in NAMES:
            parser.error(f"there is no benchmark {name!r}; choose among {', '.join(NAMES)}")
    knobs = Knobs(options.repeat, options.batch, options.trainings, options.sights, options.live_jobs, options.seconds)
    if min(options.repeat, options.batch, options.trainings, options.sights, options.live_jobs, options.seconds) < 1:
        parser.error("every number must be at least 1")
    return list(options.names) or list(NAMES), knobs, options.output


if __name__ == "__main__":
    sys.exit(main())
