"""Run a command on a machine that is busy or stands still now and then, to find tests that need a quick one.

    python -m tools.under_load --busy 8 make test
    python -m tools.under_load --stops 5 make test

`--busy` starts processes that compute all the time. `--stops` stops every process of the command at once, for that
many seconds, once a minute on average: the freezer of cgroup v2 does, so none of them sees a signal. It needs root.
Exit status: that of the command, or 1 if processes of the command are left behind a `--stops`.
"""

# ruff: noqa: T201 - this is a command line program
from __future__ import annotations

import argparse
import contextlib
import os
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

from tools.processes import call, end_on_sigterm

BETWEEN_S = 60.0


def main() -> int:
    """Run the command; its exit status."""
    parser = argparse.ArgumentParser(description="Run a command on a busy machine.")
    parser.add_argument("--busy", type=int, default=0, metavar="N", help="start N processes that compute all the time")
    parser.add_argument("--stops", type=float, metavar="SECONDS", help="stop all its processes now and then")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    end_on_sigterm()
    with busy(options.busy):
        if options.stops is not None:
            return run_stopped(options.command, options.stops)
        return call(options.command)[0]


@contextlib.contextmanager
def busy(number: int) -> Iterator[None]:
    """Keep processes that compute all the time."""
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(number)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def run_stopped(command: list[str], seconds: float) -> int:
    """Run a command in a cgroup of its own and stop it now and then; its exit status."""
    group = cgroup2() / f"under-load-{os.getpid()}"
    group.mkdir()
    enter = ["sh", "-c", 'echo $$ > "$0/cgroup.procs" && exec "$@"', str(group)]
    over = threading.Event()
    stopping = threading.Thread(target=stop_now_and_then, args=(group / "cgroup.freeze", seconds, over))
    stopping.start()
    try:
        status = call([*enter, *command])[0]
    finally:
        over.set()
        stopping.join()
    left = (group / "cgroup.procs").read_text(encoding="ascii").split()
    if left:
        print(f"under_load.py: still running: {' '.join(left)}", file=sys.stderr)
        return status or 1
    group.rmdir()
    return status


def stop_now_and_then(freeze: Path, seconds: float, over: threading.Event) -> None:
    """Stop the processes of a cgroup at random moments until the command is over."""
    stops = 0
    while not over.wait(random.expovariate(1 / BETWEEN_S)):
        freeze.write_text("1", encoding="ascii")
        over.wait(seconds)
        freeze.write_text("0", encoding="ascii")
        stops += 1
    print(f"under_load.py: stopped {stops} times for {seconds:g} s", file=sys.stderr)


def cgroup2() -> Path:
    """Where cgroup v2 is mounted."""
    mounts = Path("/proc/mounts").read_text(encoding="utf-8").splitlines()
    return next(Path(fields[1]) for fields in map(str.split, mounts) if fields[2] == "cgroup2")


if __name__ == "__main__":
    sys.exit(main())
