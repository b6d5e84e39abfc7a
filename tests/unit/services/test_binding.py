"""Rows and the directories that belong to them stay together."""

from __future__ import annotations

import errno
import os
import sqlite3
import threading
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from ffdl_batch.attempt.layout import Root
from ffdl_batch.config import Settings, load_settings
from ffdl_batch.config.daemon_location import PlaceRefused
from ffdl_batch.daemon.platform import Platform, open_platform
from ffdl_batch.domain.job_state import JobState
from ffdl_batch.domain.outcome.observation import EndCause, NativeId
from ffdl_batch.services.job_storage import FRESH_S, Tree
from ffdl_batch.services.monitoring.watcher import SETTLE_S
from ffdl_batch.services.os_errors import explain
from ffdl_batch.services.outcome.attempt_records import read_events, saved_checkpoint
from ffdl_batch.store import DatabaseMissing, StoreError
from tests.unit.services.conftest import Site
from tests.unit.store.jobs import add_job, applied, deploying, steps


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


@pytest.mark.parametrize("place", ["state", "tree", "database"])
def test_open_platform_refuses_directory_that_others_can_write(tmp_path: Path, place: str) -> None:
    (tmp_path / place).mkdir()
    (tmp_path / place).chmod(0o775)
    settings = settings_of(tmp_path, f"sqlite:///{tmp_path}/database/ffdl.sqlite3")
    with pytest.raises(PlaceRefused, match=f"{tmp_path}/{place} .* has mode 0775, which lets others write"):
        open_platform(settings)
    assert not list((tmp_path / place).iterdir())


def test_open_platform_rejects_other_jobs_dir_while_a_job_is_live(first: Settings, other_tree: Settings) -> None:
    platform = open_platform(first)
    job = add_job(platform.storage.store)
    platform.close()
    Path(other_tree.jobs_dir, "jobs").mkdir(parents=True)
    with pytest.raises(StoreError, match=f"directories in {first.jobs_dir}, but jobs_dir is {other_tree.jobs_dir}"):
        open_platform(other_tree)
    platform = open_platform(first)
    applied(platform.storage.store, platform.storage.store.get(job.id) or job, steps(JobState.CANCELLED))
    platform.close()
    opened(other_tree)
    with pytest.raises(StoreError, match="jobs_dir is"):
        platform = open_platform(other_tree)
        add_job(platform.storage.store)
        platform.close()
        open_platform(first)


def test_open_platform_rejects_other_jobs_dir_while_another_daemon_holds_a_lease(
    first: Settings, other_tree: Settings
) -> None:
    platform = open_platform(first)
    token = platform.storage.store.acquire_lease("watcher", platform.leases.owner, 60.0)
    assert token is not None
    platform.storage.store.engine.dispose()
    with pytest.raises(StoreError, match="daemons that share a database share it"):
        open_platform(other_tree)
    platform.storage.store.release_lease("watcher", token)
    platform.close()
    opened(other_tree)


def test_open_platform_rejects_missing_jobs_directory_if_jobs_are_live(first: Settings) -> None:
    opened(first)
    jobs = Path(first.jobs_dir, "jobs")
    jobs.rmdir()
    platform = open_platform(first)  # no job is missing
    assert jobs.is_dir()
    job, token = deploying(platform.storage.store)
    applied(platform.storage.store, job, steps(JobState.QUEUED, native_id="7"), lease_token=token)
    platform.close()
    jobs.rmdir()
    with pytest.raises(FileNotFoundError, match="but live jobs need it"):
        open_platform(first)
    assert not jobs.exists()


def test_open_platform_accepts_moved_jobs_tree(first: Settings, tmp_path: Path) -> None:
    platform = open_platform(first)
    add_job(platform.storage.store)
    platform.close()
    Path(first.jobs_dir).rename(tmp_path / "moved")
    opened(replace(first, jobs_dir=str(tmp_path / "moved")))


def test_open_platform_accepts_replacement_tree_after_its_name_is_written_by_hand(
    first: Settings, other_tree: Settings
) -> None:
    platform = open_platform(first)
    add_job(platform.storage.store)
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
    monkeypatch.setattr("ffdl_batch.services.job_files.database_binding._PATIENCE_S", 0.1)
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
    job = Path(platform.storage.root.job(str(add_job(platform.storage.store).id)).path)
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
    opened(settings)  # to start again
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


@pytest.fixture
def root(tmp_path: Path) -> Root:
    made = Root(str(tmp_path / "tree"))
    Path(made.doorbell).mkdir(parents=True)
    return made


def test_tree_check_times_out_and_blocks_one_thread_when_file_system_hangs(
    root: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, asked = threading.Event(), []
    listdir = os.listdir

    def hang(path: str) -> list[str]:
        asked.append(path)
        held.wait(120)
        return listdir(path)

    tree = Tree(root)
    with monkeypatch.context() as patch:
        patch.setattr(os, "listdir", hang)
        for patience_s in (0.2, 0.2, 0.0):
            with pytest.raises(OSError, match="no answer for") as raised:
                tree.check(patience_s)
            assert raised.value.errno == errno.ETIMEDOUT
        until = time.monotonic() + 60.0
        while not asked and time.monotonic() < until:  # the thread may only just have been started
            time.sleep(0.01)
        assert len(asked) == 1
        held.set()
        tree.check(60.0)


def test_tree_check_reports_process_limit_when_thread_cannot_start(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    tree = Tree(root)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        for _ in range(2):
            with pytest.raises(OSError, match="can't start new thread") as raised:
                tree.check()
            trouble = explain(raised.value, root.path)
            assert trouble is not None and "no memory or no process" in trouble.message
    tree.check()


def test_tree_check_reuses_answer_until_it_expires(root: Root) -> None:
    now = [100.0]
    tree = Tree(root, lambda: now[0])
    tree.check()
    Path(root.doorbell).rmdir()
    tree.check()
    with pytest.raises(FileNotFoundError):
        tree.check(fresh_s=0.0)
    now[0] += 2 * FRESH_S
    with pytest.raises(FileNotFoundError) as raised:
        tree.check()
    trouble = explain(raised.value, root.path)
    assert trouble is not None
    assert "look whether its file system is mounted" in trouble.cure


@pytest.mark.parametrize(
    ("number", "said", "cure"),
    [
        (errno.ENOSPC, "no space is left in /jobs", "free space"),
        (errno.EDQUOT, "no space is left in /jobs", "quota"),
        (errno.EROFS, "is read-only", "mounted for writing"),
        (errno.ESTALE, "does not answer as it should", "file server"),
        (errno.EMFILE, "as many files", "ulimit -n"),
        (errno.ENFILE, "as many files", "fs.file-max"),
        (errno.ENOMEM, "no memory", "end something"),
    ],
)
def test_explain_names_message_and_cure_for_file_system_error(number: int, said: str, cure: str) -> None:
    trouble = explain(OSError(number, os.strerror(number)), "/jobs")
    assert trouble is not None
    assert said in trouble.message and cure in trouble.cure


def test_explain_returns_none_for_missing_file_or_denied_permission(root: Root) -> None:
    assert explain(FileNotFoundError(errno.ENOENT, "missing", f"{root.path}/jobs/x"), root.path) is None
    assert explain(PermissionError(errno.EACCES, "denied"), root.path) is None


@pytest.mark.parametrize("missing", ["doorbell", "jobs/.now-x", ""])
def test_explain_says_that_tree_is_not_there_for_any_file_below_it(tmp_path: Path, missing: str) -> None:
    """An empty mount point is no tree."""
    trouble = explain(FileNotFoundError(errno.ENOENT, "missing", str(tmp_path / missing)), str(tmp_path))
    assert trouble is not None and trouble.message == f"{tmp_path} is not there"
    assert explain(FileNotFoundError(errno.ENOENT, "missing"), "") is None


def test_explain_says_that_tree_was_not_there_if_it_has_come_back(root: Root) -> None:
    trouble = explain(FileNotFoundError(errno.ENOENT, "missing", root.doorbell), root.path)
    assert trouble is not None and trouble.message == f"{root.path} is not there"


def move_tree(source: Path, target: Path) -> None:
    """As if its file system were mounted elsewhere; the database stays, which lies on another."""
    for path in source.iterdir():
        if "sqlite3" not in path.name:
            path.rename(target / path.name)


def test_watcher_keeps_job_queued_while_jobs_directory_is_not_mounted(site: Site) -> None:
    """The scheduler says that it ended, and nothing of what it left can be seen."""
    job = site.deployed()
    site.scheduler.run(NativeId.parse(job.native_id))
    site.scheduler.end(NativeId.parse(job.native_id), EndCause.SUCCESS, site.clock.now())
    tree = Path(site.platform.storage.root.path)
    away = tree.with_name("elsewhere")
    away.mkdir()
    watcher = site.platform.watcher()
    move_tree(tree, away)
    for _ in range(3):
        site.clock.tick(SETTLE_S)
        watcher.look()
    assert str(site.job(job.id).state) == "QUEUED"
    with pytest.raises(FileNotFoundError):
        read_events(site.attempt(job))
    move_tree(away, tree)
    watcher.look()
    assert (str(site.job(job.id).state), site.job(job.id).error_code) == ("FAILED", "S106")


def test_saved_checkpoint_raises_if_file_server_fails(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    attempt = site.attempt(site.deployed())
    Path(attempt.state, ".began-1").write_text("7\n")
    checkpoints = Path(attempt.path).parent / "checkpoints"
    (checkpoints / "epoch-1").write_text("x")
    assert saved_checkpoint(attempt, str(checkpoints)).newest == "epoch-1"

    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "broken")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "lstat", fail)
        with pytest.raises(OSError, match="broken"):
            saved_checkpoint(attempt, str(checkpoints))
