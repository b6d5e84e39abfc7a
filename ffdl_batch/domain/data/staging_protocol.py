"""The protocol of the staging program: its tasks, its stores, and the lines that it prints. Runs on Python 3.9.

The node controller writes a :class:`StageTask` into a file (0600), starts ``python -m ffdl_batch.staging FILE`` and
reads one JSON value per line from it. The last one is :class:`Done` or :class:`Failed`. None of these has a credential:
a task names secrets, whose values are in `secrets_file`.
"""

from __future__ import annotations

import json
from enum import Enum
from typing import Dict, Mapping, Optional, Tuple, Type, Union

from ffdl_batch.domain.codec import CodecError, from_plain, to_plain
from ffdl_batch.domain.data.store_kinds import StoreAddress
from ffdl_batch.host.fast_dataclass import dataclass


class StageTaskError(ValueError):
    """This release cannot do the task."""


class Direction(str, Enum):
    """Whether a store is read or written."""

    IN = "in"
    OUT = "out"


@dataclass(frozen=True)
class Transfer:
    """A directory tree that is copied between a store and this node."""

    store: StoreAddress
    prefix: str
    """A directory in the store, or one object if the store is read."""
    local: str
    """Absolute path of the directory."""
    only: Tuple[str, ...] = ()
    """Patterns of names below the prefix (``*`` matches ``/``, too); none = all."""
    optional: bool = False
    """Whether the prefix may be empty; the cache is then not used."""
    link: bool = False
    """Whether `local` may become a link to a tree in the cache, because no process writes in it; if it has files
    already, they are used."""
    roots: Tuple[str, ...] = ()
    """Absolute paths under which the programs that wrote the directory may know it. With any, links that stay in the
    directory, modes and empty directories are kept."""


@dataclass(frozen=True)
class Cache:
    """Where downloads are kept for other jobs of the same user on this node, or at this site."""

    directory: str
    limit_bytes: int = 0
    """For all users; 0 = half of the file system."""
    stale_s: float = 60.0
    """A process that fills an entry and gives no sign of life for so long counts as dead."""
    patience_s: float = 600.0
    """A process that waits continues without the cache if the other one makes no progress for so long."""


MIB = 1 << 20


@dataclass(frozen=True)
class StageTask:
    """One call of the staging program."""

    direction: Direction
    transfers: Tuple[Transfer, ...]
    state_dir: str
    """A directory of the task's own on this node; it records what was done before."""
    secrets_file: str = ""
    """JSON, name → value; "" = no secrets."""
    parallel: int = 8
    rate_line_s: float = 10.0
    """Time between two lines of progress."""
    keep_newer: bool = False
    """Whether objects that were written later than the local file are kept (OUT only)."""
    brought_dir: str = ""
    """State directory of the task that brought files into the same directories (OUT only); "" = none. A file that is
    still as it was brought replaces no object: another learner may have stored a newer one meanwhile."""
    replaces: bool = True
    """Whether local files that this task has not brought, and that differ from the store, are replaced (IN only); if
    not, one such file prevents the transfer."""
    most_file_bytes: int = 0
    """The maximum size of a file; if one is larger, the task fails (IN only). 0 = no limit."""
    tries: int = 5
    pause_s: float = 1.0
    """The first pause before another try; each one is twice as long as the one before."""
    part_bytes: int = 8 * MIB
    """Larger files are transferred in parts."""
    wait_s: float = 0.0
    """How long to wait for another process that works on the same task."""
    cache: Optional[Cache] = None
    """IN only; None = all is read from the store."""
    rest_s: float = 0.0
    """OUT only; 0 = everything is transferred. Otherwise another run follows, so files that are being written may wait
    for it: large files are transferred when they have not changed for so long, or after ten minutes all the same,
    others once in a run. What the journal records of the store is taken as true."""


def encode_task(task: StageTask) -> str:
    """Return the text of the task's file."""
    return json.dumps(to_plain(task), indent=1) + "\n"


def decode_task(text: str) -> StageTask:
    """Return the task. Raises StageTaskError."""
    try:
        task = from_plain(StageTask, json.loads(text))
    except (CodecError, ValueError) as error:
        raise StageTaskError(f"the task cannot be read: {error}") from error
    for transfer in task.transfers:
        if not transfer.local.startswith("/"):
            raise StageTaskError(f"the directory {transfer.local!r} is not absolute")
        if "@" in transfer.store.endpoint:
            raise StageTaskError("a store's address contains a user's name or password; name secrets instead")
    if not task.state_dir.startswith("/"):
        raise StageTaskError(f"the state's directory {task.state_dir!r} is not absolute")
    if task.parallel < 1 or task.tries < 1 or task.part_bytes < 1:
        raise StageTaskError("parallel, tries and part_bytes are at least 1")
    if task.cache is not None:
        if task.direction is not Direction.IN:
            raise StageTaskError("a cache is for the way in")
        if not task.cache.directory.startswith("/"):
            raise StageTaskError(f"the cache {task.cache.directory!r} is not absolute")
    return task


class FaultClass(str, Enum):
    """Why staging failed, classified by what helps."""

    CREDENTIALS = "credentials"
    MISSING = "missing"
    FULL = "full"
    NETWORK = "network"
    """Or the store itself failed. It lasted longer than all attempts."""
    CORRUPT = "corrupt"
    """The data never matched what the store reports, or changed each time while they were read."""
    REFUSED = "refused"
    """The store or this machine refuses it, and would refuse it again."""
    UNREADABLE = "unreadable"
    """Local files may not be read by their own user (OUT only). All others are stored."""
    TOO_LARGE = "too_large"
    """A file has more bytes than the task permits (IN only)."""
    TASK = "task"
    LIBRARY = "library"
    INTERNAL = "internal"
    """A defect of the program."""


EXIT_STATUS: Mapping[FaultClass, int] = {
    FaultClass.CORRUPT: 65,
    FaultClass.MISSING: 66,
    FaultClass.LIBRARY: 69,
    FaultClass.INTERNAL: 70,
    FaultClass.UNREADABLE: 71,
    FaultClass.TOO_LARGE: 72,
    FaultClass.FULL: 73,
    FaultClass.NETWORK: 75,
    FaultClass.REFUSED: 76,
    FaultClass.CREDENTIALS: 77,
    FaultClass.TASK: 78,
}
"""Exit status of the program, as in sysexits.h. It is 0 after success, and 128 + the signal that ended it."""


UNREADABLE_CODE = "C205"
"""Error code of a job whose results cannot all be stored because the user, or a learner, denies the access to them."""


def fault_code(kind: FaultClass, direction: Direction) -> str:
    """Return the error code of a job that fails for this reason."""
    if direction is Direction.OUT:
        return UNREADABLE_CODE if kind is FaultClass.UNREADABLE else "S303"
    if kind in (FaultClass.LIBRARY, FaultClass.INTERNAL):
        return "S306"
    return "C103" if kind in (FaultClass.CREDENTIALS, FaultClass.MISSING, FaultClass.TASK) else "S302"


SMALL_BYTES = 1 << 20
"""Smaller files cost more for their number than for their bytes."""


@dataclass(frozen=True)
class Progress:
    """How far the transfer is. `files` and `bytes` include what was in place before."""

    files: int
    files_total: int
    bytes: int
    bytes_total: int
    rate: float
    """Of moving bytes, in bytes/s."""
    early: bool = False
    """Whether so little has moved that the rate cannot predict the remaining time."""
    files_rate: float = 0.0
    """Completed files/s: the time of many small files depends on their number. 0 from older releases."""

    @property
    def left_s(self) -> Optional[float]:
        """Return the remaining seconds; None if nothing is left, or if it cannot be predicted."""
        rest, files = self.bytes_total - self.bytes, self.files_total - self.files
        if self.early or self.rate <= 0 or rest <= 0:
            return None
        by_bytes = rest / self.rate
        if self.files_rate <= 0 or files <= 0 or max(rest / files, self.rate / self.files_rate) > SMALL_BYTES:
            return by_bytes
        return max(by_bytes, files / self.files_rate)


@dataclass(frozen=True)
class Retry:
    """Something failed and is tried again after the pause."""

    why: str
    in_s: float
    cause: str = ""
    """`why` without the name: simultaneous parts and files fail for the same cause. "" from older releases."""


@dataclass(frozen=True)
class Note:
    """Something that a user should know, such as what is left out."""

    why: str


@dataclass(frozen=True)
class Entry:
    """An object below the prefix, of a listing."""

    name: str
    size: int
    """-1 = the store does not report it."""
    mtime: float
    """0 = the store does not report it."""


@dataclass(frozen=True)
class Cached:
    """The data of a transfer are in the cache. The process holds a shared lock of `lock` until its end. A process that
    continues to use the tree takes its own lock and checks that `tree` still exists; then it is not removed."""

    transfer: int
    """Index in the task."""
    key: str
    tree: str
    lock: str
    bytes: int
    """Size of the tree."""
    filled: bool
    """Whether this process filled the entry; else the data were in the cache before."""


@dataclass(frozen=True)
class Done:
    """Everything is in place."""

    files: int
    bytes: int
    """Bytes that were transferred."""
    skipped: int
    """Files that were left out."""
    seconds: float
    kept: int = 0
    """Files that were in place before, among `files`."""
    later: int = 0
    """Files that were being written, and are not in place in their present state."""


@dataclass(frozen=True)
class Failed:
    """The end without success."""

    code: str
    message: str
    class_: FaultClass
    cause: str = ""
    """The message without the cure; "" from older releases."""


Line = Union[Progress, Retry, Note, Entry, Cached, Done, Failed]
_EVENTS: Dict[str, Type[Line]] = {
    "progress": Progress,
    "retry": Retry,
    "note": Note,
    "entry": Entry,
    "cached": Cached,
    "done": Done,
    "failed": Failed,
}
_NAMES: Dict[Type[Line], str] = {kind: name for name, kind in _EVENTS.items()}


def write_line(line: Line) -> str:
    """Return the line with its line feed."""
    return json.dumps({"event": _NAMES[type(line)], **to_plain(line)}) + "\n"


def read_line(text: str) -> Optional[Line]:
    """Return the line; None if it is not one of these (of a newer release, or cut off)."""
    try:
        plain = json.loads(text)
        kind = _EVENTS.get(plain["event"])
        return None if kind is None else from_plain(kind, plain)
    except (ValueError, TypeError, KeyError):
        return None
