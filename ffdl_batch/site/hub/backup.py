"""Copies the hub's database while hubs use it."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

from ffdl_batch.store import StoreError
from ffdl_batch.store.existing_database import sqlite_file
from ffdl_batch.store.sqlite_files import companions, copy_database


class BackupRefused(Exception):
    """The database cannot be copied, or not to this place."""


def back_up(database_url: str, target: Path) -> None:
    """Write a durable copy of a SQLite database, readable for its owner only; replace a file at `target` as a whole.

    Raises BackupRefused.
    """
    source = sqlite_file(database_url)
    if source is None:
        raise BackupRefused("the hub's database is in PostgreSQL: copy it with pg_dump")
    if not source.exists():
        raise BackupRefused(f"{source} does not exist")
    if target.exists() and any(one.exists() and target.samefile(one) for one in (source, *companions(source))):
        raise BackupRefused(f"{target} is the database itself, or one of its files")
    if target.exists() and not target.is_file():
        raise BackupRefused(f"{target} is not a file")
    try:
        with contextlib.closing(
            sqlite3.connect(f"{source.as_uri()}?mode=ro", uri=True, isolation_level=None)
        ) as opened:
            opened.execute("BEGIN")
            opened.execute("SELECT count(*) FROM sqlite_schema").fetchone()
            copy_database(opened, target)
    except (sqlite3.Error, StoreError) as error:
        raise BackupRefused(f"{source} cannot be copied: {error}") from error
