"""A learner that reports a lower speed while another one with the same directory runs.

    python3 train.py DIRECTORY ALONE TOGETHER

The speeds are samples per second, whatever the machine can do. Each learner holds a lock, so one that was killed does
not count.
"""

from __future__ import annotations

import fcntl
import os
import sys
import time
from pathlib import Path

PROGRAM = Path(__file__).read_text()
"""The text of the program, for a model directory."""


def runs(path: Path) -> bool:
    """Return whether the learner with this lock runs."""
    with path.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def train(directory: Path, alone: int, together: int) -> None:
    """Report until the process is killed."""
    own = directory / f"lock-{os.environ['TRAINING_ID']}"
    with own.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        while True:
            time.sleep(0.1)
            others = any(runs(path) for path in directory.glob("lock-*") if path != own)
            print(f"ffdl-throughput: samples={together if others else alone} seconds=1 remaining=9000", flush=True)


if __name__ == "__main__":
    train(Path(sys.argv[1]), *map(int, sys.argv[2:]))
