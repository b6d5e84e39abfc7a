"""``python -m ffdl_batch.staging TASK.json [--check|--list|--image]``: bring data in, or results out, or an image."""

from __future__ import annotations

import argparse
import gc
import os
import signal
import sys
from types import FrameType

from ffdl_batch.host import egress
from ffdl_batch.host.core_dumps import forbid_core_dumps
from ffdl_batch.staging.tree import remove_half_made

FOR_LEARNERS = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM, signal.SIGXCPU)
"""Signals that a scheduler sends to all processes of a job, and that are meant for its learners."""


def main() -> int:
    """Run the program. Return the exit status (:data:`ffdl_batch.domain.data.staging_protocol.EXIT_STATUS`)."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, _end)
    for number in FOR_LEARNERS:
        signal.signal(number, signal.SIG_IGN)
    forbid_core_dumps(permanently=True)
    egress.bound_process(os.environ.get(egress.VARIABLE))
    parser = argparse.ArgumentParser(prog="python -m ffdl_batch.staging", description=__doc__)
    parser.add_argument("task", help="the file of the task (ffdl_batch.domain.data.staging_protocol.StageTask as JSON)")
    parser.add_argument(
        "--check", action="store_true", help="move nothing; ask each store for one page, and look at the free space"
    )
    parser.add_argument("--list", action="store_true", help="move nothing; say what lies below each prefix")
    parser.add_argument(
        "--image", action="store_true", help="the task is an image's (ffdl_batch.domain.data.image_task.ImageTask)"
    )
    options = parser.parse_args()
    if options.image:
        from ffdl_batch.staging.images.program import run_image_program

        return run_image_program(options.task, output=sys.stdout.fileno())
    gc.disable()  # enabled again when the clients of the stores have been made
    from ffdl_batch.staging.program import run_program

    return run_program(options.task, check=options.check, lists=options.list, output=sys.stdout.fileno())


def _end(number: int, _frame: FrameType | None) -> None:
    """End at once: the journal has what is done, and threads may wait for a store that does not answer."""
    remove_half_made()
    os._exit(128 + number)


if __name__ == "__main__":
    os._exit(main())
