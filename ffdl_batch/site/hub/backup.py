"""Copies the hub's database while hubs use it."""

from __future__ import annotations

import os
import sqlite3
import tempfile
from pathlib import Path

from ffdl_batch.store.existing_database import sqlite_file


class BackupRefused(Exception):
    """The database cannot be copied, or not to this place."""


def back_up(database_url: str, target: Path) -> None:
    """Write a copy of a SQLite database by SQLite's own backup (sqlite.org/backup.html), readable for its owner only. A
    file at `target` is replaced as a whole. Raises BackupRefused, OSError."""
    source = sqlite_file(database_url)
    if source is None:
        raise BackupRefused("the hub's database is in PostgreSQL: copy it with pg_dump")
    if not source.exists():
        raise BackupRefused(f"{source} does not exist")
    if target.exists() and not target.is_file():
        raise BackupRefused(f"{target} is not a file")
    descriptor, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    os.close(descriptor)
    try:
        _copy(source, Path(name))
        Path(name).replace(target)
    finally:
        Path(name).unlink(missing_ok=True)


def _copy(source: Path, target: Path) -> None:
    try:
        from_file = sqlite3.connect(f"{source.as_uri()}?mode=ro", uri=True)
        to_file = sqlite3.connect(target)
        try:
            from_file.backup(to_file)
        finally:
            to_file.close()
            from_file.close()
    except sqlite3.Error as error:
        raise BackupRefused(f"{source} cannot be copied: {error}") from error
    with target.open("rb") as file:
        os.fsync(file.fileno())
