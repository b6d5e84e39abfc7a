"""What every part of one run works with."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from ffdl_batch.domain.data.staging_protocol import StageTask, StoreAddress, StoreKind, Transfer
from ffdl_batch.staging.journal import Journal, place_of
from ffdl_batch.staging.reporter import Teller
from ffdl_batch.staging.retries import Patience
from ffdl_batch.staging.secrets import Secrets
from ffdl_batch.staging.stores.file import FileStore
from ffdl_batch.staging.stores.fsspec import FsspecStore
from ffdl_batch.staging.stores.gcs import gcs_store
from ffdl_batch.staging.stores.http import HttpStore
from ffdl_batch.staging.stores.s3 import S3Store
from ffdl_batch.staging.stores.store import Store
from ffdl_batch.staging.stores.swift import SwiftStore
from ffdl_batch.staging.unreadable_files import Unread
from ffdl_batch.staging.workers import Workers


@dataclass(frozen=True, slots=True)
class Run:
    """One call of the program."""

    task: StageTask
    secrets: Secrets
    journal: Journal
    teller: Teller
    patience: Patience
    workers: Workers
    stop: threading.Event
    unread: Unread
    indexes: set[str] = field(default_factory=set)
    """Places of the transfers whose store has an index of links, modes and empty directories."""


@dataclass(frozen=True, slots=True)
class Way:
    """One transfer of the run: its store, and its name in the journal."""

    run: Run
    transfer: Transfer
    store: Store
    place: str

    def close(self) -> None:
        """Close the store's connections."""
        self.store.close()


def open_store(address: StoreAddress, secrets: Secrets, connections: int) -> Store:
    """The store; nothing is asked yet. Raises Fault."""
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


def way_of(run: Run, transfer: Transfer) -> Way:
    """The transfer with its store. Raises Fault."""
    return Way(run, transfer, open_store(transfer.store, run.secrets, run.task.parallel + 2), place_of(transfer))
