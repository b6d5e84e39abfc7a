"""A daemon that finds a database which does not know the jobs of its tree forgets none of them."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from ffdl_batch.config import Settings
from ffdl_batch.daemon.platform import open_platform
from ffdl_batch.services.job_files.attempt_directory import make_chunk
from ffdl_batch.services.job_files.database_binding import some_of
from ffdl_batch.services.job_files.orphan_cleanup import CHANGED_S, HALF_WRITTEN_AGE_S, sweep
from ffdl_batch.store import DatabaseMissing, open_store
from ffdl_batch.store.sqlite_files import upgrade_copies
from tests.captured.releases import later_release
from tests.conftest import POSTGRES
from tests.unit.services.conftest import Site, with_arrays
from tests.unit.services.test_binding import opened, settings_of
from tests.unit.store.jobs import add_job

on_sqlite = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


@pytest.fixture
def settings(tmp_path: Path, database_url: str) -> Settings:
    (tmp_path / "database").mkdir(exist_ok=True)
    return settings_of(tmp_path / "one", database_url)


def jobs_of(settings: Settings) -> Path:
    return Path(settings.jobs_dir, "jobs")


def forget(settings: Settings, job_id: str) -> None:
    """The database becomes one from before this job."""
    platform = open_platform(settings)
    with platform.storage.store.engine.begin() as connection:
        for table, column in (("history", "job_id"), ("jobs", "id")):
            connection.exec_driver_sql(f"DELETE FROM {table} WHERE {column} = '{job_id}'")
    platform.close()


def accept(settings: Settings, *names: str) -> list[str]:
    """Jobs, the last of which is deployed."""
    platform = open_platform(settings)
    ids = [str(add_job(platform.storage.store, name).id) for name in names]
    platform.close()
    (jobs_of(settings) / ids[-1] / "attempt-1").mkdir(parents=True)
    return ids


def test_open_platform_rejects_database_that_lacks_executed_job(settings: Settings) -> None:
    _, late = accept(settings, "known", "late")
    directory = jobs_of(settings) / late / "attempt-1"
    directory.rename(directory.with_name("attempt-next"))
    forget(settings, late)
    opened(settings)  # nothing shows that it was ever acknowledged
    directory.with_name("attempt-next").rename(directory)
    with pytest.raises(DatabaseMissing) as refused:
        opened(settings)
    for part in (
        "does not know 1 job that has a directory in ",
        f"{jobs_of(settings)} ",
        f"({late})",
        "ffdl-admin db restore FILE --force",
        "or move their directories away",
    ):
        assert part in str(refused.value), part
    assert directory.is_dir()
    directory.parent.rename(jobs_of(settings).parent / "away")
    opened(settings)


def test_open_platform_ignores_entries_that_are_no_executed_job_directory(settings: Settings) -> None:
    accept(settings, "known")
    for name in ("training-short", "training-0000late0.bak", ".removing-training-0000late0-1234abcd"):
        (jobs_of(settings) / name / "attempt-1").mkdir(parents=True)
    (jobs_of(settings) / "training-0000refsd").mkdir()
    (jobs_of(settings) / "training-0000refsd" / "environment.json").touch()
    (jobs_of(settings) / "training-0000a0fi0").touch()
    opened(settings)


def test_open_platform_scans_no_directory_of_known_jobs(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """There may be a hundred thousand."""
    accept(settings, *(f"k{number}" for number in range(20)))
    seen: list[str] = []
    scan = os.scandir

    def watched(path: str) -> object:
        seen.append(str(path))
        return scan(path)

    monkeypatch.setattr("ffdl_batch.services.job_files.database_binding.os.scandir", watched)
    opened(settings)
    assert not [path for path in seen if "training-" in path]


def test_open_platform_error_names_jobs_missing_from_database(settings: Settings) -> None:
    accept(settings, "known")
    lost = ["training-00000lat1", "training-00000lat2"]
    for job in lost:
        (jobs_of(settings) / job / "attempt-1").mkdir(parents=True)
    with pytest.raises(
        DatabaseMissing, match=rf"does not know 2 jobs that have .* were executed \({', '.join(lost)}\)"
    ):
        opened(settings)
    assert some_of(list("abcdefg")) == "a, b, c, d, e and 2 more"


@on_sqlite
@pytest.mark.parametrize("lacks", ["a job", "its tree"])
def test_open_platform_rejects_older_database_before_migrating_it(
    settings: Settings, database_url: str, tmp_path: Path, lacks: str
) -> None:
    file = Path(database_url.removeprefix("sqlite:///"))
    store = open_store(database_url)
    add_job(store, "known")
    store.close()
    if lacks == "a job":
        (jobs_of(settings) / "training-0000late0" / "attempt-1").mkdir(parents=True)
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("UPDATE jobs SET state = 'PROCESSING', native_id = '47'")
        before = list(connection.iterdump())
    with later_release(tmp_path), pytest.raises(DatabaseMissing if lacks == "a job" else FileNotFoundError):
        opened(settings)
    with closing(sqlite3.connect(file)) as connection:
        assert list(connection.iterdump()) == before
    assert upgrade_copies(file) == []


@pytest.mark.parametrize("database_url", [POSTGRES], indirect=True)
def test_open_platform_accepts_older_jobs_directory_with_new_postgresql_database(
    settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    old = jobs_of(settings) / "training-00000old0" / "attempt-1"
    old.mkdir(parents=True)
    opened(settings)
    assert "1 jobs" in caplog.text and "training-00000old0" in caplog.text
    caplog.clear()
    (late,) = accept(settings, "late")
    opened(settings)
    assert caplog.text == ""
    accept(settings, "another")
    forget(settings, late)
    with pytest.raises(DatabaseMissing, match=rf"does not know 1 job .*\({late}\)"):
        opened(settings)


LEFT_IN_STATE = ("state/.store-logs.exit.0a1b2c3d", "state/.load-model.start_time.d0e679a2")
LEFT = (".control.json.0a1b2c3d", ".now-x7f_3k2p", "submit/.begun.d0e679a2", "../.manifest.yml.e6aa130b")


def leave(site: Site, place: Path, name: str, age_s: float) -> Path:
    path = place / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("half")
    at = site.clock.now() - age_s
    os.utime(path, (at, at))
    return path


def test_janitor_removes_half_written_files_of_attempt_after_an_hour(site: Site) -> None:
    attempt = Path(site.attempt(site.deployed()).path)
    names = [*LEFT, ".final.json.0a1b2c3d", "claim/.owner.json.d0e679a2", *LEFT_IN_STATE]
    fresh = [leave(site, attempt, name, HALF_WRITTEN_AGE_S - 1) for name in names]
    assert (sweep(site.platform.storage, site.platform.settings), [file for file in fresh if not file.exists()]) == (
        0,
        [],
    )
    old = [leave(site, attempt, name, HALF_WRITTEN_AGE_S + 1) for name in names]
    assert (sweep(site.platform.storage, site.platform.settings), [file for file in old if file.exists()]) == (
        len(names),
        [],
    )


def test_janitor_removes_half_written_files_of_native_array_and_state_directory(site: Site) -> None:
    fleet = with_arrays(site)
    chunk = Path(make_chunk(site.platform.storage.root, fleet.accept("array: 0-2"))[1].path)
    state = Path(site.platform.settings.state_dir)
    copies = [f".ffdl.sqlite3.0a1b2c3d{suffix}" for suffix in ("-journal", "-wal", "-shm")]
    names = {
        chunk: [".tasks.0a1b2c3d", ".script.sh.d0e679a2", "../.manifest.yml.e6aa130b"],
        state: [".daemon.lock.host.4711", *copies],
    }
    old = [leave(site, place, name, HALF_WRITTEN_AGE_S + 1) for place in names for name in names[place]]
    assert (sweep(site.platform.storage, site.platform.settings), [file for file in old if file.exists()]) == (7, [])


def test_janitor_removes_half_written_controller(site: Site) -> None:
    place = Path(site.platform.storage.root.path, "controller")
    part = leave(site, place, ".controller-0a1b2c3d4e5f6a7b.pyz.d0e679a2", HALF_WRITTEN_AGE_S + 1)
    assert sweep(site.platform.storage, site.platform.settings) == 1
    assert not part.exists()


@pytest.mark.parametrize("target", ["itself", "results"])
def test_janitor_removes_half_written_symlink_without_following_it(site: Site, target: str) -> None:
    attempt = Path(site.attempt(site.deployed()).path)
    kept = leave(site, attempt, "results/kept", 0.0)
    link = attempt / LEFT_IN_STATE[0]
    link.symlink_to(link if target == "itself" else kept.parent)
    at = site.clock.now() - HALF_WRITTEN_AGE_S - 1
    os.utime(link, (at, at), follow_symlinks=False)
    assert sweep(site.platform.storage, site.platform.settings) == 1
    assert not link.is_symlink()
    assert kept.exists()


USERS = ("state/model.5173.tmp", "state/.now-saving", "state/.model.0a1b2c3d", "results/.a.exit.0a1b2c3d")


def test_janitor_keeps_files_that_are_not_half_written(site: Site) -> None:
    attempt = Path(site.attempt(site.deployed()).path)
    names = (".uploading", ".uploading.log", ".uploading-wal", "script.sh", ".ended-1", *USERS)
    kept = [leave(site, attempt, name, 2 * HALF_WRITTEN_AGE_S) for name in names]
    assert (sweep(site.platform.storage, site.platform.settings), [file for file in kept if not file.exists()]) == (
        0,
        [],
    )


@pytest.mark.parametrize("name", ["db.1.tmp", "key.0a1b2c3d"])
def test_janitor_keeps_secret_whose_name_looks_temporary(site: Site, name: str) -> None:
    place = Path(site.platform.storage.root.secrets)
    kept, left = (leave(site, place, one, 2 * HALF_WRITTEN_AGE_S) for one in (name, f".{name}.0a1b2c3d"))
    assert sweep(site.platform.storage, site.platform.settings) == 1
    assert (kept.exists(), left.exists()) == (True, False)


def test_janitor_skips_jobs_unchanged_for_long(site: Site) -> None:
    left = leave(site, Path(site.attempt(site.deployed()).path), LEFT[0], 2 * HALF_WRITTEN_AGE_S)
    site.clock.tick(CHANGED_S + 1)
    sweep(site.platform.storage, site.platform.settings)
    assert left.exists()
