"""The copy of a SQLite database before its upgrade, disks that are full, and schemas that are newer."""

from __future__ import annotations

import os
import resource
import signal
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import inspect, text

from ffdl_batch.host.running_clock import SystemClock
from ffdl_batch.store import SchemaTooNew, StoreUnavailable, open_store
from ffdl_batch.store.database import connect
from ffdl_batch.store.existing_database import connect_existing
from ffdl_batch.store.schema_upgrade import HEAD, bring_up_to_date, standing_of
from ffdl_batch.store.sqlite_files import KEPT, upgrade_copies
from tests.captured.releases import LATER, later_release
from tests.crash.fuzz.companions import fork_child
from tests.unit.store.jobs import add_job


def revision_of(file: Path) -> str | None:
    with connect_existing(f"sqlite:///{file}").reading() as connection:
        return standing_of(connection).revision


def jobs_in(file: Path) -> int:
    with sqlite3.connect(f"file:{file}?mode=ro", uri=True) as connection:
        return int(connection.execute("SELECT count(*) FROM jobs").fetchone()[0])


def assert_usable(file: Path) -> None:
    """The next start upgrades it, and it has its job."""
    store = open_store(f"sqlite:///{file}")
    assert len(store.list_jobs(uid=None)) == 1
    store.close()
    assert revision_of(file) == LATER[-1]


@pytest.fixture
def old(tmp_path: Path) -> Iterator[Path]:
    """A SQLite file of this release, with a job, in a process of a later one."""
    file = tmp_path / "state" / "ffdl.sqlite3"
    file.parent.mkdir()
    store = open_store(f"sqlite:///{file}")
    add_job(store)
    store.close()
    with later_release(tmp_path):
        yield file


@pytest.mark.parametrize("network_fs", [False, True])
def test_upgrade_keeps_private_copy_of_previous_database(old: Path, network_fs: bool) -> None:
    store = open_store(f"sqlite:///{old}", network_fs=network_fs)
    store.close()
    ((revision, copy),) = upgrade_copies(old)
    assert (revision, copy.stat().st_mode & 0o777) == (HEAD, 0o600)
    assert (revision_of(copy), jobs_in(copy)) == (HEAD, 1)
    journal = f"{old.name}-journal"  # on a network file system an empty one stays
    assert {path.name for path in old.parent.iterdir()} - {journal} == {old.name, copy.name}


def test_upgrade_keeps_only_newest_copies(old: Path) -> None:
    for day in range(1, 9):
        old.with_name(f"{old.name}.revision-{HEAD}-2020010{day}T000000Z").touch()
    other = old.with_name(f"{old.name}.revision-notes")
    other.touch()
    open_store(f"sqlite:///{old}").close()
    names = [path.name for _, path in upgrade_copies(old)]
    assert len(names) == KEPT
    assert names[1:] == [f"{old.name}.revision-{HEAD}-2020010{day}T000000Z" for day in (8, 7)]
    assert other.exists()


def open_with_limit(file: Path, limit_bytes: int, answer: Path) -> None:
    """Open the store in a process whose files cannot grow beyond the limit; write why that is refused to `answer`."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, resource.RLIM_INFINITY))
    try:
        open_store(f"sqlite:///{file}")
    except StoreUnavailable as error:
        answer.write_text(str(error))


def test_upgrade_changes_nothing_without_space_for_copy(old: Path, tmp_path: Path) -> None:
    before, answer = old.read_bytes(), tmp_path / "answer"
    names = {path.name for path in old.parent.iterdir()}
    child = fork_child(tmp_path / "log", lambda: open_with_limit(old, len(before) // 2, answer))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    refused = answer.read_text()
    assert f"no copy could be written to {old}.revision-{HEAD}-" in refused
    assert "must be writable and have 1 MiB of space (and quota)" in refused
    assert {path.name for path in old.parent.iterdir()} - {f"{old.name}-wal", f"{old.name}-shm"} == names
    assert old.read_bytes() == before
    assert_usable(old)


def test_upgrade_keeps_previous_revision_when_database_is_full(old: Path) -> None:
    database = connect(f"sqlite:///{old}", False, SystemClock())
    with database.reading() as connection:
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
        connection.exec_driver_sql(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(StoreUnavailable, match=r"full: free some space"):
        bring_up_to_date(database)
    database.close()
    assert revision_of(old) in (HEAD, LATER[0])
    assert_usable(old)


def make_newer(url: str, release: str) -> None:
    """What a later release leaves."""
    store = open_store(url)
    with store.engine.begin() as connection:
        connection.execute(text("CREATE TABLE later (what TEXT)"))
        connection.execute(text("UPDATE alembic_version SET version_num = '0999'"))
        if release:
            row = {"release": release}
            connection.execute(text("INSERT INTO schema_revisions VALUES ('0999', :release, 1.0)"), row)
    store.close()


@pytest.mark.parametrize("release", ["7.3.1", ""])
def test_open_store_rejects_newer_schema_and_names_release_and_copy(empty_url: str, release: str) -> None:
    store = open_store(empty_url)
    store.close()
    file = Path(empty_url.removeprefix("sqlite:///"))
    if empty_url.startswith("sqlite"):
        file.with_name(f"{file.name}.revision-{HEAD}-20200101T000000Z").touch()
    make_newer(empty_url, release)
    who = f"ffdl-batch {release}" if release else "a newer release"
    said = rf"revision 0999, made by {who};.*{HEAD} and older.*db restore FILE"
    with pytest.raises(SchemaTooNew, match=said) as error:
        open_store(empty_url)
    assert (f"revision-{HEAD}-" in str(error.value)) is empty_url.startswith("sqlite")
    database = connect_existing(empty_url)
    with database.reading() as connection:
        assert inspect(connection).has_table("later")
        assert standing_of(connection).revision == "0999"
    database.close()


@pytest.mark.parametrize("journal", ["WAL", "TRUNCATE"])
@pytest.mark.parametrize("network_fs", [False, True])
def test_open_store_leaves_newer_database_file_unchanged(tmp_path: Path, journal: str, network_fs: bool) -> None:
    file = tmp_path / "jobs.db"
    make_newer(f"sqlite:///{file}", "7.3.1")
    with sqlite3.connect(file) as connection:
        connection.execute(f"PRAGMA journal_mode = {journal}")
    connection.close()
    os.utime(file, (1.0, 1.0))
    before, beside = file.read_bytes(), sorted(tmp_path.iterdir())
    with pytest.raises(SchemaTooNew):
        open_store(f"sqlite:///{file}", network_fs=network_fs)
    assert (file.read_bytes(), file.stat().st_mtime, sorted(tmp_path.iterdir())) == (before, 1.0, beside)
