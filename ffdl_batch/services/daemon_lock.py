"""Locks a state directory, so that only one daemon uses it.

Two things together, because the state directory is often on a network file system:

* a flock(2) on ``daemon.flock``, a file that is opened for nothing else. It is the truth between processes of one
  host, and it ends with the process. If the file system does not support flock (Lustre mounted without it), a file in
  the host's /tmp replaces it.
* ``daemon.lock``, JSON that names host and process. It is for other hosts, where flock may work (NFS since Linux
  2.6.12) or not (``local_lock``, Lustre ``localflock``). It is created by link(2), which is atomic on network file
  systems, so only one of two hosts succeeds. It also names the daemon's socket and the directory for which it was
  created: no daemon starts in a copy of the directory on the same host, because it would run the same jobs again.

A holder on this host is replaced if it is proven dead. A holder on another host is replaced only by an explicit
``--force-take-over-from HOST``, because a host that cannot be reached may still write to the database.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import socket
import time
from dataclasses import replace
from pathlib import Path

from ffdl_batch import __version__
from ffdl_batch.attempt.file_writer import write_text
from ffdl_batch.config.daemon_location import (
    LOCK_NAME,
    DaemonLock,
    DirectoryCopied,
    Holder,
    LockUnreadable,
    Machine,
    check_directory,
    is_copied,
    judge_holder,
    make_own_directory,
    name_directory,
    read_lock_file,
)
from ffdl_batch.domain.codec import to_plain
from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.host.fast_dataclass import dataclass

FLOCK_NAME = "daemon.flock"
PATIENCE_S = 20.0
"""How long a second daemon waits until the first answers or ends. A start takes a second, a stop up to ten."""
_POLL_S = 0.05
_NO_FLOCK = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL)
_NO_LINK = (errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP)


class AlreadyServed(Exception):
    """Another daemon on this host answers, so there is nothing to do."""


class HeldElsewhere(Exception):
    """Another daemon holds the state directory, or may hold it. The message names it and the cure."""

    def __init__(self, message: str, exit_code: int = ExitCode.TRY_AGAIN) -> None:
        super().__init__(message)
        self.exit_code = int(exit_code)


@dataclass(frozen=True, slots=True)
class TakeOver:
    """What the operator allows."""

    proven: bool = False
    """Replace a holder that is proven dead, and report why if it is not."""
    from_host: str = ""
    """Replace any holder on that host."""


class Hold:
    """The lock of a running daemon. :meth:`release` or the end of the process releases it."""

    def __init__(self, state_dir: Path, descriptor: int, record: DaemonLock) -> None:
        self._path = state_dir / LOCK_NAME
        self._state_dir = state_dir
        self._descriptor = descriptor
        self.record = record

    def announce(self, socket_path: Path) -> None:
        """Write the path of the daemon's socket into the lock file."""
        self.record = replace(self.record, socket=str(socket_path))
        _write(self._path, self.record)

    def is_ours(self) -> bool:
        """Whether the lock file still names this process. Write it again if it was removed, or if this directory was
        replaced by a copy, whose lock file belongs to no running daemon.

        False: another daemon has the state directory, on another host or since the directory was moved away and back.
        This daemon must stop then. Raises OSError if the file cannot be read now.
        """
        try:
            found = read_lock_file(self._state_dir)
        except LockUnreadable as unreadable:
            if isinstance(unreadable.__cause__, OSError):
                raise unreadable.__cause__ from unreadable
            return False
        if found is None:
            self.record = replace(self.record, directory=name_directory(self._state_dir))  # it may be another by now
            return _create(self._path, self.record)
        if is_copied(found, self._state_dir):
            self.record = replace(self.record, directory=name_directory(self._state_dir))
            _write(self._path, self.record)
            return True
        return _same_process(found, self.record)

    def release(self) -> None:
        """Remove the lock file, if it is ours, so that the next daemon can start."""
        with contextlib.suppress(LockUnreadable):
            found = read_lock_file(self._state_dir)
            if found is not None and _same_process(found, self.record):
                self._path.unlink(missing_ok=True)
        os.close(self._descriptor)


def own_record(machine: Machine) -> DaemonLock:
    """Return a record of this process as the holder of the lock."""
    pid = os.getpid()
    return DaemonLock(
        host=machine.host,
        pid=pid,
        boot_id=machine.boot_id,
        start_ticks=machine.start_ticks(pid) or 0,
        socket="",
        version=__version__,
        started_at=time.time(),
    )


def acquire(
    state_dir: Path,
    record: DaemonLock,
    machine: Machine,
    take_over: TakeOver | None = None,
    *,
    patience_s: float = PATIENCE_S,
) -> Hold:
    """Lock the state directory, and create it if it does not exist.

    `record` describes this process. Its socket is announced later, when it listens. Raises :class:`AlreadyServed`,
    :class:`HeldElsewhere` and, for a directory that other users can write to, LockUnreadable.
    """
    make_own_directory(state_dir)
    record = replace(record, directory=name_directory(state_dir))
    allowed = take_over or TakeOver()
    deadline = time.monotonic() + patience_s
    descriptor = _open_flock(state_dir)
    try:
        while not _try_flock(descriptor):
            _judge_busy(state_dir, machine)
            if time.monotonic() > deadline:
                raise HeldElsewhere(_silent(state_dir, patience_s))
            time.sleep(_POLL_S)
        _claim(state_dir, record, machine, allowed)
    except BaseException:
        os.close(descriptor)
        raise
    return Hold(state_dir, descriptor, record)


def _open_flock(state_dir: Path) -> int:
    """Open a file that supports flock, in the state directory or else in this host's /tmp."""
    descriptor = os.open(state_dir / FLOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        return descriptor
    except BlockingIOError:
        return descriptor
    except OSError as error:
        os.close(descriptor)
        if error.errno not in _NO_FLOCK:
            raise
    local = Path("/tmp") / f"ffdl-{os.getuid()}"  # noqa: S108 - the owner is checked
    local.mkdir(mode=0o700, exist_ok=True)
    check_directory(local, closed=True)
    name = hashlib.sha256(os.fsencode(state_dir.resolve())).hexdigest()[:16]
    return os.open(local / f"{name}.flock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _try_flock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _judge_busy(state_dir: Path, machine: Machine) -> None:
    """Raise an exception if the process that holds the flock is a daemon that answers, or is on another host. Return if
    that is not clear yet. The directory is no copy, because the flock is held."""
    lock = _read(state_dir)
    if lock is None:
        return
    if lock.host != machine.host:
        raise HeldElsewhere(_elsewhere(lock))
    if judge_holder(lock, machine) is Holder.ALIVE_HERE and lock.socket and _listens(lock.socket):
        raise AlreadyServed(f"a daemon already runs here (process {lock.pid}, socket {lock.socket})")


def _claim(state_dir: Path, record: DaemonLock, machine: Machine, allowed: TakeOver) -> None:
    """Write this process into the lock file, if its holder may be replaced. The flock is held. Raises HeldElsewhere."""
    path = state_dir / LOCK_NAME
    while not _create(path, record):
        lock = _read(state_dir)
        if lock is None:  # an empty file, or one that was just removed
            _write(path, record)
            return
        holder = judge_holder(lock, machine)
        if allowed.from_host and allowed.from_host == lock.host:
            _write(path, record)
            return
        if is_copied(lock, state_dir):
            copied = DirectoryCopied(path)
            raise HeldElsewhere(f"{copied} ({copied.cure})", copied.exit_code)
        if holder is Holder.DEAD:
            _write(path, record)
            return
        if holder is Holder.ALIVE_HERE:
            raise HeldElsewhere(
                f"{path} names process {lock.pid} on this host, which lives but holds no flock; "
                f"end it first, or give --force-take-over-from {lock.host} if it is not an ffdl-submitd process"
            )
        raise HeldElsewhere(_elsewhere(lock, tried=allowed.proven))


def _read(state_dir: Path) -> DaemonLock | None:
    try:
        return read_lock_file(state_dir)
    except LockUnreadable as error:
        raise HeldElsewhere(f"{error}; {error.cure}") from error


def _elsewhere(lock: DaemonLock, *, tried: bool = False) -> str:
    why = (
        "; --take-over needs proof that it is dead, and a process on another host cannot be looked at" if tried else ""
    )
    return (
        f"the daemon of this state directory runs on {lock.host} (process {lock.pid}){why}. Work from {lock.host}, or "
        f"reach it through `ssh {lock.host} ffdl list`; if {lock.host} is gone for good, start with "
        f"--force-take-over-from {lock.host}"
    )


def _silent(state_dir: Path, patience_s: float) -> str:
    lock = _read(state_dir)
    who = f"process {lock.pid}" if lock else "a process that has not written its name"
    return (
        f"{who} holds {state_dir / FLOCK_NAME} but no daemon answered within {patience_s:g} s; "
        f"look into the daemon's log in {state_dir}, and end that process if it hangs"
    )


def _listens(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(path)
        except OSError:
            return False
    return True


def _same_process(one: DaemonLock, other: DaemonLock) -> bool:
    return (one.host, one.boot_id, one.pid, one.start_ticks) == (
        other.host,
        other.boot_id,
        other.pid,
        other.start_ticks,
    )


def _create(path: Path, record: DaemonLock) -> bool:
    """Create the lock file. Return False if it exists: link(2) fails then, while a rename would replace the file."""
    fresh = path.with_name(f".{path.name}.{record.host}.{record.pid}")
    fresh.write_text(_text(record), encoding="utf-8")
    try:
        path.hardlink_to(fresh)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in _NO_LINK:
            raise
        return _create_exclusively(path, record)
    finally:
        fresh.unlink(missing_ok=True)
    return True


def _create_exclusively(path: Path, record: DaemonLock) -> bool:
    """Create the lock file by O_EXCL, for file systems without hard links. Readers may see an empty file meanwhile."""
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(_text(record))
    except FileExistsError:
        return False
    return True


def _write(path: Path, record: DaemonLock) -> None:
    write_text(path, _text(record), durable=False)


def _text(record: DaemonLock) -> str:
    return json.dumps(to_plain(record), sort_keys=True) + "\n"
