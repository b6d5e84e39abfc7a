"""Downloads and builds what the cluster's tests need, before they ask for it: python -m tests.cluster.prepare

`make test` runs this first of what needs a cluster, beside what needs none. What fails here is tried again, and told,
by the tests.
"""

from __future__ import annotations

import sys

from tests.cluster.images import CHECKOUT, build_image
from tests.cluster.rig import RigError
from tests.cluster.rig.builder import build

SUITES = ("sid", "bullseye")
"""The cluster itself, and the Debian release whose Python is 3.9."""
IMAGES = ("custom", "pytorch")


def main() -> int:
    """Everything, in the order in which it is needed."""
    try:
        for suite in SUITES:
            print(f"root file system of {suite}", flush=True)
            build(suite, CHECKOUT)
        for name in IMAGES:
            print(f"image {name}: {build_image(name)}", flush=True)
    except RigError as error:
        print(f"prepare: {error}", file=sys.stderr)
        return int(error.status)
    return 0


if __name__ == "__main__":
    sys.exit(main())
