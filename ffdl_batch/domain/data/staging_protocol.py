"""The protocol of the staging program: its tasks, its stores, and the lines that it prints. Runs on Python 3.9.

The node controller writes a :class:`StageTask` into a file (0600), starts ``python -m ffdl_batch.staging FILE`` and
reads one JSON value per line from it. The last one is :class:`Done` or :class:`Failed`. None of these has a credential:
a task names secrets, whose values are in `secrets_file`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import Enum
from typing import Dict, Mapping, Optional, Tuple, Type, Union

from ffdl_batch.domain.codec import CodecError, from_plain, to_plain
from ffdl_batch.domain.data.store_kinds import StoreAddress


class StageTaskError(ValueError):
    """This release cannot do the task."""


class Direction(str, Enum):
    """Whether a store is read or written."""

    IN = "in"
    OUT = "out"


@dataclass(frozen=True)
class Transfer:
    """What is below `prefix` in the store, and the absolute directory `local`; one is copied to the other.

    `prefix` is the name of a directory, or of one object if the store is read. `only` are patterns of names below it
    (``*`` matches ``/``, too); none = all. `optional`: there may be nothing below the prefix; the cache is not used.
    `link`: no process writes in `local`, so it may become a link to a tree in the cache; if it has files already, they
    are used. `roots` are absolute paths by which the programs that wrote the directory may know it. With any, links
    that stay in the directory, modes and empty directories are kept.
    """

    store: StoreAddress
    prefix: str
    local: str
    only: Tuple[str, ...] = ()
    optional: bool = False
    link: bool = False
    roots: Tuple[str, ...] = ()


@dataclass(frozen=True)
class Cache:
    """Where downloads are kept for other jobs of the same user on this node, or at this site.

    `limit_bytes` is for all users (0 = half of the file system). A process that fills an entry and gives no sign of
    life for `stale_s` counts as dead. A process that waits continues without the cache if the other one makes no
    progress for `patience_s`.
    """

    directory: str
    limit_bytes: int = 0
    stale_s: float = 60.0
    patience_s: float = 600.0


MIB = 1 << 20


@dataclass(frozen=True)
class StageTask:
    """One call of the staging program.

    `secrets_file` is JSON, name to value ("" = no secrets). `state_dir` is a directory on this node that is the task's
    own: what was done before is remembered there. `rate_line_s` is the time between two lines of progress.
    `keep_newer`: what was written to the store later than the local file was stays (only on the way out). `replaces`:
    local files that this task has not brought, and that are not what the store has, are replaced (only on the way in);
    else nothing is brought where there is one. `pause_s` is
    the first pause before another try; each one is twice as long as the one before. Files larger than `part_bytes` move
    in parts. `rest_s` (only on the way out, 0 = all goes): another run follows, so what is written now may wait for it.
    Large files go when they have rested for so long, or after ten minutes all the same, others once in a run; and what
    the journal says that the store has is believed, where it says anything.
    Another process at work on the same task is waited for `wait_s`. `cache` is for the way in; without one
    all comes from the store.
    """

    direction: Direction
    transfers: Tuple[Transfer, ...]
    state_dir: str
    secrets_file: str = ""
    parallel: int = 8
    rate_line_s: float = 10.0
    keep_newer: bool = False
    replaces: bool = True
    tries: int = 5
    pause_s: float = 1.0
    part_bytes: int = 8 * MIB
    wait_s: float = 0.0
    cache: Optional[Cache] = None
    rest_s: float = 0.0


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
            raise StageTaskError("a store's address holds a user's name or password; name secrets instead")
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
    TASK = "task"
    LIBRARY = "library"
    INTERNAL = "internal"
    """A defect of the program."""


EXIT_STATUS: Mapping[FaultClass, int] = {
    FaultClass.CORRUPT: 65,
    FaultClass.MISSING: 66,
    FaultClass.LIBRARY: 69,
    FaultClass.INTERNAL: 70,
    FaultClass.FULL: 73,
    FaultClass.NETWORK: 75,
    FaultClass.REFUSED: 76,
    FaultClass.CREDENTIALS: 77,
    FaultClass.TASK: 78,
}
"""Exit status of the program, as in sysexits.h. It is 0 after success, and 128 + the signal that ended it."""


def fault_code(kind: FaultClass, direction: Direction) -> str:
    """Return the error code of a job that fails for this reason."""
    if direction is Direction.OUT:
        return "S303"
    if kind in (FaultClass.LIBRARY, FaultClass.INTERNAL):
        return "S306"
    return "C103" if kind in (FaultClass.CREDENTIALS, FaultClass.MISSING, FaultClass.TASK) else "S302"


SMALL_BYTES = 1 << 20
"""Smaller files cost more for their number than for their bytes."""


@dataclass(frozen=True)
class Progress:
    """How far it is. `files` and `bytes` include what was in place before. `rate` is that of moving bytes, in bytes/s.
    `early`: so little has moved that the rate cannot predict the remaining time. `files_rate` is in completed files/s:
    the time of many small files depends on their number (0 from older releases)."""

    files: int
    files_total: int
    bytes: int
    bytes_total: int
    rate: float
    early: bool = False
    files_rate: float = 0.0

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
    """Something failed and is tried again after the pause. `cause` is `why` without the name ("" from older releases):
    simultaneous parts and files fail for the same cause."""

    why: str
    in_s: float
    cause: str = ""


@dataclass(frozen=True)
class Note:
    """Something that a user should know, such as what is left out."""

    why: str


@dataclass(frozen=True)
class Entry:
    """An object below the prefix, of a listing. `size` is -1 and `mtime` 0 if the store does not report them."""

    name: str
    size: int
    mtime: float


@dataclass(frozen=True)
class Cached:
    """The data of a transfer (its index in the task) are in the cache: `tree` of `bytes`. `filled`: by this process,
    else they were there.

    The process holds a shared lock of `lock` until its end. A process that continues to use the tree takes its own lock
    and checks that `tree` still exists; then it is not removed.
    """

    transfer: int
    key: str
    tree: str
    lock: str
    bytes: int
    filled: bool


@dataclass(frozen=True)
class Done:
    """Everything is in place: `files` files, `kept` of which were in place before; `bytes` have moved. `skipped` were
    left out. `later` were being written, and are not in place as they are now."""

    files: int
    bytes: int
    skipped: int
    seconds: float
    kept: int = 0
    later: int = 0


@dataclass(frozen=True)
class Failed:
    """The end without success. `cause` is the message without what helps ("" from older releases)."""

    code: str
    message: str
    class_: FaultClass
    cause: str = ""


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
