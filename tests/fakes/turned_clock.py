"""A Python whose wall clock somebody sets while it runs: the file SAID holds by how many seconds it is ahead.

    python tests/fakes/turned_clock.py SAID SELF [-E] [-I] [-P] [-S] (-c CODE | -m MODULE | FILE) [ARGUMENT ...]

It does what ``python`` does with the rest of its arguments; SELF is what it calls itself when it starts another one.
Monotonic clocks and the times of files stay as they are. (libfaketime 0.9.10 would do for all programs, but makes
Python's time.sleep fail with EINVAL now and then.)
"""

from __future__ import annotations

import runpy
import sys
import time
from pathlib import Path

_REAL = time.time


def main() -> None:
    """Turn the clock, then be Python."""
    said = Path(sys.argv[1])
    time.time = lambda: _REAL() + float(said.read_text())
    time.time_ns = lambda: int(time.time() * 1e9)
    sys.executable = sys.argv[2]
    rest = sys.argv[3:]
    while rest[0] in ("-E", "-I", "-P", "-S"):
        rest.pop(0)
    sys.path.pop(0)
    if rest[0] == "-c":
        sys.argv = ["-c", *rest[2:]]
        exec(compile(rest[1], "<string>", "exec"), {"__name__": "__main__"})
    elif rest[0] == "-m":
        sys.argv = rest[1:]
        runpy.run_module(rest[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = rest
        runpy.run_path(rest[0], run_name="__main__")


if __name__ == "__main__":
    main()
