"""The program `check`."""

from __future__ import annotations

import os
import sys
from typing import Sequence

from . import apptainer, checks, settings


def main(argv: Sequence[str]) -> int:
    """Print each item; 0 when all is well, 1 when not, 64 for words that it does not know, 77 when not root."""
    try:
        site = settings.load()
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    if list(argv) == ["--apptainer-conf"]:
        print("\n".join(apptainer.wanted_lines(site)))
        return 0
    if argv:
        print("usage: check [--apptainer-conf]", file=sys.stderr)
        return 64
    if os.geteuid() != 0:
        print("check: only root can try what a node can do", file=sys.stderr)
        return 77
    found = checks.items(site)
    for item in found:
        print(f"FAIL  {item.name}: {item.wrong}" if item.wrong else f"ok    {item.name}")
    checks.publish_items(site, found)
    return 1 if any(item.wrong for item in found) else 0
