"""The files of one submission: what sbatch said, and whether it still runs.

sbatch writes straight into ``submit/reply`` and holds a lock on ``submit/lock``: it inherits the descriptor, so
the lock lives as long as that sbatch does, whatever becomes of the process that started it. A later process on
this host reads the reply of an sbatch whose starter died.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ffdl_batch.domain.jobdir import AttemptDir
from ffdl_batch.ports.scheduler import SchedulerUnreachable
from ffdl_slurm.parsers import parse_submission

REPLY, COMPLAINT, LOCK = "reply", "complaint", "lock"


@contextmanager
def hold_submission(attempt: AttemptDir, shared: bool = False) -> Iterator[int]:
    """Lock the submission of one attempt; yields the descriptor that the submitting process inherits.

    `shared` is for readers, who exclude submitters but not each other.
    Raises SchedulerUnreachable when another submission of this attempt is still under way.
    """
    directory = Path(attempt.submit)
    directory.mkdir(mode=0o700, exist_ok=True)
    lock = os.open(directory / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        _take(lock, attempt, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
        yield lock
    finally:
        os.close(lock)


def _take(lock: int, attempt: AttemptDir, kind: int) -> None:
    try:
        fcntl.flock(lock, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        raise SchedulerUnreachable(
            f"a submission of {Path(attempt.path).name} is still under way on this host; its end is awaited"
        ) from None


@contextmanager
def open_replies(attempt: AttemptDir) -> Iterator[tuple[int, int]]:
    """Descriptors for standard output and error of the submitting command, appended to what is there."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    out = os.open(Path(attempt.submit) / REPLY, flags, 0o600)
    try:
        err = os.open(Path(attempt.submit) / COMPLAINT, flags, 0o600)
        try:
            yield out, err
        finally:
            os.close(err)
    finally:
        os.close(out)


def reply_sizes(files: tuple[int, int]) -> tuple[int, int]:
    """How much earlier submissions left in the open files; what comes after is this one's."""
    out, err = files
    return os.fstat(out).st_size, os.fstat(err).st_size


def read_replies(attempt: AttemptDir, after: tuple[int, int] = (0, 0)) -> tuple[str, str]:
    """Standard output and error so far."""
    directory, (out, err) = Path(attempt.submit), after
    return _read(directory / REPLY, out), _read(directory / COMPLAINT, err)


def _read(path: Path, start: int) -> str:
    try:
        return path.read_bytes()[start:].decode("utf-8", "replace")
    except FileNotFoundError:
        return ""


def recover_reply(attempt: AttemptDir) -> set[str]:
    """Job ids that submissions of this attempt were told, however they ended.

    Raises SchedulerUnreachable while one is still under way on this host.
    """
    if not Path(attempt.submit).is_dir():
        return set()
    with hold_submission(attempt, shared=True):
        text, _ = read_replies(attempt)
    return {job for line in text.splitlines() if (job := parse_submission(line)) is not None}
