"""`make proof-faults`: faults planted among healthy jobs on the real cluster, and what the report of faults says.

    python -m tests.proof.faults [--short] [--each N] [--healthy N] [--break WHAT]

Prints precision and recall by kind. Exit status 1 where an incident is missing, is of another kind than was planted,
names another node, has no evidence, or befell a healthy job.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import replace

from tests.cluster.images import provide_image
from tests.cluster.rig import Cluster
from tests.proof.faults.scene import FULL, SHORT, Scene


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the proof on the cluster that is up, or on a new one."""
    parser = argparse.ArgumentParser(prog="python -m tests.proof.faults", description=__doc__.partition("\n")[0])
    parser.add_argument("--short", action="store_true", help="less of everything, as in `make test`")
    parser.add_argument("--each", type=int, metavar="N", help=f"jobs of each kind (default {FULL.each})")
    parser.add_argument("--healthy", type=int, metavar="N", help=f"healthy jobs among them (default {FULL.healthy})")
    parser.add_argument("--break", dest="broken", choices=["deaf", "quiet"], help="break it: must end with 1")
    options = parser.parse_args(arguments)
    usual = SHORT if options.short else FULL
    scale = replace(usual, each=options.each or usual.each, healthy=options.healthy or usual.healthy)
    if not 1 <= scale.each <= 4 or scale.healthy < 1:
        parser.error("1 to 4 jobs of each kind, as many as one node has GPUs, and one healthy one at least")
    began = time.monotonic()

    def say(what: str) -> None:
        print(f"{time.monotonic() - began:6.1f} s  {what}", file=sys.stderr, flush=True)

    with Cluster.session() as cluster:
        provide_image(cluster, "custom")
        with Scene(cluster, scale, options.broken or "", say) as scene:
            scene.run()
            found = scene.found()
    for trouble in found.troubles():
        print(trouble, file=sys.stderr)
    print(f"{time.monotonic() - began:.0f} s", file=sys.stderr)
    print(found.report(), flush=True)
    return 0 if found.holds else 1


if __name__ == "__main__":
    sys.exit(main())
