"""Run ffdl-admin in the process of the test, on its own state directory and a database of either kind."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.engine import Connection

from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.store import Store, open_store
from ffdl_batch.store.existing_database import connect_existing
from tests.conftest import POSTGRES
from tests.first_start import write_schema
from tests.postgres import PostgresServer
from tests.unit.admin.conftest import run_admin
from tests.unit.store.jobs import add_job


@dataclass
class Desk:
    """An administrator's place. `url` is the configured database, which does not exist, or is empty, at first."""

    state: Path
    url: str
    capsys: pytest.CaptureFixture[str]
    monkeypatch: pytest.MonkeyPatch

    @property
    def is_postgres(self) -> bool:
        return self.url.startswith("postgresql")

    @property
    def file(self) -> Path:
        return Path(self.url.removeprefix("sqlite:///"))

    def run(self, *arguments: object) -> tuple[int, str, str]:
        """Exit code, output and errors of ffdl-admin."""
        return run_admin(self.capsys, self.monkeypatch, *arguments)

    def done(self, *arguments: object) -> str:
        """What a command that must succeed printed."""
        code, out, err = self.run(*arguments)
        assert (code, err) == (0, ""), (code, out, err)
        return out

    @contextmanager
    def store(self) -> Iterator[Store]:
        """The database as a daemon opens it."""
        self.state.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not self.is_postgres and not self.file.exists():
            write_schema(self.file)
        store = open_store(self.url, network_fs=False)
        try:
            yield store
        finally:
            store.close()

    @contextmanager
    def changing(self) -> Iterator[Connection]:
        """A transaction in which a test does damage."""
        database = connect_existing(self.url)
        try:
            with database.writing() as connection:
                yield connection
        finally:
            database.close()

    def execute(self, *statements: str) -> None:
        with self.changing() as connection:
            for statement in statements:
                connection.execute(text(statement))


@pytest.fixture(params=["sqlite", POSTGRES])
def desk(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Desk]:
    for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "FFDL_DATABASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    state = tmp_path / "state"
    monkeypatch.setenv("FFDL_STATE_DIR", str(state))
    if request.param == "sqlite":
        yield Desk(state, f"sqlite:///{state}/ffdl.sqlite3", capsys, monkeypatch)
        return
    server: PostgresServer = request.getfixturevalue("postgres")
    with server.database() as name:
        monkeypatch.setenv("FFDL_DATABASE_URL", server.url(name))
        yield Desk(state, server.url(name), capsys, monkeypatch)


@pytest.fixture
def job_id(desk: Desk) -> str:
    """A job that waits, in a database that the daemon made."""
    with desk.store() as store:
        return str(add_job(store).id)


def dump(file: Path) -> list[str]:
    """All that a SQLite file holds."""
    connection = sqlite3.connect(f"file:{file}?mode=ro", uri=True)
    try:
        return list(connection.iterdump())
    finally:
        connection.close()
