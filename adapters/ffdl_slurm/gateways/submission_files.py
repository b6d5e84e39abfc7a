"""The files of one submission: what sbatch printed, and whether it still runs.

sbatch writes into ``submit/reply`` and inherits a lock on ``submit/lock``, which it holds as long as it lives, even if
the process that started it has died. That process closes its own descriptor, because it may be stopped and must not
block another daemon. So a later process on this host reads the reply of an sbatch whose parent died. Lines that are no
ids separate the replies of several submissions.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ffdl_batch.attempt.file_writer import open_own
from ffdl_batch.attempt.layout import AttemptDir
from ffdl_batch.attempt.reader import NO_FILE, open_regular
from ffdl_batch.domain.scheduler_errors import NotNow
from ffdl_slurm.observing.parsers import parse_submission

REPLY, COMPLAINT, LOCK = "reply", "complaint", "lock"
MAX_REPLY_BYTES = 16 * 1024**2
"""A reply is a line and a site's messages. Of a larger file only the beginning is read."""
_NEXT, _FAILED = "\n-- another submission\n", "\n-- it failed\n"


class Hold:
    """The lock on one attempt's submission. `descriptor` is for the submitting process to inherit."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def give_away(self) -> None:
        """Close the descriptor: the submitting process holds the lock as long as it lives."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


@contextmanager
def hold_submission(attempt: AttemptDir, shared: bool = False) -> Iterator[Hold]:
    """Lock the submission of one attempt.

    `shared` is for readers, which exclude submitters but not each other. Raises NotNow if another submission of this
    attempt still runs.
    """
    directory = Path(attempt.submit)
    directory.mkdir(mode=0o700, exist_ok=True)
    hold = Hold(open_own(str(directory / LOCK), os.O_RDWR))
    try:
        _take(hold.descriptor, attempt, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
        yield hold
    finally:
        hold.give_away()


def _take(lock: int, attempt: AttemptDir, kind: int) -> None:
    try:
        fcntl.flock(lock, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        raise NotNow(
            f"a submission of {Path(attempt.path).name} is still under way on this host; its end is awaited"
        ) from None


@contextmanager
def open_replies(attempt: AttemptDir) -> Iterator[tuple[int, int]]:
    """Yield descriptors for standard output and error of the submitting command, which append to the files."""
    out = open_own(str(Path(attempt.submit) / REPLY), os.O_WRONLY | os.O_APPEND)
    try:
        err = open_own(str(Path(attempt.submit) / COMPLAINT), os.O_WRONLY | os.O_APPEND)
        try:
            yield out, err
        finally:
            os.close(err)
    finally:
        os.close(out)


def begin_reply(files: tuple[int, int]) -> tuple[int, int]:
    """Return the sizes of the open files, after which the output of this submission begins. Raises OSError."""
    out, err = files
    if os.fstat(out).st_size:
        os.write(out, _NEXT.encode())
    return os.fstat(out).st_size, os.fstat(err).st_size


def disown_reply(attempt: AttemptDir, files: tuple[int, int], end: int) -> None:
    """Record that the submission whose reply ends at `end` failed, so that a number in it is no job's. Raises OSError.

    Nothing is written if another submission has begun since then, so that its reply is not marked.
    """
    out = files[0]
    with suppress(NotNow), hold_submission(attempt):
        if os.fstat(out).st_size == end:
            os.write(out, _FAILED.encode())


def read_replies(attempt: AttemptDir, after: tuple[int, int] = (0, 0)) -> tuple[str, str]:
    """Return standard output and error so far."""
    directory, (out, err) = Path(attempt.submit), after
    return _read(directory / REPLY, out), _read(directory / COMPLAINT, err)


def _read(path: Path, start: int) -> str:
    try:
        with open_regular(str(path)) as file:
            file.seek(start)
            return file.read(MAX_REPLY_BYTES).decode("utf-8", "replace")
    except NO_FILE:
        return ""


def recover_reply(attempt: AttemptDir) -> set[str]:
    """Return the job ids that submissions of this attempt printed, without those that are known to have failed.

    Raises NotNow while a submission runs on this host.
    """
    if not Path(attempt.submit).is_dir():
        return set()
    with hold_submission(attempt, shared=True):
        text, _ = read_replies(attempt)
    found = (parse_submission(reply) for reply in text.split(_NEXT) if not reply.endswith(_FAILED))
    return {job for job in found if job is not None}
