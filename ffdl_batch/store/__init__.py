"""Store jobs, attempts, histories and leases in SQLite or PostgreSQL. Other packages import from here."""

from __future__ import annotations

from ffdl_batch.store.errors import (
    DatabaseDamaged,
    DatabaseGone,
    DatabaseMissing,
    DuplicateId,
    SchemaTooNew,
    StoreError,
    StoreUnavailable,
)
from ffdl_batch.store.incidents import Noticed
from ffdl_batch.store.records import Attempt, LeasedJob, NewJob
from ffdl_batch.store.repository import Store, open_store
from ffdl_batch.store.tokens import StoredToken
from ffdl_batch.store.usage_rows import UsedJob

__all__ = [
    "Attempt",
    "DatabaseDamaged",
    "DatabaseGone",
    "DatabaseMissing",
    "DuplicateId",
    "LeasedJob",
    "NewJob",
    "Noticed",
    "SchemaTooNew",
    "Store",
    "StoreError",
    "StoreUnavailable",
    "StoredToken",
    "UsedJob",
    "open_store",
]
