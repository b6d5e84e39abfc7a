"""Failures between a store and a directory, classified by what helps; and retries after temporary ones."""

from __future__ import annotations

import errno
import os
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from ffdl_batch.domain.data.staging_protocol import FaultClass
from ffdl_batch.domain.data.store_kinds import StoreAddress, StoreKind
from ffdl_batch.domain.number_text import counted
from ffdl_batch.host.backoff import growing_pause
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.host.file_attributes import shown as shown  # noqa: PLC0414 - other modules of staging have it from here
from ffdl_batch.host.permissions import explain_denial

_CURES = {
    FaultClass.CREDENTIALS: "check the store's credentials, and that they may use this bucket",
    FaultClass.MISSING: "check the names of bucket and key",
    FaultClass.FULL: "free some space, or request a larger scratch directory",
    FaultClass.NETWORK: "check the address and whether the store runs",
    FaultClass.CORRUPT: "store the object again, and do not write it while it is read",
    FaultClass.REFUSED: "ask the administrators of the store or of this machine",
    FaultClass.UNREADABLE: "make it readable, or leave it out",
    FaultClass.TOO_LARGE: "copy it without a limit of its size",
    FaultClass.TASK: "correct the store's settings",
    FaultClass.INTERNAL: "this is a fault of the platform: report it to its administrators",
    FaultClass.LIBRARY: "install the named extra of ffdl-batch on this machine",
}
_CURES_WITHOUT_BUCKETS = {
    FaultClass.CREDENTIALS: "check the store's credentials, and what they may read and write there",
    FaultClass.MISSING: "check the path",
    FaultClass.CORRUPT: "store the file again, and do not write it while it is read",
}
"""For stores that have neither buckets nor keys."""
KEPT = "what has moved is kept for the next attempt"
FULL_ERRORS = (errno.ENOSPC, errno.EDQUOT)
ERRORS_OF_ONE = (errno.EACCES, errno.EPERM, errno.EIO, errno.EBADMSG, errno.EUCLEAN, errno.ESTALE)
"""Errors that concern one file. After others, the next file would have the same error."""
_OF_DIRECTORIES = ("file", "sftp", "ssh", "smb", "ftp")


class Fault(Exception):
    """The task fails. `cause` is a part of a sentence without store and key; with `cure` "", the usual cure is
    shown."""

    def __init__(self, kind: FaultClass, cause: str, key: str = "", cure: str = "") -> None:
        super().__init__(cause)
        self.kind, self.cause, self.key, self.cure = kind, cause, key, cure
        self.store: StoreAddress | None = None

    def placed(self) -> str:
        """Return store, bucket, key and cause."""
        place = described(self.store, self.key) if self.store else ""
        return f"{place}: {self.cause}" if place else self.cause

    def sentence(self) -> str:
        """Return the message for people: store, bucket, key, cause and cure."""
        return f"{self.placed()}; {self.cure or self.usual_cure()}"

    def usual_cure(self) -> str:
        """Return what usually helps against faults of this class at such a store."""
        if self.store is not None and self.store.kind is StoreKind.FILE and self.kind is FaultClass.REFUSED:
            return "check who is allowed to read and write there"
        has_buckets = self.store is None or _protocol(self.store) not in (*_OF_DIRECTORIES, StoreKind.HTTP.value)
        return _CURES[self.kind] if has_buckets else _CURES_WITHOUT_BUCKETS.get(self.kind, _CURES[self.kind])


class Denied(Fault):
    """The store denies the access to one object. It may give others."""

    def __init__(self, cause: str, key: str) -> None:
        super().__init__(FaultClass.CREDENTIALS, cause, key)


@contextmanager
def located_at(store: StoreAddress) -> Iterator[None]:
    """Name this store in faults of the body."""
    try:
        yield
    except Fault as fault:
        fault.store = fault.store or store
        raise


class TemporaryFailure(Exception):
    """A failure that may be over at the next attempt."""


class ObjectChanged(Exception):
    """The object, or the file, has changed since it was looked at."""


class Mismatch(Exception):
    """The received data differ from what the store reports."""


class UnreadableObject(Exception):
    """The store's file cannot be read, for a reason that concerns only this file. `error` is the reason."""

    def __init__(self, error: OSError) -> None:
        super().__init__(error.strerror or str(error))
        self.error = error


class Skip(Exception):
    """One name is left out. The text says why."""


class UnknownUpload(Exception):
    """The store no longer knows the multipart upload."""


class Stopped(Exception):
    """Another worker failed."""


def described(store: StoreAddress, key: str = "") -> str:
    """Return the store for messages."""
    kind = _protocol(store)
    of_directories = kind in _OF_DIRECTORIES
    is_here = store.kind is StoreKind.FILE and bool(store.container)
    parts = [] if is_here else [f"{kind} store {store.endpoint}".strip()]
    if store.container:
        parts.append(f"{'directory' if of_directories else 'bucket'} {shown(store.container)}")
    if key:
        parts.append(f"{'file' if of_directories or store.kind is StoreKind.HTTP else 'key'} {shown(key)}")
    return ", ".join(parts)


def _protocol(store: StoreAddress) -> str:
    return store.options.get("protocol", "") if store.kind is StoreKind.FSSPEC else store.kind.value


def local_fault(error: OSError, path: str) -> Fault:
    """Return the fault for a failed call on this machine. `path` is used unless the error names an absolute one."""
    path = error.filename if isinstance(error.filename, str) and os.path.isabs(error.filename) else path
    what = f"{shown(path)} on this machine: {error.strerror or error}"
    if error.errno in FULL_ERRORS:
        where = path if os.path.isdir(path) else os.path.dirname(path)
        return Fault(FaultClass.FULL, what, cure=f"free some space in {shown(where)}, or request more there")
    if error.errno == errno.EROFS:
        return Fault(FaultClass.REFUSED, what, cure="use another directory, or have it mounted for writing again")
    kind = FaultClass.REFUSED
    denial = explain_denial(path) if error.errno == errno.EACCES and os.path.isabs(path) else None
    return Fault(kind, f"{what}; {denial.why}", cure=denial.cure) if denial is not None else Fault(kind, what)


NAMED = 3
"""Maximum number of names in a message about unreadable files."""


def unread_text(count: int, named: list[str], others: str) -> str:
    """Return the message that so many files could not be read. `named` are the first ones with the reasons, and
    `others` says what happened to all others."""
    more = f"; and {count - len(named)} more" if count > len(named) else ""
    were = "was" if count == 1 else "were"
    files = counted(count, "file or directory", "files or directories")
    return f"{files} {were} not read ({'; '.join(named)}{more}); all others {others}"


UNREAD_CURE = "make them readable, or leave them out"
T = TypeVar("T")
LONGEST_PAUSE_S = 60.0


@dataclass(frozen=True, slots=True)
class Retries:
    """Repeat requests that fail temporarily. `report` gets each retry: why, in how many seconds, and why without the
    name."""

    tries: int
    first_s: float
    report: Callable[[str, float, str], None]
    stop: threading.Event

    def pause_after(self, failed: int, why: TemporaryFailure, key: str = "") -> None:
        """Pause after that many failures in a row. Raises Fault after the last attempt, and Stopped."""
        if failed >= self.tries:
            count = f" ({failed} tries)" if failed > 1 else ""
            raise Fault(FaultClass.NETWORK, f"{why}{count}", key) from why
        spread = random.random()  # noqa: S311 - no secret is made of it
        wait_s = growing_pause(failed, self.first_s, LONGEST_PAUSE_S, spread)
        self.report(f"{key}: {why}" if key else str(why), wait_s, str(why))
        if self.stop.wait(wait_s):
            raise Stopped from why

    def call(self, action: Callable[[], T], key: str = "") -> T:
        """Return what the action returns in the end. Raises Fault, Stopped and what the action raises."""
        failed = 0
        while True:
            if self.stop.is_set():
                raise Stopped
            try:
                return action()
            except TemporaryFailure as why:
                failed += 1
                self.pause_after(failed, why, key)
