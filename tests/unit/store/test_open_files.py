"""The files of a SQLite database are deleted, moved or replaced while it is open.

Nothing that was acknowledged is lost, and nothing is acknowledged that would be.
"""

from __future__ import annotations

import re
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import event

from ffdl_batch.store import DatabaseGone, Store, StoreUnavailable, open_store
from ffdl_batch.store.copies import companions
from tests.unit.store.jobs import FakeClock, add_job, new_job

CURE = re.compile(r"ffdl daemon stop; ffdl-admin db restore (\S+\.rescued-\S+?)( --force)?$")


@pytest.fixture(params=[False, True], ids=["log", "journal"])
def network_fs(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
def opened(path: Path, network_fs: bool, clock: FakeClock) -> Iterator[Store]:
    store = open_store(f"sqlite:///{path}", network_fs=network_fs, clock=clock)
    yield store
    store.close()


def ids_in(file: Path) -> set[str]:
    """The jobs of a file, as whoever opens it sees them after whoever has it open was killed."""
    copy = file.with_name("copy-of-" + file.name)
    for source, target in zip((file, *companions(file)), (copy, *companions(copy)), strict=True):
        target.unlink(missing_ok=True)
        if source.exists():
            shutil.copy(source, target)
    with closing(sqlite3.connect(copy)) as connection:
        return {row[0] for row in connection.execute("SELECT id FROM jobs")}


def is_troubled(store: Store) -> bool:
    return store.trouble is not None


def refused(store: Store, key: str = "late") -> str:
    """What somebody hears whose job cannot be kept; it is the daemon's trouble from now on."""
    with pytest.raises(DatabaseGone) as caught:
        add_job(store, key)
    assert store.trouble is not None and store.trouble.sentence == str(caught.value)
    return str(caught.value)


def test_a_deleted_database_takes_nothing_more_and_what_it_held_is_saved(opened: Store, path: Path) -> None:
    kept = {str(add_job(opened, f"k{number}").id) for number in range(3)}
    path.unlink()
    said = refused(opened)
    assert said.startswith(f"the database {path} was deleted, while a daemon works with it; nothing is accepted")
    found = CURE.search(said)
    assert found is not None and found[2] is None, said
    rescued = Path(found[1])
    assert ids_in(rescued) == kept and rescued.stat().st_mode & 0o777 == 0o600
    assert refused(opened, "later") == said  # the same copy: nothing was added to it
    assert {str(job.id) for job in opened.list_jobs(uid=None)} == kept
    assert not path.exists()


def test_what_was_committed_last_before_the_deletion_is_noticed_is_not_acknowledged(opened: Store, path: Path) -> None:
    """It is deleted between the look before the commit and the commit."""
    add_job(opened)
    event.listen(opened.engine, "commit", lambda _: path.unlink(missing_ok=True))
    refused(opened)


def test_a_database_that_was_moved_away_goes_on_when_it_is_back(opened: Store, path: Path, tmp_path: Path) -> None:
    kept = {str(add_job(opened).id)}
    elsewhere = tmp_path / "elsewhere.db"
    path.rename(elsewhere)
    said = refused(opened)
    assert f"{path} was moved to {elsewhere}, while a daemon works with it" in said and "Move it back" in said
    assert list(tmp_path.glob("*.rescued-*")) == []
    elsewhere.rename(path)
    kept.add(str(add_job(opened, "again").id))
    assert opened.trouble is None
    opened.close()
    assert ids_in(path) == kept


def test_a_database_in_whose_place_another_lies_is_not_mixed_with_it(opened: Store, path: Path, tmp_path: Path) -> None:
    kept = {str(add_job(opened).id)}
    copy = tmp_path / "copy"
    with closing(sqlite3.connect(copy)) as other:
        other.execute("CREATE TABLE jobs (id TEXT)")
    before = copy.read_bytes()
    copy.rename(path)
    said = refused(opened)
    assert "was deleted, and another file is in its place" in said
    found = CURE.search(said)
    assert found is not None and found[2] == " --force", said
    assert ids_in(Path(found[1])) == kept
    assert path.read_bytes() == before


def test_where_the_copy_finds_no_place_it_is_tried_again(
    opened: Store, tmp_path: Path, path: Path, clock: FakeClock
) -> None:
    kept = {str(add_job(opened).id)}
    shutil.rmtree(tmp_path)
    said = refused(opened)
    assert (
        f"no copy could be written to {path}.rescued-" in said and "Nothing is lost as long as this daemon runs" in said
    )
    tmp_path.mkdir()
    assert "no copy" in refused(opened)
    clock.time += 31
    found = CURE.search(refused(opened))
    assert found is not None and ids_in(Path(found[1])) == kept


def test_a_log_that_is_deleted_is_made_anew_and_loses_nothing(opened: Store, path: Path) -> None:
    """The deleted log holds what was committed before, and what is committed now."""
    kept = {str(add_job(opened).id)}
    for beside in companions(path):
        beside.unlink(missing_ok=True)
    kept.add(str(add_job(opened, "second").id))
    assert ids_in(path) == kept
    kept.add(str(add_job(opened, "third").id))
    assert ids_in(path) == kept


@pytest.mark.parametrize("network_fs", [False], indirect=True)
def test_a_log_that_cannot_be_saved_now_keeps_requests_from_being_acknowledged(opened: Store, path: Path) -> None:
    add_job(opened)
    with closing(sqlite3.connect(path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM jobs").fetchone()
        add_job(opened, "seen by no reader")
        path.with_name(path.name + "-wal").unlink()
        with opened.engine.connect() as connection:
            connection.exec_driver_sql("PRAGMA busy_timeout = 50")
        with pytest.raises(StoreUnavailable, match=r"log of the database .* was deleted, and cannot be saved"):
            add_job(opened, "late")
    add_job(opened, "later")
    assert len(ids_in(path)) == 3
    assert opened.trouble is None


def test_it_is_seen_though_nobody_writes(opened: Store, path: Path) -> None:
    kept = {str(add_job(opened).id)}
    opened.look_after_files()
    for beside in companions(path):
        beside.unlink(missing_ok=True)
    opened.look_after_files()
    assert ids_in(path) == kept and not is_troubled(opened)
    path.unlink()
    with pytest.raises(DatabaseGone, match="was deleted"):
        opened.look_after_files()
    assert is_troubled(opened)
    (rescued,) = path.parent.glob("*.rescued-*")
    assert ids_in(rescued) == kept


def test_a_batch_that_is_refused_is_not_in_the_database_when_it_is_back(opened: Store, path: Path) -> None:
    """Refused before the commit: nothing that was not acknowledged is executed later."""
    opened.add_jobs([new_job("first")])
    elsewhere = path.with_name("elsewhere")
    path.rename(elsewhere)
    with pytest.raises(DatabaseGone):
        opened.add_jobs([new_job("refused")])
    elsewhere.rename(path)
    assert len(opened.list_jobs(uid=None)) == 1
