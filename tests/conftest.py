"""What all tests share: databases, a store of objects, the switch that rewrites golden files, and a Ctrl-C that reaches
the programs under test.

A test that asks for `database_url` runs on SQLite and on PostgreSQL.
"""

from __future__ import annotations

import ctypes
import gc
import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from tests.fakes.s3_server import S3Server
    from tests.postgres import PostgresServer, SharedDatabase, TurnedServerClock

POSTGRES = pytest.param("postgresql", marks=pytest.mark.postgres)
DATABASES = {"sqlite", "postgresql"}
_ADMIN = ("test_check.py", "test_left_out.py", "test_refusals.py", "test_targets.py")
IN_TURN = ("tests/crash/", "tests/unit/services/", *(f"tests/contract/admin/{name}" for name in _ADMIN))
"""Tests of behaviour that does not depend on the database; tests/unit/store and tests/contract/admin/test_db.py show
what does, on both."""
EXAMPLES = 30
"""Of each property, in `make test`."""


def pytest_configure(config: pytest.Config) -> None:
    """A shell starts background commands with SIGINT and SIGQUIT ignored, nohup with SIGHUP, and so would be every
    program that a test starts. What has a handler is not ignored there."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)
    os.umask(0o022)  # configuration files that a group can write are refused
    # How long an example takes says how busy the machine is. `make test-full` tries 100 examples.
    settings.register_profile("ffdl", deadline=None)
    settings.register_profile("ffdl, not full", deadline=None, max_examples=EXAMPLES)
    settings.load_profile("ffdl, not full" if config.option.markexpr == "not full" else "ffdl")


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--update-golden``: write what the code makes now; read the difference before you commit it."""
    parser.addoption("--update-golden", action="store_true", help="rewrite the golden files instead of comparing")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests below IN_TURN as `full` on one of the two databases, in turn: `make test` runs each one once."""
    on_both: dict[tuple[object, ...], dict[str, pytest.Item]] = {}
    for item in items:
        if isinstance(item, pytest.Function) and hasattr(item, "callspec") and item.nodeid.startswith(IN_TURN):
            params = item.callspec.params
            database = next((value for value in params.values() if isinstance(value, str) and value in DATABASES), "")
            others = str({name: value for name, value in params.items() if value is not database})
            on_both.setdefault((item.path, item.originalname, others), {})[database] = item
    turns: Counter[object] = Counter()
    for (path, *_), found in on_both.items():
        if found.keys() >= DATABASES:
            turns[path] += 1
            found["postgresql" if turns[path] % 2 else "sqlite"].add_marker("full")


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Spare the garbage collector the modules and collected tests, which live until the end."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    """Whether golden files are rewritten."""
    return bool(request.config.getoption("--update-golden"))


@pytest.fixture
def joined_later(monkeypatch: pytest.MonkeyPatch) -> int:
    """The id of a group that this process's user has joined since the process was started."""
    gid = 4_711_815
    monkeypatch.setattr(os, "getgrouplist", lambda *_: [os.getegid(), *os.getgroups(), gid])
    return gid


@pytest.fixture
def bound_by_modes() -> Iterator[None]:
    """Let the modes of files count for this thread, also if it is root's (capabilities(7); capset(2), version 3)."""
    libc, header = ctypes.CDLL(None, use_errno=True), (ctypes.c_uint32 * 2)(0x20080522, 0)
    before = (ctypes.c_uint32 * 6)()
    assert libc.capget(header, before) == 0
    reduced = (ctypes.c_uint32 * 6)(*before)
    reduced[0] &= ~0b110  # the effective set, without CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH
    assert libc.capset(header, reduced) == 0
    yield
    assert libc.capset(header, before) == 0


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """One server for all tests of a run: they have buckets of their own."""
    from tests.fakes.s3_server import S3Server

    server = S3Server(tmp_path_factory.mktemp("s3") / "log")
    yield server
    server.stop()


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """One PostgreSQL server for the whole run; tests leave it running."""
    from ffdl_batch.store import database
    from tests.postgres import running_postgres

    with running_postgres() as server, pytest.MonkeyPatch.context() as patch:
        # A test that stands still for seconds, on a machine that does much else, is no daemon that was stopped.
        patch.setattr(database, "STANDSTILL_S", 60)
        yield server


@pytest.fixture(scope="session")
def migrated_template(postgres: PostgresServer) -> str:
    """A database with the schema in it, to copy: faster than migrating for each test."""
    from ffdl_batch.store import open_store

    name = postgres.create_database()
    open_store(postgres.url(name)).close()
    return name


@pytest.fixture
def postgres_url(postgres: PostgresServer, migrated_template: str) -> Iterator[str]:
    """The URL of a PostgreSQL database with the schema and no job, removed afterwards."""
    with postgres.database(migrated_template) as name:
        yield postgres.url(name)


@pytest.fixture(scope="session")
def shared_database(postgres: PostgresServer, migrated_template: str) -> Iterator[SharedDatabase]:
    """One database for all small tests."""
    from tests.postgres import SharedDatabase

    database = SharedDatabase(postgres, migrated_template)
    yield database
    database.close()


@pytest.fixture
def emptied_database(shared_database: SharedDatabase) -> Iterator[SharedDatabase]:
    """A PostgreSQL database with the schema and no job, for tests that write our tables alone."""
    yield shared_database
    shared_database.empty()


@pytest.fixture(scope="session")
def turned_database(postgres: PostgresServer, migrated_template: str) -> Iterator[SharedDatabase]:
    """As `shared_database`, with a clock in it that tests turn."""
    from tests.postgres import SharedDatabase, TurnedServerClock

    database = SharedDatabase(postgres, migrated_template, TurnedServerClock.OPTIONS)
    TurnedServerClock.prepare(database)
    yield database
    database.close()


@pytest.fixture
def server_clock(turned_database: SharedDatabase) -> Iterator[TurnedServerClock]:
    """The clock of a PostgreSQL database with the schema and no job, for tests that write our tables alone."""
    from tests.postgres import TurnedServerClock

    yield TurnedServerClock(turned_database)
    turned_database.empty()


@pytest.fixture(params=["sqlite", POSTGRES])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a database with no job: a SQLite file that does not exist yet, and one on PostgreSQL."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/database/jobs.sqlite3"
    return str(request.getfixturevalue("postgres_url"))
