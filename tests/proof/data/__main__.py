"""`make proof-data`: data in through faults, results out, a cache, secrets and metrics, beside what was planted.

    python -m tests.proof.data [--short] [--small-files N] [--sparse-mib N] [--sharing N] [--seed N] [--break WHAT]

Prints counts. Exit status 1 on any mismatch, any secret where none must be, and on everything else that is not as it
must be.
"""

from __future__ import annotations

import argparse
import secrets
import sys
import time
from collections.abc import Sequence
from dataclasses import replace

from tests.cluster.images import provide_image
from tests.cluster.rig import Cluster
from tests.proof.data.breaks import AFTER, BEFORE
from tests.proof.data.scene import Scene
from tests.proof.data.values import FULL, MIB, SHORT


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the proof on the cluster that is up, or on a new one."""
    parser = argparse.ArgumentParser(prog="python -m tests.proof.data", description=__doc__.partition("\n")[0])
    parser.add_argument("--short", action="store_true", help="less of everything, as in `make test`")
    parser.add_argument("--small-files", type=int, metavar="N", help=f"in one data set (default {FULL.small_files})")
    parser.add_argument(
        "--sparse-mib", type=int, metavar="N", help=f"of the large file (default {FULL.sparse_bytes // MIB})"
    )
    parser.add_argument("--sharing", type=int, metavar="N", help=f"jobs with one data set (default {FULL.sharing})")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(10**6), metavar="N", help="of what is planted")
    parser.add_argument("--break", dest="broken", choices=[*BEFORE, *AFTER], help="break it: must end with 1")
    options = parser.parse_args(arguments)
    usual = SHORT if options.short else FULL
    scale = replace(
        usual,
        small_files=usual.small_files if options.small_files is None else options.small_files,
        sparse_bytes=usual.sparse_bytes if options.sparse_mib is None else options.sparse_mib * MIB,
        sharing=usual.sharing if options.sharing is None else options.sharing,
    )
    if scale.small_files < 40 or scale.sparse_bytes < MIB or scale.sharing < 2:
        parser.error("at least 40 small files, a large one of 1 MiB, and 2 jobs with one data set")
    began = time.monotonic()

    def say(what: str) -> None:
        print(f"{time.monotonic() - began:6.1f} s  {what}", file=sys.stderr, flush=True)

    with Cluster.session() as cluster:
        provide_image(cluster, "custom")
        with Scene(cluster, scale, options.seed, options.broken or "", say) as scene:
            scene.run()
            if options.broken in AFTER:
                AFTER[options.broken](scene)
            found = scene.found()
    for trouble in found.troubles():
        print(trouble, file=sys.stderr)
    print(f"{time.monotonic() - began:.0f} s, seed {options.seed}", file=sys.stderr)
    print(found.report(), flush=True)
    return 0 if found.holds else 1


if __name__ == "__main__":
    sys.exit(main())
