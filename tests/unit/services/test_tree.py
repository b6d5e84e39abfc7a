"""A tree of job directories that hangs, fails, or is not mounted: nothing is concluded from it, and it is said why."""

from __future__ import annotations

import errno
import os
import threading
import time
from pathlib import Path

import pytest

from ffdl_batch.config import load_settings
from ffdl_batch.domain.jobdir import Root
from ffdl_batch.domain.observation import EndCause, NativeId
from ffdl_batch.services.evidence import read_evidence, saved_checkpoint
from ffdl_batch.services.file_troubles import explain
from ffdl_batch.services.platform import open_platform
from ffdl_batch.services.tree import FRESH_S, Tree
from ffdl_batch.services.watch import SETTLE_S, Watcher
from tests.fakes.clock import FakeClock
from tests.unit.services.conftest import Site


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


def test_explain_returns_none_for_missing_file_or_denied_permission() -> None:
    assert explain(FileNotFoundError(errno.ENOENT, "missing", "/jobs/jobs/x"), "/jobs") is None
    assert explain(PermissionError(errno.EACCES, "denied"), "/jobs") is None


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
    tree = Path(site.platform.root.path)
    away = tree.with_name("elsewhere")
    away.mkdir()
    watcher = Watcher(site.platform)
    move_tree(tree, away)
    for _ in range(3):
        site.clock.tick(SETTLE_S)
        watcher.look()
    assert str(site.job(job.id).state) == "QUEUED"
    with pytest.raises(FileNotFoundError):
        read_evidence(site.attempt(job))
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


def test_open_platform_rejects_missing_jobs_directory_if_jobs_are_live(tmp_path: Path) -> None:
    environ = {
        "HOME": str(tmp_path),
        "FFDL_STATE_DIR": str(tmp_path / "state"),
        "FFDL_JOBS_DIR": str(tmp_path / "tree"),
    }
    settings = load_settings(cwd=tmp_path, environ=environ)
    open_platform(settings, FakeClock()).close()
    jobs = tmp_path / "tree" / "jobs"
    jobs.rmdir()
    open_platform(settings, FakeClock()).close()  # nobody's job is missing
    assert jobs.is_dir()
    jobs.rmdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ffdl_batch.store.Store.live_backends", lambda _: ["slurm"])
        with pytest.raises(FileNotFoundError, match="though jobs live in it"):
            open_platform(settings, FakeClock())
    assert not jobs.exists()
