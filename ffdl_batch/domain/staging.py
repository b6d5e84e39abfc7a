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


@dataclass(frozen=True)
class StoreAddress:
    """A store and the container (bucket) in it.

    `credentials` maps a field to the name of a secret. Fields: ``user_name`` and ``password`` (s3: access key and
    secret key; swift and http: user and password), ``session_token`` (s3), ``token`` (http, gcs), ``service_account``
    (gcs, the text of its JSON file). None at all means that the store is asked as anybody.

    `options`: ``path_style`` (s3: ``true``, the default with an endpoint, or ``false``), ``ca_file``, ``timeout_s``
    (of a connection on which nothing comes), ``domain_name`` and ``project_id`` (swift). `container` of a ``file``
    store is a directory, and of ``http`` it is empty.
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
    matches ``/``, too) of names below it, none = all.
    """

    store: StoreAddress
    prefix: str
    local: str
    only: Tuple[str, ...] = ()


MIB = 1 << 20


@dataclass(frozen=True)
class StageTask:
    """One call of the staging program.

    `secrets_file` is JSON, name to value ("" = no secrets). `state_dir` is a directory on this node that is the task's
    own: what was done before is remembered there. `rate_line_s` is the time between two lines of progress.
    `keep_newer`: what was written to the store later than the local file was stays (only on the way out). `pause_s` is
    the first pause before another try; each one is twice as long as the one before. Files larger than `part_bytes` move
    in parts.
    """

    direction: Direction
    transfers: Tuple[Transfer, ...]
    state_dir: str
    secrets_file: str = ""
    parallel: int = 8
    rate_line_s: float = 10.0
    keep_newer: bool = False
    tries: int = 5
    pause_s: float = 1.0
    part_bytes: int = 16 * MIB


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
    if kind in (FaultClass.TASK, FaultClass.LIBRARY, FaultClass.INTERNAL):
        return "S101"
    if direction is Direction.OUT:
        return "S303"
    return "C103" if kind in (FaultClass.CREDENTIALS, FaultClass.MISSING) else "S302"


@dataclass(frozen=True)
class Progress:
    """How far it is. `files` and `bytes` count what was there before, too; `rate` is of what moves, in bytes/s."""

    files: int
    files_total: int
    bytes: int
    bytes_total: int
    rate: float


@dataclass(frozen=True)
class Retry:
    """Something failed and is tried again after the pause."""

    why: str
    in_s: float


@dataclass(frozen=True)
class Note:
    """Something that a person should know: what is left out, for one."""

    why: str


@dataclass(frozen=True)
class Done:
    """All is in place: `files` of them, `kept` of which were already; `bytes` have moved. `skipped` were left out."""

    files: int
    bytes: int
    skipped: int
    seconds: float
    kept: int = 0


@dataclass(frozen=True)
class Failed:
    """The end without success."""

    code: str
    message: str
    class_: FaultClass


Line = Union[Progress, Retry, Note, Done, Failed]
_EVENTS: Dict[str, Type[Line]] = {
    "progress": Progress,
    "retry": Retry,
    "note": Note,
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
