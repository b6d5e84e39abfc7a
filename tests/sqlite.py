"""SQLite databases with the schema in them, as a daemon makes them: a copy costs a tenth of the migrations."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path


@functools.cache
def _migrated(network_fs: bool) -> bytes:
    from ffdl_batch.store import open_store

    with tempfile.TemporaryDirectory() as place:
        open_store(f"sqlite:///{place}/jobs.db", network_fs=network_fs).close()
        return Path(place, "jobs.db").read_bytes()


def write_schema(file: Path, *, network_fs: bool = False) -> None:
    """Make the database, and the state directory around it, for one user alone."""
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    file.touch(0o600)
    file.write_bytes(_migrated(network_fs))
