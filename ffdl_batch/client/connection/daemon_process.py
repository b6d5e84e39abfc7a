"""Looks at the process of this user's daemon, and ends it."""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from ffdl_batch.client.connection.daemon_settings import describe_daemon
from ffdl_batch.client.connection.daemon_start import connect
from ffdl_batch.client.connection.http_client import Channel, Request, Wire
from ffdl_batch.client.errors import ClientError, DaemonUnreachable, RequestRefused
from ffdl_batch.config.daemon_location import (
    LOG_NAME,
    DaemonLock,
    Holder,
    LockUnreadable,
    Machine,
    SocketPlace,
    judge_holder,
    read_lock,
    this_machine,
)
from ffdl_batch.domain.codec import CodecError, from_plain
from ffdl_batch.domain.daemon_health import Health
from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.domain.job.views import Problem
from ffdl_batch.host.resource_exhaustion import explain_lack

ANSWER_S = 10.0
"""How long a daemon that is to be ended may take to say that it must not be."""
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
    force: bool = False,
    answer_s: float = ANSWER_S,
    next_writes_in: Sequence[Path] = (),
) -> DaemonLock | None:
    """End the daemon on this host and wait until it has; None where none runs. Jobs go on without it.

    The process is asked to end only where the lock proves that it is the daemon (boot, process, start time) and it is
    the caller's. Raises :class:`DaemonUnreachable` for one on another host, and one that does not end; and, unless with
    `force`, :class:`RequestRefused` for one that has the only copy of the database, and :class:`DaemonUnreachable`
    where another, that writes into `next_writes_in` when it starts, could not take its place. One that says nothing for
    `answer_s` is ended.
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
        if not force:
            _refuse_last_copy(lock, answer_s)
            _refuse_without_room(lock, next_writes_in)
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


def _refuse_without_room(lock: DaemonLock, directories: Sequence[Path]) -> None:
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


def _refuse_last_copy(lock: DaemonLock, answer_s: float) -> None:
    """Raise where the daemon says that its database would go with it."""
    health = _ask_health(lock, answer_s)
    trouble = health.database_trouble if health is not None else None
    if trouble is None or not trouble.holds_last_copy:
        return
    raise RequestRefused(
        Problem(
            "S210",
            f"the daemon ({describe_daemon(lock)}) is not ended, because the only copy of the database would go with "
            f"it: {trouble.detail}",
            ExitCode.TRY_AGAIN,
            "--force ends it all the same; it tries once more to save the copy then",
        )
    )


def _ask_health(lock: DaemonLock, answer_s: float) -> Health | None:
    """What the daemon says of itself, at the socket of its lock; None where it says nothing that we can read."""

    def dial() -> Channel:
        connected = connect(SocketPlace(Path(lock.socket), named=False)) if lock.socket else None
        if connected is None:
            raise DaemonUnreachable(f"no daemon answers at {lock.socket}")
        return connected

    wire = Wire(dial)
    try:
        return from_plain(Health, wire.ask(Request("GET", "/api/v1/health", timeout_s=answer_s)))
    except (ClientError, CodecError):
        return None  # it hangs, or is of another release: whoever ends it has reason to
    finally:
        wire.close()
