"""Stores for tests: SQLite in both modes, and a real PostgreSQL (marker `postgres`)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ffdl_batch.store import Store
from tests.conftest import POSTGRES
from tests.first_start import new_store
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
        opened = request.getfixturevalue("emptied_database").open(clock)
    else:
        opened = new_store(tmp_path / "jobs.db", clock, network_fs=request.param == "sqlite-network-fs")
    yield opened
    opened.close()
