"""Stores for tests: SQLite in both modes, and a real PostgreSQL (marker `postgres`)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ffdl_batch.store import Store, open_store
from tests.conftest import POSTGRES
from tests.first_start import write_schema
from tests.postgres import PostgresServer
from tests.unit.store.jobs import FakeClock


@pytest.fixture
def clock() -> FakeClock:
    """The store's time on SQLite."""
    return FakeClock()


@pytest.fixture(params=["sqlite", POSTGRES])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a database without any table."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/jobs.db"
        return
    server: PostgresServer = request.getfixturevalue("postgres")
    with server.database() as name:
        yield server.url(name)


@pytest.fixture(params=["sqlite", "sqlite-network-fs", POSTGRES])
def store(request: pytest.FixtureRequest, tmp_path: Path, clock: FakeClock) -> Iterator[Store]:
    """An empty store on each database and mode."""
    if request.param == "postgresql":
        opened = open_store(request.getfixturevalue("emptied_url"))
    else:
        network_fs = request.param == "sqlite-network-fs"
        write_schema(tmp_path / "jobs.db", network_fs=network_fs)
        opened = open_store(f"sqlite:///{tmp_path}/jobs.db", network_fs=network_fs, clock=clock)
    yield opened
    opened.close()
