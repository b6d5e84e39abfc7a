"""The objects that all parts of one run share, and the stores of its transfers."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from dataclasses import field

from ffdl_batch.domain.data.staging_protocol import Direction, FaultClass, StageTask, Transfer
from ffdl_batch.domain.data.store_kinds import StoreAddress, StoreKind
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.staging.faults import ERRORS_OF_ONE, NAMED, UNREAD_CURE, Denied, Fault, Retries, shown, unread_text
from ffdl_batch.staging.journal import Journal, place_of
from ffdl_batch.staging.reporter import Reporter
from ffdl_batch.staging.secrets import Secrets
from ffdl_batch.staging.stores.file import FileStore
from ffdl_batch.staging.stores.fsspec import FsspecStore
from ffdl_batch.staging.stores.http import HttpStore
from ffdl_batch.staging.stores.s3 import S3Store, gcs_store
from ffdl_batch.staging.stores.store import Store
from ffdl_batch.staging.stores.swift import SwiftStore
from ffdl_batch.staging.workers import Workers

MOST_DENIED_AT_FIRST = 20
"""If the store denies the access to so many objects and has given none, it will give none."""
MOST_DENIED = 1000
"""After so many denials, the transfer ends."""


class UnreadableFiles:
    """Files and directories of one task that could not be read. Methods may be called from several threads at once."""

    def __init__(self, reporter: Reporter, denied: FaultClass) -> None:
        """`denied` is the kind of the fault if files or the store deny the access, and nothing else went wrong."""
        self._teller, self._lock, self._denied = reporter, threading.Lock(), denied
        self._count, self._named = 0, list[str]()
        self._are_denied = True
        self._first: Fault | None = None
        """The first object to which the store denied the access."""

    def add(self, name: str, error: OSError) -> None:
        """Report and skip a file. Raises the error if it does not concern only this file."""
        if error.errno not in ERRORS_OF_ONE:
            raise error
        what = f"{shown(name)}: {error.strerror or error}"
        with self._lock:
            self._count += 1
            self._are_denied = self._are_denied and error.errno == errno.EACCES
            self._named = [*self._named, what][:NAMED]
        self._teller.skip(f"{shown(name)} cannot be read: {error.strerror or error}")

    def deny(self, name: str, fault: Denied) -> None:
        """Report and skip an object to which the store denies the access. Raises the first such fault if the store
        probably denies all."""
        self.add(name, PermissionError(errno.EACCES, fault.cause))
        with self._lock:
            self._first = first = self._first or fault
            count = self._count
        if count >= (MOST_DENIED if self._teller.counted().files else MOST_DENIED_AT_FIRST):
            raise first

    @property
    def has_any(self) -> bool:
        """Whether a file or directory could not be read."""
        return self._count > 0

    def forget(self) -> None:
        """Forget the files, because the task starts over."""
        with self._lock:
            self._count, self._named, self._first = 0, [], None
            self._are_denied = True

    def require_none(self, others: str, *, denied: FaultClass | None = None) -> None:
        """Raise Fault if a file could not be read. `others` says what happened to all others. `denied`
        replaces the kind of the fault for denied access."""
        if not self._count:
            return
        if self._first is not None and not self._teller.counted().files:
            raise self._first
        what = unread_text(self._count, self._named, others)
        raise Fault((denied or self._denied) if self._are_denied else FaultClass.REFUSED, what, cure=UNREAD_CURE)


@dataclass(frozen=True, slots=True)
class Run:
    """One run of the program."""

    task: StageTask
    secrets: Secrets
    journal: Journal
    reporter: Reporter
    retries: Retries
    workers: Workers
    stop: threading.Event
    unreadable: UnreadableFiles
    brought: Journal | None = None
    """The journal of the task that brought files; see :class:`StageTask`."""
    indexes: set[str] = field(default_factory=set)
    """Places of the transfers whose store has an index of links, modes and empty directories."""


@dataclass(frozen=True, slots=True)
class Route:
    """One transfer of the run: its store, and its name in the journal."""

    run: Run
    transfer: Transfer
    store: Store
    place: str

    def close(self) -> None:
        """Close the store's connections."""
        self.store.close()


def open_store(
    address: StoreAddress, secrets: Secrets, connections: int, unreadable: Callable[[str, OSError], None]
) -> Store:
    """Return the store. Nothing is requested yet. `unreadable` gets directories that cannot be listed. Raises Fault."""
    credentials = secrets.of(address)
    if address.kind is StoreKind.S3:
        return S3Store(address, credentials, connections)
    if address.kind is StoreKind.HTTP:
        return HttpStore(address, credentials, connections)
    if address.kind is StoreKind.GCS:
        return gcs_store(address, credentials, connections)
    if address.kind is StoreKind.SWIFT:
        return SwiftStore(address, credentials, connections)
    if address.kind is StoreKind.FSSPEC:
        return FsspecStore(address, credentials, unreadable)
    return FileStore(address, unreadable)


def open_route(run: Run, transfer: Transfer) -> Route:
    """Return the transfer with its store. Raises Fault."""
    # An upload lists its target only to find what is already there.
    unreadable = run.unreadable.add if run.task.direction is Direction.IN else _ignore
    store = open_store(transfer.store, run.secrets, run.task.parallel + 2, unreadable)
    return Route(run, transfer, store, place_of(transfer))


def _ignore(name: str, error: OSError) -> None:
    """Ignore a directory that cannot be listed."""
