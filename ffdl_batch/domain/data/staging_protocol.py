"""What the staging program is told and what it says: tasks, stores, and its lines. Runs on Python 3.9.

The node controller writes a :class:`StageTask` into a file (0600), starts ``python -m ffdl_batch.staging FILE`` and
reads one JSON value per line from it, the last of which is :class:`Done` or :class:`Failed`. No credential is in any of
these: a task names secrets, whose values stand in `secrets_file`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from enum import Enum
from typing import Dict, Mapping, Optional, Tuple, Type, Union

from ffdl_batch.domain.codec import CodecError, from_plain, to_plain


class StageTaskError(ValueError):
    """A task that this release cannot do."""


class Direction(str, Enum):
    """Whether a store is read or written."""

    IN = "in"
    OUT = "out"


class StoreKind(str, Enum):
    """How a store is spoken to."""

    S3 = "s3"
    SWIFT = "swift"
    GCS = "gcs"
    HTTP = "http"
    FILE = "file"
    FSSPEC = "fsspec"
    """By fsspec, whose protocol the option `protocol` names."""


@dataclass(frozen=True)
class StoreAddress:
    """A store and the container (bucket) in it.

    `credentials` maps a field to the name of a secret. Fields: ``user_name`` and ``password`` (s3: access key and
    secret key; swift and http: user and password), ``session_token`` (s3), ``token`` (http, gcs), ``service_account``
    (gcs, the text of its JSON file), ``private_key`` (fsspec by sftp, its text; `password` is the key's then). Other
    fields are options of the library that fsspec uses. None at all means that the store is asked as anybody, and by
    sftp with the user's own keys.

    `options`: ``path_style`` (s3: ``true``, the default with an endpoint, or ``false``), ``ca_file``, ``timeout_s``
    (of a connection on which nothing comes), ``domain_name`` and ``project_id`` (swift), ``protocol`` (fsspec),
    ``known_hosts`` and ``key_file`` (sftp: files); fsspec's library gets the others. `endpoint` of ``fsspec`` is a host
    and port. `container` of a ``file`` store is a directory, and of ``http`` it is empty; of sftp it is a directory,
    below the user's own where it does not begin with a slash.
    """

    kind: StoreKind
    endpoint: str = ""
    region: str = ""
    container: str = ""
    options: Mapping[str, str] = field(default_factory=dict)
    credentials: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Transfer:
    """What lies below `prefix` in the store, and the absolute directory `local`; one is brought to the other.

    A `prefix` is a directory's name. On the way in it may be that of one object, too. `only` are patterns (``*``
    matches ``/``, too) of names below it, none = all. `optional`: there may be nothing below the prefix; it goes past
    the cache. `link`: nobody writes in `local`, so it may become a link to a tree in the cache; where it has files
    already, they are used. `roots` are absolute paths by which the programs that wrote the directory may know it. With
    any, links that stay in the directory, modes and empty directories are kept.
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
    """Where what comes is kept for whoever of the same user wants the same on this node, or at this site.

    `limit_bytes` is of all users (0 = half of the file system). Who fills an entry and gives no sign for `stale_s` is
    taken for dead; who waits for one that gives signs and makes no progress for `patience_s` goes on without the cache.
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
    """The text of the task's file."""
    return json.dumps(to_plain(task), indent=1) + "\n"


def decode_task(text: str) -> StageTask:
    """The task that the text is. Raises StageTaskError."""
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
    """Why staging failed, by what helps."""

    CREDENTIALS = "credentials"
    MISSING = "missing"
    FULL = "full"
    NETWORK = "network"
    """Or the store's own trouble: it outlasted all tries."""
    CORRUPT = "corrupt"
    """What came was never what the store says it has, or changed each time while it was read."""
    REFUSED = "refused"
    """The store or this machine refuses it, and would again."""
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
"""Of the program, as in sysexits.h; 0 when all was done, and 128 + the signal that ended it."""


def fault_code(kind: FaultClass, direction: Direction) -> str:
    """The error code of a job that fails for it."""
    if direction is Direction.OUT:
        return "S303"
    if kind in (FaultClass.LIBRARY, FaultClass.INTERNAL):
        return "S306"
    return "C103" if kind in (FaultClass.CREDENTIALS, FaultClass.MISSING, FaultClass.TASK) else "S302"


SMALL_BYTES = 1 << 20
"""Of a file that costs more for being one than for its bytes."""


@dataclass(frozen=True)
class Progress:
    """How far it is. `files` and `bytes` count what was there before, too; `rate` is of what moves, in bytes/s.
    `early`: so little has moved that the rate says nothing of the time left. `files_rate` is of files that come into
    their place, in files/s: many small ones take as long as they are many (0 of older releases)."""

    files: int
    files_total: int
    bytes: int
    bytes_total: int
    rate: float
    early: bool = False
    files_rate: float = 0.0

    @property
    def left_s(self) -> Optional[float]:
        """How long it takes still; None where nothing is left, or nobody can tell."""
        rest, files = self.bytes_total - self.bytes, self.files_total - self.files
        if self.early or self.rate <= 0 or rest <= 0:
            return None
        by_bytes = rest / self.rate
        if self.files_rate <= 0 or files <= 0 or max(rest / files, self.rate / self.files_rate) > SMALL_BYTES:
            return by_bytes
        return max(by_bytes, files / self.files_rate)


@dataclass(frozen=True)
class Retry:
    """Something failed and is tried again after the pause. `cause` is `why` without the name of what it befell ("" of
    older releases): parts and files that move at once fail for the same one."""

    why: str
    in_s: float
    cause: str = ""


@dataclass(frozen=True)
class Note:
    """Something that a person should know: what is left out, for one."""

    why: str


@dataclass(frozen=True)
class Entry:
    """An object below the prefix, of a listing. `size` is -1 and `mtime` 0 where the store does not tell."""

    name: str
    size: int
    mtime: float


@dataclass(frozen=True)
class Cached:
    """What a transfer (its place in the task) brings lies in the cache: `tree` of `bytes`. `filled`: by this process,
    else it was there.

    The process holds a shared lock of `lock` until its end. Who goes on using the tree takes one of its own, and looks
    whether `tree` is there still; then nobody removes it.
    """

    transfer: int
    key: str
    tree: str
    lock: str
    bytes: int
    filled: bool


@dataclass(frozen=True)
class Done:
    """All is in place: `files` of them, `kept` of which were already; `bytes` have moved. `skipped` were left out.
    `later`: that were being written, and are not in place as they are now."""

    files: int
    bytes: int
    skipped: int
    seconds: float
    kept: int = 0
    later: int = 0


@dataclass(frozen=True)
class Failed:
    """The end without success. `cause` is the message without what helps ("" of older releases)."""

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
    """With its line feed."""
    return json.dumps({"event": _NAMES[type(line)], **to_plain(line)}) + "\n"


def read_line(text: str) -> Optional[Line]:
    """None for what is none of these lines (a newer release's, or one that was cut off)."""
    try:
        plain = json.loads(text)
        kind = _EVENTS.get(plain["event"])
        return None if kind is None else from_plain(kind, plain)
    except (ValueError, TypeError, KeyError):
        return None
