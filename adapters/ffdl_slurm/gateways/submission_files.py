"""The files of one submission: what sbatch said, and whether it still runs.

sbatch writes straight into ``submit/reply`` and holds a lock on ``submit/lock``: it inherits the descriptor, so
the lock lives as long as that sbatch does, whatever becomes of the process that started it. That one gives its own
descriptor away: it may be stopped, and must not hold up another daemon then. A later process on this host reads the
reply of an sbatch whose starter died. The replies of several submissions stand behind each other, parted by lines that
are no ids.
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
"""A reply is a line and what a site greets with; what is larger than this is read no further."""
_NEXT, _FAILED = "\n-- another submission\n", "\n-- it failed\n"


class Hold:
    """The lock on one attempt's submission. `descriptor` is for the submitting process to inherit."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def give_away(self) -> None:
        """The submitting process has it now, and holds it for as long as it lives."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


@contextmanager
def hold_submission(attempt: AttemptDir, shared: bool = False) -> Iterator[Hold]:
    """Lock the submission of one attempt.

    `shared` is for readers, who exclude submitters but not each other.
    Raises NotNow when another submission of this attempt is still under way.
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
    """Descriptors for standard output and error of the submitting command, appended to what is there."""
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
    """How much earlier submissions left in the open files; what comes after is this one's. Raises OSError."""
    out, err = files
    if os.fstat(out).st_size:
        os.write(out, _NEXT.encode())
    return os.fstat(out).st_size, os.fstat(err).st_size


def disown_reply(attempt: AttemptDir, files: tuple[int, int], end: int) -> None:
    """The submission whose reply ends at `end` failed: a number in what it printed is no job's. Raises OSError.

    Nothing is written where another submission has begun since; its reply must not be taken for this one's.
    """
    out = files[0]
    with suppress(NotNow), hold_submission(attempt):
        if os.fstat(out).st_size == end:
            os.write(out, _FAILED.encode())


def read_replies(attempt: AttemptDir, after: tuple[int, int] = (0, 0)) -> tuple[str, str]:
    """Standard output and error so far."""
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
    """Job ids that submissions of this attempt were told, but for those that are known to have failed.

    Raises NotNow while one is still under way on this host.
    """
    if not Path(attempt.submit).is_dir():
        return set()
    with hold_submission(attempt, shared=True):
        text, _ = read_replies(attempt)
    told = (parse_submission(reply) for reply in text.split(_NEXT) if not reply.endswith(_FAILED))
    return {job for job in told if job is not None}
