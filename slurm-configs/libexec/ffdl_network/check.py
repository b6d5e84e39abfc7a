"""The program `check`."""

from __future__ import annotations

import os
import sys
from typing import Sequence

from . import apptainer, checks, guard, settings


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
    notes = guard.reassert(site)
    state = checks.look(site)
    items = [*state.items, *([state.egress] if state.egress else [])]
    for item in items:
        print(f"FAIL  {item.name}: {item.wrong}" if item.wrong else f"ok    {item.name}")
    if state.egress is None:
        print(f"-     egress: {checks.NOT_OFFERED}")
    checks.publish_state(site, state)
    for text in notes:
        print(f"note  {text}")
    return 1 if any(item.wrong for item in items) else 0
