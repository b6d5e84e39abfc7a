"""Download and build what the cluster's tests need, before they ask for it: python -m tests.cluster.prepare [--full]

`make test` runs this before the tests that need a cluster, beside those that need none. The tests try again what fails
here, and report it. `--full` adds what only `make test-full` needs.
"""

from __future__ import annotations

import sys

from tests.cluster.images import CHECKOUT, build_image
from tests.cluster.rig import RigError
from tests.cluster.rig.builder import build

SUITE = "sid"
"""The Debian release whose Slurm the cluster has."""


def main() -> int:
    """Build everything, in the order in which it is needed."""
    try:
        print(f"root file system of {SUITE}", flush=True)
        build(SUITE, CHECKOUT)
        for name in ("custom", "pytorch") if "--full" in sys.argv[1:] else ("custom",):
            print(f"image {name}: {build_image(name)}", flush=True)
    except RigError as error:
        print(f"prepare: {error}", file=sys.stderr)
        return int(error.status)
    return 0


if __name__ == "__main__":
    sys.exit(main())
