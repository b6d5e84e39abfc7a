"""Store jobs, attempts, histories and leases in SQLite or PostgreSQL. Other packages import from here."""

from __future__ import annotations

from ffdl_batch.store.elastic import ElasticJob, NamedLease, StoredDecision
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
from ffdl_batch.store.records import Attempt, JobSize, LeasedJob, NewJob, SizeState
from ffdl_batch.store.repository import Store, open_store
from ffdl_batch.store.tokens import StoredToken
from ffdl_batch.store.usage_rows import UsedJob

__all__ = [
    "Attempt",
    "DatabaseDamaged",
    "DatabaseGone",
    "DatabaseMissing",
    "DuplicateId",
    "ElasticJob",
    "JobSize",
    "LeasedJob",
    "NamedLease",
    "NewJob",
    "Noticed",
    "SchemaTooNew",
    "SizeState",
    "Store",
    "StoreError",
    "StoreUnavailable",
    "StoredDecision",
    "StoredToken",
    "UsedJob",
    "open_store",
]
