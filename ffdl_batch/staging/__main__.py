"""``python -m ffdl_batch.staging TASK.json [--check]``: bring data in, or results out."""

from __future__ import annotations

import argparse
import os
import resource
import signal
import sys
from types import FrameType


def main() -> int:
    """The exit status (:data:`ffdl_batch.domain.staging.EXIT_STATUS`)."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, _end)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a core would hold credentials
    parser = argparse.ArgumentParser(prog="python -m ffdl_batch.staging", description=__doc__)
    parser.add_argument("task", help="the file of the task (ffdl_batch.domain.staging.StageTask as JSON)")
    parser.add_argument(
        "--check", action="store_true", help="move nothing; ask each store for one page, and look at the free space"
    )
    options = parser.parse_args()
    from ffdl_batch.staging.program import run_program

    return run_program(options.task, check=options.check, output=sys.stdout.fileno())


def _end(number: int, _frame: FrameType | None) -> None:
    """At once: the journal has what is done, and threads may wait for a store that does not answer."""
    os._exit(128 + number)


if __name__ == "__main__":
    os._exit(main())
