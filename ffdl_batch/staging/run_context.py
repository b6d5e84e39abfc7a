"""The objects that all parts of one run share, and the stores of its transfers."""

from __future__ import annotations

import errno
import threading
from dataclasses import dataclass, field

from ffdl_batch.domain.data.staging_protocol import FaultClass, StageTask, Transfer
from ffdl_batch.domain.data.store_kinds import StoreAddress, StoreKind
from ffdl_batch.domain.number_text import counted
from ffdl_batch.staging.faults import Fault, Retries, shown
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

NAMED = 3
_OF_ONE = (errno.EACCES, errno.EPERM, errno.EIO, errno.EBADMSG, errno.EUCLEAN, errno.ESTALE)
"""Errors that concern one file. After others, the next file would have the same error."""


class UnreadableFiles:
    """Files and directories of one task that could not be read. Methods may be called from several threads at once."""

    def __init__(self, reporter: Reporter) -> None:
        self._teller, self._lock = reporter, threading.Lock()
        self._count, self._named = 0, list[str]()

    def add(self, name: str, error: OSError) -> None:
        """Report and skip a file. Raises the error if it does not concern only this file."""
        if error.errno not in _OF_ONE:
            raise error
        what = f"{shown(name)}: {error.strerror or error}"
        with self._lock:
            self._count += 1
            self._named = [*self._named, what][:NAMED]
        self._teller.skip(f"{shown(name)} cannot be read: {error.strerror or error}")

    def require_none(self) -> None:
        """Raise Fault if a file could not be read."""
        if not self._count:
            return
        more = self._count - len(self._named)
        names = "; ".join(self._named) + (f"; and {more} more" if more else "")
        were = "was" if self._count == 1 else "were"
        what = f"{counted(self._count, 'file or directory', 'files or directories')} {were} not read ({names})"
        raise Fault(FaultClass.REFUSED, f"{what}; all others are stored", cure="make them readable, or leave them out")


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


def open_store(address: StoreAddress, secrets: Secrets, connections: int) -> Store:
    """Return the store. Nothing is requested yet. Raises Fault."""
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
        return FsspecStore(address, credentials)
    return FileStore(address)


def open_route(run: Run, transfer: Transfer) -> Route:
    """Return the transfer with its store. Raises Fault."""
    return Route(run, transfer, open_store(transfer.store, run.secrets, run.task.parallel + 2), place_of(transfer))
