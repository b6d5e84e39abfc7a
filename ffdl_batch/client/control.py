"""Looks at the process of this user's daemon, and ends it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from ffdl_batch.client.errors import ClientError, DaemonUnreachable, RequestRefused
from ffdl_batch.client.own import describe_daemon
from ffdl_batch.client.start import connect
from ffdl_batch.client.wire import Channel, Request, Wire
from ffdl_batch.config.locations import (
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
from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.domain.views import Health, Problem

ANSWER_S = 10.0
"""How long a daemon that is to be ended may take to say that it must not be."""
STOP_S = 30.0
"""A daemon finishes its requests (10 s) and the step that its loops are at."""
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
) -> DaemonLock | None:
    """End the daemon on this host and wait until it has; None where none runs. Jobs go on without it.

    The process is asked to end only where the lock proves that it is the daemon (boot, process, start time) and it is
    the caller's. Raises :class:`DaemonUnreachable` for one on another host, and one that does not end; and
    :class:`RequestRefused` for one that has the only copy of the database, unless with `force`. One that says nothing
    for `answer_s` is ended.
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
