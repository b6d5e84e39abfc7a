"""What fails says so: full disks, locks, read-only files, servers that go away, URLs that are none."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import event, insert, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from ffdl_batch.domain.job.job import JobId
from ffdl_batch.domain.job_state import JobState, RequestedAction
from ffdl_batch.host.running_clock import SystemClock
from ffdl_batch.store import DatabaseDamaged, Store, StoreError, StoreUnavailable, database, open_store
from ffdl_batch.store.errors import translate
from ffdl_batch.store.existing_database import connect_existing
from ffdl_batch.store.schema import LEASES
from tests.first_start import new_store
from tests.planted_files import NO_FILES
from tests.postgres import PostgresMissing, PostgresServer, find_binaries, running_postgres
from tests.unit.store.jobs import add_job, applied, assert_consistent, new_job, steps


@contextmanager
def plain_user() -> Iterator[None]:
    """As somebody whom file modes bind: root is let through everywhere."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def open_directory() -> Iterator[Path]:
    """A directory that every user may enter and write."""
    directory = Path(tempfile.mkdtemp(prefix="ffdl-store-", dir="/tmp"))
    directory.chmod(0o777)
    yield directory
    shutil.rmtree(directory)


@pytest.fixture
def local(tmp_path: Path) -> Iterator[Store]:
    """A store on a local SQLite file."""
    opened = new_store(tmp_path / "jobs.db", SystemClock())
    yield opened
    opened.close()


def test_store_keeps_acknowledged_jobs_on_full_disk_and_accepts_jobs_again_when_it_gets_space(local: Store) -> None:
    with local.engine.connect() as connection:
        connection.exec_driver_sql("PRAGMA max_page_count = 60")
    added, request = [], [new_job(f"key-{number}") for number in range(200)]
    with pytest.raises(StoreUnavailable, match=r"disk .*is full: free some space"):
        for _ in range(5000):
            added.append(add_job(local).id)
    with pytest.raises(StoreUnavailable, match="full"):
        local.add_jobs(request)
    assert added
    assert {job.id for job in local.list_jobs(uid=None, limit=9999)} == set(added)
    for job_id in (added[0], added[-1]):
        assert_consistent(local, job_id)
    with local.engine.connect() as connection:
        connection.exec_driver_sql("PRAGMA max_page_count = 1000000")
    assert len(local.add_jobs(request)) == 200


@pytest.mark.parametrize("network_fs", [False, True])
def test_store_reports_read_only_database_file(open_directory: Path, network_fs: bool) -> None:
    path = open_directory / "jobs.db"
    open_store(f"sqlite:///{path}", network_fs=network_fs).close()
    path.chmod(0o444)
    open_directory.chmod(0o555)
    with plain_user(), pytest.raises(StoreUnavailable, match=r"jobs\.db cannot be used: .*writable for this user"):
        add_job(open_store(f"sqlite:///{path}", network_fs=network_fs))


def test_open_store_reports_missing_or_unwritable_directory(open_directory: Path) -> None:
    with pytest.raises(StoreUnavailable, match="directory must exist"):
        open_store(f"sqlite:///{open_directory}/nothing/jobs.db")
    open_directory.chmod(0o555)
    with plain_user(), pytest.raises(StoreUnavailable, match="Permission denied"):
        open_store(f"sqlite:///{open_directory}/jobs.db")


def test_store_on_local_file_uses_synced_wal_and_files_readable_by_owner_only(local: Store, tmp_path: Path) -> None:
    assert pragmas(local) == {"journal_mode": "wal", "locking_mode": "normal", "synchronous": 2, "foreign_keys": 1}
    add_job(local)
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    assert modes == {"jobs.db": 0o600, "jobs.db-wal": 0o600, "jobs.db-shm": 0o600}


def test_open_store_uses_exclusive_journal_on_network_file_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "BUSY_TIMEOUT_S", 0.05)
    url = f"sqlite:///{tmp_path}/jobs.db"
    local = open_store(url, network_fs=False)  # a log from before the home moved to a server
    job = add_job(local)
    local.close()
    store = open_store(url, network_fs=True)
    expected = {"journal_mode": "truncate", "locking_mode": "exclusive", "synchronous": 3, "foreign_keys": 1}
    assert pragmas(store) == expected
    assert not (tmp_path / "jobs.db-shm").exists()
    for network_fs in (True, False):
        with pytest.raises(StoreUnavailable, match="another process has it locked"):
            open_store(url, network_fs=network_fs)
    assert store.get(job.id) == job
    store.close()
    again = open_store(url, network_fs=True)
    assert again.get(job.id) == job
    again.close()


def pragmas(store: Store) -> dict[str, object]:
    """What SQLite says it does."""
    names = ("journal_mode", "locking_mode", "synchronous", "foreign_keys")
    with store.engine.connect() as connection:
        return {name: connection.exec_driver_sql(f"PRAGMA {name}").scalar_one() for name in names}


def test_store_reports_locked_file_and_works_after_unlock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "BUSY_TIMEOUT_S", 0.05)
    store = open_store(f"sqlite:///{tmp_path}/jobs.db", network_fs=False)
    holder = sqlite3.connect(tmp_path / "jobs.db", isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreUnavailable, match="another process has it locked"):
        add_job(store)
    assert store.list_jobs(uid=None) == []  # readers go on
    holder.close()
    add_job(store)
    store.close()


def test_open_store_reports_file_that_is_no_database_as_damaged(tmp_path: Path) -> None:
    (tmp_path / "jobs.db").write_text("certainly no database\n" * 100)
    with pytest.raises(DatabaseDamaged, match="damaged or not a SQLite database") as caught:
        open_store(f"sqlite:///{tmp_path}/jobs.db")
    assert not isinstance(caught.value, StoreUnavailable)
    cure = "ffdl daemon stop, and put a copy in its place (ffdl-admin db restore FILE --force)"
    assert str(caught.value).endswith(cure)


@pytest.mark.parametrize("kind", ["directory", "named pipe", "socket", "link to a device"])
def test_open_store_and_existing_report_what_is_not_a_file_as_damaged(tmp_path: Path, kind: str) -> None:
    NO_FILES[kind](tmp_path / "jobs.db")
    for use in (open_store, connect_existing):
        with pytest.raises(DatabaseDamaged, match="it is not a regular file"):
            use(f"sqlite:///{tmp_path}/jobs.db")


def overwritten(at: int | bytes, by: bytes) -> Callable[[bytes], bytes]:
    """Return a damage that writes `by` at an offset, or in place of a text."""

    def damage(data: bytes) -> bytes:
        start = data.rindex(at) if isinstance(at, bytes) else at
        return data[:start] + by + data[start + len(by) :]

    return damage


def without_pages_of(name: str) -> Callable[[bytes], bytes]:
    """Return a damage that overwrites the root page of a table or an index."""

    def damage(data: bytes) -> bytes:
        memory = sqlite3.connect(":memory:")
        memory.deserialize(overwritten(18, b"\1\1")(data))  # not in WAL mode, which an in-memory database lacks
        (page,) = memory.execute("SELECT rootpage FROM sqlite_schema WHERE name = ?", (name,)).fetchone()
        memory.close()
        return overwritten((page - 1) * 4096, b"\xa5" * 4096)(data)

    return damage


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[: len(data) // 2],
        lambda data: data[:5000],
        lambda data: b"\x89PNG\r\n" + data[6:],
        lambda data: b"\x1f\x8b" + bytes(len(data)),
        overwritten(0, bytes(4096)),
        overwritten(18, b"\x63"),
        overwritten(19, b"\x63"),
        overwritten(47, b"\x63"),
        without_pages_of("jobs"),
        without_pages_of("history"),
        without_pages_of("sqlite_autoindex_jobs_1"),
        overwritten(b"PENDING", b"PENDYNG"),
        overwritten(b"PENDING", b"\xff\xfe"),
        overwritten(b'{"name":', b"[["),
        overwritten(b'"framework":', b'"Framework":'),
        overwritten(b"CREATE TABLE history", b"CREATE TABLE \xff"),
        overwritten(b"CREATE TABLE history", b"CREATE TABLE histerx"),
    ],
)
def test_store_reports_each_kind_of_damage_as_damaged(
    tmp_path: Path, filled: tuple[bytes, list[JobId]], damage: Callable[[bytes], bytes]
) -> None:
    path, (data, ids) = tmp_path / "jobs.db", filled
    path.write_bytes(damage(data))
    with pytest.raises(DatabaseDamaged, match="is damaged"):
        read_all(open_store(f"sqlite:///{path}", network_fs=False), ids)


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, list[JobId]]:
    """The file of a database with a hundred jobs, and their ids."""
    path = tmp_path_factory.mktemp("filled") / "jobs.db"
    store = new_store(path, SystemClock())
    jobs = [add_job(store, f"key-{number}") for number in range(100)]
    store.close()
    return path.read_bytes(), [job.id for job in jobs]


def read_all(store: Store, ids: list[JobId]) -> None:
    try:
        for job_id in ids:
            store.get(job_id)
            store.history(job_id)
        store.list_jobs(uid=None, limit=1000)
        add_job(store)
    finally:
        store.close()


@pytest.mark.parametrize("column", ["spec", "warnings", "overrides", "spent"])
@pytest.mark.parametrize("content", ["{", "[]", "3", "null", '{"a":' * 5000, "[" * 5000, '{"name": {}}', "\x00"])
def test_store_reports_damaged_row_that_a_change_reads_first(local: Store, column: str, content: str) -> None:
    if content in ("[]", '{"name": {}}') and column != "spec":  # another column may have these
        content = "{"
    job = add_job(local)
    with local.engine.begin() as connection:
        connection.execute(text(f"UPDATE jobs SET {column} = :content"), {"content": content})
    fresh = open_store(f"sqlite:///{local.place}", network_fs=False)
    with pytest.raises(DatabaseDamaged, match=f"is damaged \\(the row of '{job.id}' cannot be read"):
        fresh.set_requested_action(job.id, RequestedAction.CANCEL)
    fresh.close()


def test_open_store_refuses_tables_of_another_program(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE jobs (x)")
    other.commit()
    other.close()
    before = path.read_bytes()
    with pytest.raises(StoreError, match=r"other\.db has tables of another program \(jobs\)\. Nothing was changed"):
        open_store(f"sqlite:///{path}", network_fs=False)
    assert path.read_bytes() == before


UNSUPPORTED = ["", "nonsense", "mysql://h/d", "sqlite://", "sqlite:///:memory:", "postgresql+asyncpg://h/d"]
WITH_PASSWORD = ["postgresql://ada:geheim@h:port/d", "postgresql://ada:ge@he:im@h/d"]


@pytest.mark.parametrize("url", [*UNSUPPORTED, *WITH_PASSWORD])
def test_open_store_rejects_unsupported_url_without_printing_password(url: str) -> None:
    with pytest.raises(StoreError, match="write sqlite:////directory") as caught:
        open_store(url)
    assert not any(part in str(caught.value) for part in ("geheim", "he:im", "im@"))


@pytest.mark.parametrize("url", ["ada:geheim@/jobs?host={}", "ada@/jobs?password=geheim&host={}"])
def test_open_store_reports_unreachable_server_without_password(tmp_path: Path, url: str) -> None:
    with pytest.raises(StoreUnavailable, match="server cannot be reached") as caught:
        open_store(f"postgresql+psycopg://{url.format(tmp_path)}")
    assert "geheim" not in str(caught.value)


@pytest.fixture(scope="module")
def guarded() -> Iterator[PostgresServer]:
    """A server that wants a password of the user ada."""
    with running_postgres() as server:
        server.demand_password("ada", "geheim")
        yield server


@pytest.mark.postgres
def test_open_store_reads_postgresql_password_from_passfile(
    guarded: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = guarded.url(guarded.create_database(owner="ada"), user="ada")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PGPASSFILE", str(tmp_path / "passwords"))
    with pytest.raises(StoreUnavailable, match=r"does not let us in: .* PGPASSFILE names"):
        open_store(url)
    for secret, opens in (("falsch", False), ("geheim", True)):
        (tmp_path / "passwords").write_text(f"*:*:*:ada:{secret}\n")
        (tmp_path / "passwords").chmod(0o600)
        if opens:
            open_store(url).close()
        else:
            with pytest.raises(StoreUnavailable, match="does not let us in") as caught:
                open_store(url)
            assert secret not in str(caught.value)


@pytest.mark.postgres
def test_open_store_reports_unknown_database_user_or_connection_limit(guarded: PostgresServer) -> None:
    name = guarded.create_database()
    for url in (guarded.url("nothing"), guarded.url(name, user="nobody")):
        with pytest.raises(StoreUnavailable, match="no such user or database"):
            open_store(url)
    with guarded.connect("postgres") as connection:
        connection.execute(f"ALTER DATABASE {name} CONNECTION LIMIT 0".encode())
        connection.execute("CREATE ROLE plain LOGIN")
    with pytest.raises(StoreUnavailable, match="no connection left"):
        open_store(guarded.url(name, user="plain"))


@pytest.mark.postgres
def test_store_reports_exhausted_pool_and_works_after_release(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "POOL_TIMEOUT_S", 0.1)
    store = open_store(postgres_url)
    taken = [store.engine.connect() for _ in range(10)]
    with pytest.raises(StoreUnavailable, match="no connection became free in time; try again"):
        add_job(store)
    for connection in taken:
        connection.close()
    add_job(store)
    store.close()


@pytest.mark.postgres
def test_store_reports_statement_timeout_and_works_afterwards(postgres_url: str) -> None:
    store, other = open_store(postgres_url), open_store(postgres_url)
    job = add_job(store)
    with other._database.writing() as connection:
        connection.execute(text("LOCK TABLE jobs"))
        limit_statements(store, 300)
        with pytest.raises(StoreUnavailable, match="has cancelled the statement; try again"):
            store.get(job.id)
    limit_statements(store, 0)  # which need not be as quick on a busy machine
    assert store.get(job.id) == job
    store.close()
    other.close()


def limit_statements(store: Store, limit_ms: int) -> None:
    """How long each may take on the one connection that the store has."""
    with store.engine.connect() as connection:
        connection.execute(text(f"SET statement_timeout = {limit_ms}"))
        connection.commit()


@pytest.mark.postgres
def test_store_reconnects_after_postgresql_restart_and_crash() -> None:
    with running_postgres() as server:
        store = open_store(server.url(server.create_database()))
        job = add_job(store)
        server.stop()
        with pytest.raises(StoreUnavailable, match="cannot be used"):
            store.get(job.id)
        server.start()
        assert store.get(job.id) == job
        server.stop(signal.SIGQUIT)  # as the power would: only what was synced counts
        server.start()
        assert applied(store, job, steps(JobState.QUEUED)).state is JobState.QUEUED
        store.close()


@pytest.mark.postgres
def test_store_writes_nothing_when_connection_is_cut_in_transaction(postgres_url: str) -> None:
    store, other = open_store(postgres_url), open_store(postgres_url)
    job = add_job(store)

    def cut(connection: object, _cursor: object, statement: str, *_: object) -> None:
        if statement.startswith("INSERT INTO history"):
            with other.engine.begin() as killer:
                killer.execute(
                    text("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() "
                         "AND datname = current_database()")
                )  # fmt: skip

    event.listen(store.engine, "before_cursor_execute", cut)
    with pytest.raises(StoreUnavailable):
        store.apply(job, steps(JobState.QUEUED))
    event.remove(store.engine, "before_cursor_execute", cut)
    assert store.get(job.id) == job
    assert_consistent(store, job.id)
    store.close()
    other.close()


@pytest.mark.postgres
@pytest.mark.parametrize("rows", [1, 3])
def test_store_releases_locks_when_transaction_is_idle_too_long(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    """Whatever its last statement was: psycopg sends several rows in another way than one."""
    other = open_store(postgres_url)
    monkeypatch.setattr(database, "STANDSTILL_S", 1)
    store = open_store(postgres_url)
    held = [{"name": str(number), "owner": "x", "token": "t", "until": 0.0} for number in range(rows)]
    leases = []
    with pytest.raises(StoreUnavailable, match="stood still for too long"), store._database.writing() as connection:
        connection.execute(insert(LEASES), held)
        leases.append(other.acquire_lease("0", "other", 30.0))  # waits for the lock, and gets it
    assert len(leases) == 1 and leases[0] is not None
    store.close()
    other.close()


@pytest.mark.postgres
def test_store_reports_read_only_server(postgres_url: str) -> None:
    store = open_store(f"{postgres_url}&options=-c%20default_transaction_read_only%3Don")
    with pytest.raises(StoreUnavailable, match="server is read-only"):
        add_job(store)
    store.close()


@pytest.mark.postgres
def test_open_store_rejects_database_with_latin1_encoding(postgres: PostgresServer) -> None:
    name = postgres.create_database("template0 ENCODING 'LATIN1'")
    with pytest.raises(StoreError, match="encoding LATIN1"):
        open_store(postgres.url(name))
    postgres.drop_database(name)


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (psycopg.errors.DiskFull("no space"), "the server's disk is full"),
        (psycopg.errors.TooManyConnections("53300"), "no connection left"),
        (psycopg.errors.AdminShutdown("bye"), "shutting down"),
        (psycopg.errors.DeadlockDetected("loop"), "another transaction came first"),
        (psycopg.errors.LockNotAvailable("lock"), "a lock was not granted"),
        (psycopg.errors.SerializationFailure("order"), "another transaction came first"),
        (psycopg.OperationalError("connection refused"), "cannot be reached"),
    ],
)
def test_translate_returns_unavailable_with_cure_for_temporary_error(error: psycopg.Error, advice: str) -> None:
    translated = translate(OperationalError("INSERT", None, error), "postgresql://h/d")
    assert isinstance(translated, StoreUnavailable)
    assert advice in str(translated)


def test_translate_returns_unavailable_for_busy_pool_but_not_for_missing_table() -> None:
    for corrupted in (psycopg.errors.DataCorrupted, psycopg.errors.IndexCorrupted):
        assert isinstance(translate(corrupted("invalid page in block 1"), "postgresql://h/d"), DatabaseDamaged)
    assert isinstance(translate(PoolTimeout("30 s"), "x"), StoreUnavailable)
    assert not isinstance(translate(psycopg.errors.UndefinedTable("jobs"), "x"), StoreUnavailable)
    assert not isinstance(translate(sqlite3.OperationalError("no such table"), "x"), StoreUnavailable)


def test_postgres_test_helper_reports_missing_server_binaries(tmp_path: Path) -> None:
    with pytest.raises(PostgresMissing, match="apt-get install postgresql"):
        find_binaries(tmp_path)
