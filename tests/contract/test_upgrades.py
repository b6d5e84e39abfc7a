"""Databases of every released schema under this release: brought up to date, whole, and used."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, inspect, text

from ffdl_batch import __version__
from ffdl_batch.admin.database.check import Report, check
from ffdl_batch.domain.codec import to_plain
from ffdl_batch.domain.job.job import Change
from ffdl_batch.domain.job_state import JobState, Wish
from ffdl_batch.ports.clock import SystemClock
from ffdl_batch.store import Store, open_store
from ffdl_batch.store.database import Database, connect
from ffdl_batch.store.existing_database import connect_existing
from ffdl_batch.store.schema_upgrade import HEAD, REVISIONS, bring_up_to_date, standing_of
from ffdl_batch.store.sqlite_backup import KEPT, upgrade_copies
from tests import preloaded
from tests.captured.releases import RELEASED, as_read, migrate_to, put_schema
from tests.conftest import POSTGRES
from tests.crash.fuzz.companions import fork_child
from tests.postgres import PostgresServer


@pytest.fixture(params=["sqlite", POSTGRES])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a database without any table."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/jobs.db"
        return
    server: PostgresServer = request.getfixturevalue("postgres")
    with server.database() as name:
        yield server.url(name)


def shape(engine: Engine) -> dict[str, object]:
    """All that a database says about its tables."""
    inspector = inspect(engine)
    return {
        name: (
            [(c["name"], str(c["type"]), c["nullable"], c["default"]) for c in inspector.get_columns(name)],
            inspector.get_pk_constraint(name)["constrained_columns"],
            sorted((str(i["name"]), i["column_names"], bool(i["unique"])) for i in inspector.get_indexes(name)),
            sorted((str(u["name"]), u["column_names"]) for u in inspector.get_unique_constraints(name)),
            sorted((str(f["name"]), f["referred_table"]) for f in inspector.get_foreign_keys(name)),
        )
        for name in inspector.get_table_names()
    }


@contextmanager
def looked_at(url: str) -> Iterator[Database]:
    """The database as it is."""
    database = connect_existing(url)
    try:
        yield database
    finally:
        database.close()


def revision_of(url: str) -> str | None:
    with looked_at(url) as database, database.reading() as connection:
        return standing_of(connection).revision


def checked(url: str) -> Report:
    with looked_at(url) as database:
        return check(database)


def assert_holds(found: object, told: object, path: str) -> None:
    """Everything that was told is found; what is found beside it is of a later release."""
    if isinstance(told, Mapping):
        assert isinstance(found, Mapping), path
        for key, value in told.items():
            assert key in found, f"{path}.{key}"
            assert_holds(found[key], value, f"{path}.{key}")
    else:
        assert found == told, path


def plain(value: Any) -> dict[str, object]:
    return {name: to_plain(getattr(value, name)) for name in type(value).__slots__}


def assert_whole(store: Store, revision: str) -> None:
    """Every job, attempt and change of state is what the release read of it."""
    told = as_read(revision)
    for job in told["jobs"]:
        found = store.get(job["id"])
        assert found is not None
        assert_holds(plain(found), job, job["id"])
        assert [*map(plain, store.history(job["id"]))] == told["histories"][job["id"]]
        attempts, earlier = store.attempts(job["id"]), told["attempts"][job["id"]]
        assert len(attempts) == len(earlier)
        for one, before in zip(attempts, earlier, strict=True):
            assert_holds(plain(one), before, one.token)
    assert len(store.list_jobs(uid=1000)) == len(told["jobs"])


def test_migrations_reproduce_captured_schema_of_every_release(tmp_path: Path) -> None:
    """A schema that somebody may have is never altered afterwards; the last one may not be released yet."""
    assert set(REVISIONS[: len(RELEASED)]) == set(RELEASED)
    for revision in RELEASED:
        captured, made = tmp_path / f"captured-{revision}", tmp_path / f"made-{revision}"
        put_schema(revision, f"sqlite:///{captured}")
        migrate_to(revision, f"sqlite:///{made}")
        tables = []
        for file in (captured, made):
            with sqlite3.connect(file) as connection:
                tables.append(connection.execute("SELECT name, sql FROM sqlite_master ORDER BY name").fetchall())
        assert tables[0] == tables[1]


@pytest.mark.parametrize("revision", RELEASED)
def test_open_store_upgrades_released_schema_and_keeps_all_jobs_usable(
    empty_url: str, tmp_path: Path, revision: str
) -> None:
    put_schema(revision, empty_url)
    store = open_store(empty_url)
    try:
        upgraded = shape(store.engine)
        assert_whole(store, revision)
        report = checked(empty_url)
        assert (report.faults, report.jobs) == ([], len(as_read(revision)["jobs"]))
        assert (report.standing.revision, report.standing.release) == (HEAD, __version__)
        assert_usable(store, as_read(revision)["names"])
        assert checked(empty_url).faults == []
    finally:
        store.close()
    assert upgraded == shape_of_a_fresh_one(empty_url, tmp_path)


def assert_usable(store: Store, names: Mapping[str, str]) -> None:
    """Do to its jobs whatever a daemon or an owner may do next."""
    for what in ("queued", "downloading", "processing", "halting", "storing", "requeued", "uncertain"):
        job = store.set_wish(names[what], Wish.CANCEL)
        assert job is not None and job.wish is Wish.CANCEL
        at = store.history(job.id)[-1].at
        ended = store.apply(job, Change(((JobState.CANCELLED, at + 1),)))
        assert ended is not None and (ended.state, ended.wish) == (JobState.CANCELLED, Wish.NONE)
    for what in ("halted", "failed"):
        job = store.get(names[what])
        assert job is not None and job.ended_at is not None
        resumed = store.apply(job, Change(((JobState.PENDING, job.ended_at + 1),), cause="resumed"))
        assert resumed is not None and (resumed.state, resumed.attempt) == (JobState.PENDING, 1)
    store.end_leases_of("login1:/state")
    leased = {str(one.job.id): one for one in store.claim_deployable("daemon", limit=99, lease_s=60)}
    for what in ("pending", "halted", "failed", "newest"):
        job = leased[names[what]].job
        begun = store.begin_attempt(job, leased[job.id].lease_token, job.updated_at + 2)
        assert begun is not None and begun.attempt == job.attempt + 1


def shape_of_a_fresh_one(url: str, tmp_path: Path) -> dict[str, object]:
    """The same kind of database, made by this release from nothing."""
    if url.startswith("postgresql"):
        other = connect(url, None, SystemClock())
        with other.writing() as connection:
            connection.execute(text("DROP SCHEMA public CASCADE"))
            connection.execute(text("CREATE SCHEMA public"))
        other.close()
    else:
        url = f"sqlite:///{tmp_path}/fresh.db"
    store = open_store(url)
    try:
        return shape(store.engine)
    finally:
        store.close()


def die_at_the_commit(url: str, side: str) -> None:
    """A daemon's start, killed before or after its next commit."""
    database = connect(url, None, SystemClock())
    dialect = database.engine.dialect
    commit = dialect.do_commit

    def killed(connection: Any) -> None:
        if side == "after":
            commit(connection)
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(dialect, "do_commit", killed)  # noqa: B010 - a method
    bring_up_to_date(database)


def test_schema_upgrade_resumes_after_kill_before_or_after_any_commit(empty_url: str, tmp_path: Path) -> None:
    first = RELEASED[0]
    put_schema(first, empty_url)
    for number, revision in enumerate(REVISIONS[1:]):
        for side, expected in (("before", REVISIONS[number]), ("after", revision)):
            child = fork_child(tmp_path / "log", partial(die_at_the_commit, empty_url, side))
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            assert code == -signal.SIGKILL, (tmp_path / "log").read_text()
            assert revision_of(empty_url) == expected
    store = open_store(empty_url)
    assert_whole(store, first)
    store.close()
    if empty_url.startswith("sqlite"):
        copies = upgrade_copies(Path(empty_url.removeprefix("sqlite:///")))
        assert 0 < len(copies) <= KEPT


def test_schema_upgrade_applies_each_revision_once_for_concurrent_daemons(postgres: PostgresServer) -> None:
    source = textwrap.dedent("""
        import sys
        from ffdl_batch.ports.clock import SystemClock
        from ffdl_batch.store import database as module
        from ffdl_batch.store.database import Database, connect
        from ffdl_batch.store.schema_upgrade import bring_up_to_date
        import alembic.command
        module.STANDSTILL_S = 60
        database = connect(sys.argv[1], None, SystemClock())
        print("ready", flush=True)
        sys.stdin.readline()
        print(*bring_up_to_date(database).applied, flush=True)
        """)
    streams: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with postgres.database() as name:
        url = postgres.url(name)
        put_schema(RELEASED[0], url)
        starters = [preloaded.Popen([sys.executable, "-c", source, url], text=True, **streams) for _ in range(3)]
        try:
            for one in starters:
                assert one.stdout is not None and one.stdout.readline() == "ready\n"
            ends = [one.communicate("go\n", timeout=300) for one in starters]
        finally:
            for one in starters:
                one.kill()
                one.wait()
        assert [errors for _, errors in ends] == ["", "", ""]
        assert sorted(" ".join(said for said, _ in ends).split()) == list(REVISIONS[1:])
        store = open_store(url)
        assert_whole(store, RELEASED[0])
        store.close()
