"""Rows and the directories that belong to them stay together."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from ffdl_batch.config import Settings, load_settings
from ffdl_batch.domain.job_state import JobState
from ffdl_batch.services.platform import Platform, open_platform
from ffdl_batch.store import DatabaseMissing, StoreError
from tests.unit.store.jobs import add_job, applied, steps


def settings_of(place: Path, database_url: str) -> Settings:
    """A daemon's, with its state and its jobs below `place`."""
    environ = {"HOME": str(place), "FFDL_STATE_DIR": str(place / "state"), "FFDL_JOBS_DIR": str(place / "tree")}
    return load_settings(cwd=place.parent, environ=environ | {"FFDL_DATABASE_URL": database_url})


@pytest.fixture
def first(tmp_path: Path, database_url: str) -> Settings:
    (tmp_path / "database").mkdir()
    return settings_of(tmp_path / "one", database_url)


@pytest.fixture
def other_tree(first: Settings, tmp_path: Path) -> Settings:
    """The same database with another jobs_dir: what two daemons have whose owner forgot to set it."""
    return replace(first, jobs_dir=str(tmp_path / "other"), state_dir=str(tmp_path / "two"))


def opened(settings: Settings) -> Platform:
    platform = open_platform(settings)
    platform.close()
    return platform


def test_open_platform_rejects_other_jobs_dir_while_a_job_is_live(first: Settings, other_tree: Settings) -> None:
    platform = open_platform(first)
    job = add_job(platform.store)
    platform.close()
    Path(other_tree.jobs_dir, "jobs").mkdir(parents=True)
    with pytest.raises(StoreError, match=f"directories in {first.jobs_dir}, but jobs_dir is {other_tree.jobs_dir}"):
        open_platform(other_tree)
    platform = open_platform(first)
    applied(platform.store, platform.store.get(job.id) or job, steps(JobState.CANCELLED))
    platform.close()
    opened(other_tree)
    with pytest.raises(StoreError, match="jobs_dir is"):
        platform = open_platform(other_tree)
        add_job(platform.store)
        platform.close()
        open_platform(first)


def test_open_platform_rejects_other_jobs_dir_while_another_daemon_holds_a_lease(
    first: Settings, other_tree: Settings
) -> None:
    platform = open_platform(first)
    token = platform.store.acquire_lease("watcher", platform.owner, 60.0)
    assert token is not None
    platform.store.engine.dispose()
    with pytest.raises(StoreError, match="daemons that share a database share it"):
        open_platform(other_tree)
    platform.store.release_lease("watcher", token)
    platform.close()
    opened(other_tree)


def test_open_platform_accepts_moved_jobs_tree(first: Settings, tmp_path: Path) -> None:
    platform = open_platform(first)
    add_job(platform.store)
    platform.close()
    Path(first.jobs_dir).rename(tmp_path / "moved")
    opened(replace(first, jobs_dir=str(tmp_path / "moved")))


def test_open_platform_accepts_replacement_tree_after_its_name_is_written_by_hand(
    first: Settings, other_tree: Settings
) -> None:
    platform = open_platform(first)
    add_job(platform.store)
    platform.close()
    Path(other_tree.jobs_dir, "jobs").mkdir(parents=True)
    with pytest.raises(StoreError, match=r"write [0-9a-f]{16} into .*/other/\.tree") as refused:
        open_platform(other_tree)
    name = str(refused.value).partition(", write ")[2].split()[0]
    Path(other_tree.jobs_dir, ".tree").write_text(name)
    opened(other_tree)


def test_open_platform_writes_tree_name_when_its_file_is_empty(
    first: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody was killed between making the file and writing it."""
    monkeypatch.setattr("ffdl_batch.services.binding._PATIENCE_S", 0.1)
    Path(first.jobs_dir).mkdir(parents=True)
    (Path(first.jobs_dir) / ".tree").touch()
    opened(first)
    assert (Path(first.jobs_dir) / ".tree").read_text().strip()
    opened(first)


def test_open_platform_writes_tree_name_file_atomically(first: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whenever a daemon that names its tree is killed: each file that it opens is a moment at which that may happen."""
    name, opened_files, open_file = Path(first.jobs_dir) / ".tree", [], os.open

    def watched(path: str | bytes | Path, *arguments: int, **more: int) -> int:
        descriptor = open_file(path, *arguments, **more)
        opened_files.append(path)
        assert not name.exists() or name.read_text().strip()
        return descriptor

    monkeypatch.setattr("os.open", watched)
    opened(first)
    assert any(".tree" in str(path) for path in opened_files)
    assert [path.name for path in Path(first.jobs_dir).glob(".tree*")] == [".tree"]


@pytest.mark.parametrize("left", ["nothing", "an empty file", "a database without tables"])
def test_open_platform_rejects_missing_database_when_job_directories_exist(tmp_path: Path, left: str) -> None:
    (tmp_path / "database").mkdir()
    file = tmp_path / "database" / "jobs.sqlite3"
    settings = settings_of(tmp_path / "one", f"sqlite:///{file}")
    platform = open_platform(settings)
    job = Path(platform.root.job(str(add_job(platform.store).id)).path)
    job.mkdir()
    platform.close()
    kept = file.read_bytes()
    file.unlink()
    if left == "an empty file":
        file.touch()
    elif left != "nothing":
        with closing(sqlite3.connect(file)) as connection:
            connection.execute("PRAGMA user_version = 7")
    before = sorted(path.name for path in file.parent.iterdir())
    with pytest.raises(DatabaseMissing) as refused:
        open_platform(settings)
    for part in (f"there is no database {file}", f"{job.parent} has directories of jobs", "ffdl-admin db restore FILE"):
        assert part in str(refused.value)
    assert sorted(path.name for path in file.parent.iterdir()) == before, "nothing was made"
    job.parent.rename(tmp_path / "away")
    opened(settings)  # to begin anew
    (tmp_path / "away").rename(tmp_path / "one" / "tree" / "jobs.old")
    file.write_bytes(kept)
    opened(settings)


def test_open_platform_accepts_existing_tree_only_with_new_postgresql_database(first: Settings) -> None:
    """Whoever goes over from SQLite brings the tree along; an empty SQLite database is another matter."""
    Path(first.jobs_dir, "jobs", "training-0a1b2c3d4").mkdir(parents=True)
    if first.database.startswith("postgresql"):
        opened(first)
    else:
        with pytest.raises(DatabaseMissing):
            opened(first)
