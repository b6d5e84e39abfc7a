"""Jobs, attempts, histories and leases in SQLite or PostgreSQL. Import from here; the modules are its insides."""

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
from ffdl_batch.store.sqlite_copy_names import kept_copies, rescued_copies
from ffdl_batch.store.usage_rows import UsedJob
from ffdl_batch.store.write_health import Trouble

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
    "Trouble",
    "UsedJob",
    "kept_copies",
    "open_store",
    "rescued_copies",
]
