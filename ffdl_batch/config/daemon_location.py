"""Finds a user's daemon: its socket, its lock file, and whether the process that the lock names is alive.

Client and daemon use the same rules. Standard library and domain only, because every client command starts with it.

The socket: ``$FFDL_SOCKET``, else ``$XDG_RUNTIME_DIR/ffdl/ffdl.sock`` if that runtime directory is the user's own, else
``/tmp/ffdl-<uid>/ffdl.sock``. With ``$FFDL_STATE_DIR`` the socket's name has a digest of it, so that a daemon of
another state directory is not mistaken for this one. Every user can create a name in /tmp, so an existing directory
there is used only if it is a real directory, owned by the user, and closed to others: otherwise manifests, and the
credentials in them, would be sent through another user's socket.

Only the daemon writes the lock file ``daemon.lock`` in the state directory. A reader verifies its content: "dead" needs
proof on this machine, everything else counts as alive.
"""

from __future__ import annotations

import os
import re
import shlex
import socket
import stat
from collections.abc import Collection, Mapping
from dataclasses import field
from enum import StrEnum
from pathlib import Path

from ffdl_batch.attempt.reader import SMALL_BYTES, DamagedFile, read_whole
from ffdl_batch.domain.codec import CodecError, from_plain
from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.domain.untrusted_json import parse_json
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.host.processes import boot_id
from ffdl_batch.host.users import base_directory

SOCKET_NAME = "ffdl.sock"
LOCK_NAME = "daemon.lock"
LOG_NAME = "daemon.log"
_UNMAPPED = 65534
"""The owner that represents all users that a user namespace (user_namespaces(7)) or NFS server does not map."""
MAX_SOCKET_PATH = 107
"""Bytes that fit into sun_path with its final NUL (unix(7))."""
_REMOVE = "remove it if no ffdl-submitd of yours runs on any host"
_NAME_YOURS = "name a directory of your own by FFDL_STATE_DIR, or leave it unset"
_ANOTHERS = (
    "use the original; if that is used no more, remove {path}: its jobs are this directory's from then on, and what it "
    "had not started when it was copied is started here"
)
_HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,252}", re.ASCII)


class PlaceRefused(Exception):
    """A directory or path that the daemon and its clients must not, or cannot, use. `cure` is advice to the user."""

    def __init__(self, message: str, cure: str = "", exit_code: int = ExitCode.TRY_AGAIN) -> None:
        super().__init__(message)
        self.cure = cure
        self.exit_code = int(exit_code)


class LockUnreadable(PlaceRefused):
    """The path is not a lock file, or the lock file or its directory may not be read or used."""


class DirectoryCopied(LockUnreadable):
    """The lock file was copied together with the state directory in which it was made."""

    def __init__(self, path: Path) -> None:
        super().__init__(
            f"{path.parent} is a copy of a state directory: {path.name} in it was made for another directory on this "
            "host, which has the same jobs, and a daemon here would run them once more",
            _ANOTHERS.format(path=path),
            ExitCode.BAD_MANIFEST,
        )


@dataclass(frozen=True, slots=True)
class SocketPlace:
    """The path of a socket."""

    path: Path
    named: bool
    """Whether the user named it, so that its owner may be another user (a site's daemon)."""


class Holder(StrEnum):
    """What is known about the process that the lock file names."""

    ALIVE_HERE = "alive here"
    DEAD = "dead"
    ELSEWHERE = "elsewhere"


@dataclass(frozen=True, slots=True)
class DaemonLock:
    """The content of the lock file."""

    host: str
    pid: int
    boot_id: str
    start_ticks: int
    """Field 22 of ``/proc/<pid>/stat`` (proc(5)), clock ticks since boot."""
    socket: str
    version: str = ""
    started_at: float = 0.0
    settings: Mapping[str, str] = field(default_factory=dict)
    """Digests of :mod:`ffdl_batch.config.fingerprint`; {} = a release that wrote none."""
    directory: str = ""
    """The state directory as ``device:inode``, as the holder sees it; "" = a release that wrote none."""


@dataclass(frozen=True, slots=True)
class Machine:
    """This machine, as a value that tests replace."""

    host: str
    boot_id: str
    proc: Path = Path("/proc")

    def start_ticks(self, pid: int) -> int | None:
        """Return when process `pid` began; None if there is none, or it has ended."""
        try:
            text = (self.proc / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            return None
        fields = text.rpartition(")")[2].split()
        return None if fields[0] in ("Z", "X") else int(fields[19])  # a zombie has ended; it waits to be reaped


def this_machine() -> Machine:
    """Return the machine that this process runs on."""
    return Machine(socket.gethostname(), boot_id())


def socket_place(environ: Mapping[str, str], *, tmp: Path = Path("/tmp")) -> SocketPlace:  # noqa: S108
    """Return the user's socket. Raises :class:`PlaceRefused` if its directory cannot be trusted. Creates nothing."""
    named = environ.get("FFDL_SOCKET")
    if named:
        return SocketPlace(_fitting(Path(named).absolute()), named=True)
    runtime = environ.get("XDG_RUNTIME_DIR")
    if runtime and _is_own_directory(Path(runtime)):
        directory = Path(runtime) / "ffdl"
        check_directory(directory, closed=False)
    else:
        directory = tmp / f"ffdl-{os.getuid()}"
        check_directory(directory, closed=True)
    return SocketPlace(_fitting(directory / _socket_name(environ)), named=False)


def _socket_name(environ: Mapping[str, str]) -> str:
    """The plain name for the default state directory, also where that is named (a daemon started on demand)."""
    state_dir = environ.get("FFDL_STATE_DIR", "")
    default = Path(base_directory(environ, "XDG_STATE_HOME", ".local/state"), "ffdl")
    if not state_dir or os.path.realpath(state_dir) == os.path.realpath(default):
        return SOCKET_NAME
    import hashlib

    digest = hashlib.sha256(os.path.realpath(state_dir).encode(errors="surrogateescape")).hexdigest()
    return f"ffdl-{digest[:12]}.sock"


def check_directory(directory: Path, *, closed: bool) -> None:
    """Refuse a directory that another user made or could write to; one that does not exist is fine.

    `closed`: the mode must be 0700, else only others must not be able to write. Raises :class:`PlaceRefused`, with
    exit code 77 where trying again does not help.
    """
    try:
        found = directory.lstat()
    except FileNotFoundError:
        return
    except OSError as error:
        raise PlaceRefused(f"{directory} cannot be looked at: {error.strerror}") from error
    if stat.S_ISLNK(found.st_mode):
        fault = "is a symbolic link"
    elif not stat.S_ISDIR(found.st_mode):
        fault = "is not a directory"
    else:
        fault = find_other_writers(found, (os.getuid(),), 0o077 if closed else 0o022, "in")
    if not fault:
        return
    raise PlaceRefused(
        f"{directory} {fault}; the daemon's socket is not looked for there",
        "remove it if it is yours; else name a directory of your own: FFDL_SOCKET=$HOME/.ffdl/ffdl.sock",
        ExitCode.NOT_ALLOWED,
    )


def find_other_writers(found: os.stat_result, owners: Collection[int], bits: int = 0o022, verb: str = "write") -> str:
    """Return how users other than `owners` can change a file or directory; "" if they cannot.

    A group with write permission counts as other users, as with StrictModes of sshd_config(5). Even the group of one
    user may get members, and with an ACL the group bits are its mask (acl(5)). `bits` are the permissions that other
    users must not have, and `verb` names them.
    """
    mode = stat.S_IMODE(found.st_mode)
    if found.st_uid not in owners or found.st_uid == _UNMAPPED:
        return f"belongs to user {found.st_uid}, not to you"
    return f"has mode {mode:04o}, which lets others {verb}" if mode & bits else ""


def check_own_directory(directory: Path, key: str = "state_dir") -> None:
    """Refuse a directory of the setting `key` that another user created or can write to. A missing directory is
    accepted.

    A link is followed, because a state directory may be on another file system. Raises :class:`LockUnreadable`, with
    exit code 77 if a retry does not help.
    """
    try:
        found = directory.stat()
    except FileNotFoundError:
        return
    except OSError as error:
        raise _unreadable(directory / LOCK_NAME, error) from error
    if not stat.S_ISDIR(found.st_mode):
        raise _unreadable(directory / LOCK_NAME, NotADirectoryError())
    if fault := find_other_writers(found, (os.geteuid(),)):
        is_own = found.st_uid == os.geteuid()
        name_own = f"name a directory of your own by FFDL_{key.upper()}"
        cure = f"chmod go-w {shlex.quote(str(directory))}" if is_own else name_own
        raise LockUnreadable(f"{directory} ({key}) {fault}", cure, ExitCode.NOT_ALLOWED)


def make_own_directory(directory: Path, key: str = "state_dir") -> None:
    """Make a directory with mode 0700 unless it exists, and check it. Raises OSError, LockUnreadable."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    check_own_directory(directory, key)


def _is_own_directory(path: Path) -> bool:
    try:
        found = path.stat()
    except OSError:
        return False
    return path.is_absolute() and stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()


def _fitting(path: Path) -> Path:
    if len(os.fsencode(path)) > MAX_SOCKET_PATH:
        raise PlaceRefused(
            f"the socket's path {path} has more than {MAX_SOCKET_PATH} bytes, the most that Unix sockets take",
            "set FFDL_SOCKET to a shorter path",
            ExitCode.USAGE,
        )
    return path


def name_directory(state_dir: Path) -> str:
    """Return what distinguishes a state directory from its copies, also after a move. Raises OSError."""
    found = state_dir.stat()
    return f"{found.st_dev}:{found.st_ino}"


def is_copied(lock: DaemonLock, state_dir: Path) -> bool:
    """Whether the lock in `state_dir` was written in another directory of this host. Raises OSError.

    A file system that is mounted again has another device number, and on another host the inode numbers may be others,
    too (FUSE, CIFS): neither proves a copy, and two daemons on one database destroy it.
    """
    if not lock.directory or lock.host != socket.gethostname():
        return False
    return lock.directory.rpartition(":")[2] != name_directory(state_dir).rpartition(":")[2]


def read_lock(state_dir: Path) -> DaemonLock | None:
    """Return the content of the lock file; None if it does not exist. Raises :class:`LockUnreadable`, also for a state
    directory that other users can write to. Raises :class:`DirectoryCopied` for the lock file of another directory: a
    copy has the jobs of the original, which may have run since."""
    check_own_directory(state_dir)
    lock = read_lock_file(state_dir)
    try:
        if lock is None or not is_copied(lock, state_dir):
            return lock
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _unreadable(state_dir / LOCK_NAME, error) from error
    raise DirectoryCopied(state_dir / LOCK_NAME)


def read_lock_file(state_dir: Path) -> DaemonLock | None:
    """As :func:`read_lock`, of whichever directory it was written in."""
    path = state_dir / LOCK_NAME
    try:
        text = read_whole(str(path), SMALL_BYTES)
        if not text.strip():
            return None  # a daemon has just created it, or died before it wrote
        lock = from_plain(DaemonLock, parse_json(text))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _unreadable(path, error) from error
    except (ValueError, CodecError) as error:
        why = error.why if isinstance(error, DamagedFile) else error
        raise LockUnreadable(f"{path} is not a daemon's lock file: {why}", _REMOVE) from error
    if not _HOST.fullmatch(lock.host):
        raise LockUnreadable(f"{path} names a host {lock.host[:60]!r}, which is none", _REMOVE)
    return lock


def _unreadable(path: Path, error: OSError) -> LockUnreadable:
    """Whose the state directory is, or what it is instead of one."""
    directory = path.parent
    if isinstance(error, NotADirectoryError):
        return LockUnreadable(f"the state directory {directory} is not a directory", _NAME_YOURS, ExitCode.NO_INPUT)
    if isinstance(error, PermissionError):
        try:
            owner = directory.stat().st_uid
        except OSError:
            owner = -1
        whose = "" if owner in (-1, os.getuid()) else f": it belongs to user {owner}"
        message = f"the state directory {directory} is closed to you{whose}"
        return LockUnreadable(message, "chmod u+rwx it" if owner == os.getuid() else _NAME_YOURS, ExitCode.NOT_ALLOWED)
    return LockUnreadable(f"{path} cannot be read: {error.strerror}", "look at the file system; then try again")


def judge_holder(lock: DaemonLock, machine: Machine) -> Holder:
    """Whether the holder lives. On the same host it is dead when the boot, the process or its start time differ."""
    if lock.host != machine.host:
        return Holder.ELSEWHERE
    if lock.boot_id != machine.boot_id or machine.start_ticks(lock.pid) != lock.start_ticks:
        return Holder.DEAD
    return Holder.ALIVE_HERE
