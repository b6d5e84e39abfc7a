"""Plays worlds one after the other, in a process of its own: `python -m tests.crash.fuzz.worker ASSIGNMENTS`.

ASSIGNMENTS is JSON, a list of :class:`~tests.crash.fuzz.course.Assignment`. For each, one line of JSON is printed: its
:class:`~tests.crash.fuzz.course.Tally`. A process that fails ends with status 1 and says why on standard error.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path

from tests.crash.fuzz.course import Assignment, play
from tests.crash.fuzz.warm import WarmParent


def main() -> int:
    """All assignments."""
    os.umask(0o077)
    assignments = [Assignment(**plain) for plain in json.loads(sys.argv[1])]
    parent = WarmParent()
    for assignment in assignments:
        Path(assignment.base).mkdir(parents=True, exist_ok=True)
        try:
            tally = play(parent, assignment)
        except RuntimeError as error:
            print(f"the world in {assignment.base} (seed {assignment.seed}) broke off: {error}", file=sys.stderr)
            return 1
        print(json.dumps(asdict(tally)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
