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
"""A daemon finishes its requests (10 s) and the current step of its loops."""
START_BYTES = 256 * 1024
"""More than a daemon writes when it starts: its lock, lines of the log, and SQLite's log with its index."""
_LOOK_S = 0.05


def find_holder(state_dir: Path, machine: Machine | None = None) -> tuple[DaemonLock, Holder] | None:
    """Return the daemon that the lock file names, and where it runs; None if none runs.

    Raises :class:`DaemonUnreachable` for a lock file that cannot be read.
    """
    try:
        lock = read_lock(state_dir)
    except LockUnreadable as error:
        raise DaemonUnreachable.because(error) from error
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
    """End the daemon on this host and wait until it has ended; return None if none runs. Jobs continue without it.

    The process gets a signal only if the lock proves that it is the daemon (boot, process, start time) and it belongs
    to the caller. Raises :class:`DaemonUnreachable` for a daemon on another host, for one that does not end, and if the
    next one, which writes into `next_writes_in` when it starts, could not replace it.
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
            message = f"the daemon ({describe_daemon(lock)}) belongs to another user, so it is not stopped"
            raise DaemonUnreachable(message, "", ExitCode.NOT_ALLOWED)
        _refuse_without_space(lock, next_writes_in)
        end(lock.pid, signal.SIGTERM)
    except (FileNotFoundError, ProcessLookupError):  # it has just ended by itself
        return lock
    deadline = time.monotonic() + patience_s
    while (now := find_holder(state_dir)) is not None and now[0].pid == lock.pid:
        if time.monotonic() > deadline:
            message = f"the daemon ({describe_daemon(lock)}) has not ended {patience_s:g} s after SIGTERM"
            cure = f"read {state_dir / LOG_NAME}; if it hangs: kill -KILL {lock.pid} (running jobs continue)"
            raise DaemonUnreachable(message, cure)
        time.sleep(_LOOK_S)
    return lock


def _refuse_without_space(lock: DaemonLock, directories: Sequence[Path]) -> None:
    """Raise DaemonUnreachable if one of `directories` cannot be written to. No file remains in them."""
    for directory in dict.fromkeys(directories):
        try:
            try_to_write(directory)
        except OSError as error:
            message = f"another daemon could not start now, because {directory} cannot be written to: {error.strerror}"
            cure = f"{_cure(error)}; your daemon ({describe_daemon(lock)}) still runs; to stop it: ffdl daemon stop"
            raise DaemonUnreachable(message, cure) from error


def try_to_write(directory: Path) -> None:
    """Write as much as a daemon that starts, into an unlinked file. Raises OSError."""
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
    return explain_lack(error) or "have its file system mounted for writing, and check the directory's permissions"
