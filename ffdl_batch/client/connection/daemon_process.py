"""Find and end the process of this user's daemon."""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from ffdl_batch.client.connection.daemon_settings import describe_daemon
from ffdl_batch.client.errors import DaemonUnreachable
from ffdl_batch.config.daemon_location import (
    LOG_NAME,
    DaemonLock,
    Holder,
    LockUnreadable,
    Machine,
    judge_holder,
    read_lock,
    this_machine,
)
from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.host.resource_exhaustion import explain_lack

STOP_S = 30.0
"""A daemon finishes its requests (10 s) and the step that its loops are at."""
START_BYTES = 256 * 1024
"""What a daemon writes at its start, and a little more: its lock, lines of the log, and SQLite's log with its index."""
_LOOK_S = 0.05


def find_holder(state_dir: Path, machine: Machine | None = None) -> tuple[DaemonLock, Holder] | None:
    """The daemon that the lock file names, here or elsewhere; None where none runs.

    Raises :class:`DaemonUnreachable` for a lock file that cannot be read.
    """
    try:
        lock = read_lock(state_dir)
    except LockUnreadable as error:
        raise DaemonUnreachable(str(error), error.cure, error.exit_code) from error
    if lock is None:
        return None
    holder = judge_holder(lock, machine or this_machine())
    return None if holder is Holder.DEAD else (lock, holder)


def stop_daemon(
    state_dir: Path,
    patience_s: float = STOP_S,
    end: Callable[[int, int], None] = os.kill,
    *,
    next_writes_in: Sequence[Path] = (),
) -> DaemonLock | None:
    """End the daemon on this host and wait until it has ended; return None if none runs. Jobs run on without it.

    The process gets a signal only if the lock proves that it is the daemon (boot, process, start time) and it is the
    caller's. Raises :class:`DaemonUnreachable` for a daemon on another host, for one that does not end, and if another
    one, which writes into `next_writes_in` when it starts, could not take its place.
    """
    found = find_holder(state_dir)
    if found is None:
        return None
    lock, holder = found
    if holder is Holder.ELSEWHERE:
        raise DaemonUnreachable(
            f"your daemon runs on {lock.host} (process {lock.pid})", f"ssh {lock.host} ffdl daemon stop"
        )
    try:
        if Path(f"/proc/{lock.pid}").stat().st_uid != os.getuid():
            message = f"the daemon ({describe_daemon(lock)}) is another user's; it is left alone"
            raise DaemonUnreachable(message, "", ExitCode.NOT_ALLOWED)
        _refuse_without_space(lock, next_writes_in)
        end(lock.pid, signal.SIGTERM)
    except (FileNotFoundError, ProcessLookupError):  # it has just ended by itself
        return lock
    deadline = time.monotonic() + patience_s
    while (now := find_holder(state_dir)) is not None and now[0].pid == lock.pid:
        if time.monotonic() > deadline:
            message = f"the daemon ({describe_daemon(lock)}) was asked to end and has not after {patience_s:g} s"
            cure = f"read {state_dir / LOG_NAME}; if it hangs: kill -KILL {lock.pid} (jobs that run go on)"
            raise DaemonUnreachable(message, cure)
        time.sleep(_LOOK_S)
    return lock


def _refuse_without_space(lock: DaemonLock, directories: Sequence[Path]) -> None:
    """Raise where one of `directories` takes nothing new. Nothing is left of the trial."""
    for directory in dict.fromkeys(directories):
        try:
            _try_to_write(directory)
        except OSError as error:
            message = (
                f"no other daemon could start now, because nothing can be written in {directory}: {error.strerror}"
            )
            cure = f"{_cure(error)}; your daemon ({describe_daemon(lock)}) runs on, and ffdl daemon stop ends it"
            raise DaemonUnreachable(message, cure) from error


def _try_to_write(directory: Path) -> None:
    """What a start writes, in one file that has no name by then. Raises OSError."""
    trial = directory / f".trial-{os.getpid()}"
    descriptor = os.open(trial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        trial.unlink()
        with os.fdopen(descriptor, "wb", closefd=False) as file:
            file.write(bytes(START_BYTES))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _cure(error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "free some space, or raise the quota"
    return explain_lack(error) or "have its file system mounted for writing, and make the directory writable for you"
