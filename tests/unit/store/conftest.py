"""Stores for tests: SQLite in both modes, and a real PostgreSQL (marker `postgres`)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ffdl_batch.store import Store, open_store
from tests.postgres import PostgresServer, running_postgres
from tests.unit.store.jobs import FakeClock

POSTGRES = pytest.param("postgresql", marks=pytest.mark.postgres)


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """One server for the session."""
    with running_postgres() as server:
        yield server


@pytest.fixture(scope="session")
def migrated_template(postgres: PostgresServer) -> str:
    """A database with the schema in it, to copy: faster than migrating for each test."""
    name = postgres.create_database()
    open_store(postgres.url(name)).close()
    return name


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
    name = server.create_database()
    yield server.url(name)
    server.drop_database(name)


@pytest.fixture
def postgres_url(postgres: PostgresServer, migrated_template: str) -> Iterator[str]:
    """The URL of a fresh PostgreSQL database with the schema."""
    name = postgres.create_database(migrated_template)
    yield postgres.url(name)
    postgres.drop_database(name)


@pytest.fixture(params=["sqlite", "sqlite-network-fs", POSTGRES])
def store(request: pytest.FixtureRequest, tmp_path: Path, clock: FakeClock) -> Iterator[Store]:
    """An empty store on each database and mode."""
    if request.param == "postgresql":
        opened = open_store(request.getfixturevalue("postgres_url"))
    else:
        network_fs = request.param == "sqlite-network-fs"
        opened = open_store(f"sqlite:///{tmp_path}/jobs.db", network_fs=network_fs, clock=clock)
    yield opened
    opened.close()
