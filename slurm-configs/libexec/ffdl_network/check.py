"""Implements the program `check`."""

from __future__ import annotations

import os
import sys
from typing import Sequence

from . import apptainer, checks, guard, settings
from .checks import Item
from .commands import Trouble, status_of
from .settings import Settings

_FILTERS = "filters of running jobs"
_USAGE = "usage: check [--quiet | --apptainer-conf]"


def main(argv: Sequence[str]) -> int:
    """Print each item. Return 0 if nothing is wrong, 1 if something is, 64 for unknown arguments, 77 if not root."""
    if list(argv) not in ([], ["--quiet"], ["--apptainer-conf"]):
        print(_USAGE, file=sys.stderr)
        return 64
    return status_of("check", lambda: _work(*argv))


def _work(word: str = "") -> int:
    try:
        site = settings.load()
    except settings.WrongValues as error:
        if os.geteuid() == 0 and word != "--apptainer-conf":
            checks.publish_refusal(error)
        raise
    if word == "--apptainer-conf":
        apptainer.require_members(site)
        print("\n".join(apptainer.wanted_lines(site)))
        return 0
    if os.geteuid() != 0:
        print("check: only root can try what a node can do", file=sys.stderr)
        return 77
    return _try_all(site, quiet=word == "--quiet")


def _try_all(site: Settings, quiet: bool) -> int:
    notes, filters = _put_back(site)
    state = checks.look(site)
    items = [*state.items, *filters, *([state.egress] if state.egress else [])]
    for item in items:
        if item.wrong or not quiet:
            print(f"FAIL  {item.name}: {item.wrong}" if item.wrong else f"ok    {item.name}")
    if state.egress is None and not quiet:
        print(f"-     egress: {checks.NOT_OFFERED}")
    for text in notes:
        print(f"note  {text}")
    checks.publish_state(site, state)
    return 1 if any(item.wrong for item in items) else 0


def _put_back(site: Settings) -> tuple[list[str], list[Item]]:
    """Return the restored filters of running jobs, and an item for each missing one, or for the failed check."""
    try:
        looked = guard.reassert(site)
    except (Trouble, OSError) as error:
        return [], [Item(_FILTERS, str(error))]
    return looked.again, [Item(_FILTERS, text) for text in looked.gone]
