"""Modes and groups of results, logs and directories that are stored in a directory of the submitter's."""

from __future__ import annotations

import errno
import os
import stat
import struct
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ffdl_batch.attempt.layout import AttemptDir
from ffdl_batch.controller.data.result_storage import store_logs, store_results
from ffdl_batch.domain.launch.launch_file import LaunchFile, Stores
from ffdl_batch.host.permissions import umask_set
from tests.unit.controller.rig import launch_file, refusal

PROJECT, OWN, CHOSEN = (54_321, 54_322, 54_323) if os.geteuid() == 0 else [os.getegid()] * 3
"""Groups of no user, to which only root can give files; another user has its own in their place."""
DEFAULT_ACL = struct.pack(
    "<I" + "HHI" * 5, 2, 0x01, 7, 0xFFFFFFFF, 0x04, 5, 0xFFFFFFFF, 0x08, 7, PROJECT, 0x10, 7, 0xFFFFFFFF, 0x20, 0,
    0xFFFFFFFF,
)  # fmt: skip
"""``u::rwx,g::r-x,g:PROJECT:rwx,m::rwx,o::---`` (<linux/posix_acl_xattr.h>)."""


@pytest.fixture(autouse=True)
def controller_umask() -> Iterator[None]:
    with umask_set(0o077):
        yield


def launch_of(tmp_path: Path, umask: int, gid: int | None = None) -> LaunchFile:
    """An attempt whose learner has ended, and whose results go to ``project/training-7``."""
    job = tmp_path / "jobs/training-7"
    attempt = AttemptDir(str(job / "attempt-1"))
    Path(attempt.learner_logs(1)).mkdir(parents=True)
    with umask_set(umask):
        results = Path(attempt.results)
        (results / "plain").mkdir(parents=True)
        (results / "plain/model.pt").write_text("weights")
        Path(attempt.training_log(1)).write_text("loss 1\n")
        (results / "shut").mkdir(0o700)
        (results / "key").write_text("secret")
        (results / "key").chmod(0o600)
        (results / "wide").mkdir()
        (results / "wide").chmod(0o2775)
        (results / "run.sh").write_text("true")
        (results / "run.sh").chmod(0o777 & ~umask)
    (tmp_path / "project").mkdir()
    store = str(tmp_path / "project/training-7")
    stores = Stores(results=store, logs=store)
    return launch_file(attempt.path, job_dir=str(job), stores=stores, umask=umask, gid=gid)


def store(launch: LaunchFile) -> Path:
    store_results(launch)
    store_logs(launch, [1])
    return Path(launch.stores.results)


def seen(path: Path) -> tuple[int, int]:
    """The mode and the group."""
    found = path.stat()
    return stat.S_IMODE(found.st_mode), found.st_gid


@pytest.fixture(params=["linked", "copied"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "copied":
        monkeypatch.setattr(os, "link", refusal(errno.EPERM))
    return str(request.param)


@pytest.mark.parametrize("umask", [0o002, 0o022, 0o027, 0o077], ids=oct)
def test_stored_files_have_umask_of_submitter_and_group_of_setgid_directory(
    tmp_path: Path, way: str, umask: int
) -> None:
    launch = launch_of(tmp_path, umask)
    project = tmp_path / "project"
    os.chown(project, -1, PROJECT)
    project.chmod(0o2770)
    stored = store(launch)
    directory, file = 0o2777 & ~umask, 0o666 & ~umask
    assert seen(stored) == seen(stored / "plain") == seen(stored / "learner-1") == (directory, PROJECT)
    for name in ("plain/model.pt", "learner-1/training-log.txt", "learner-1/.log-copy-complete"):
        assert seen(stored / name) == (file, PROJECT)
    assert seen(stored / "run.sh") == (0o777 & ~umask, PROJECT)
    assert seen(stored / "key") == (0o600, PROJECT)
    assert seen(stored / "shut") == (0o2700, PROJECT)
    assert seen(stored / "wide") == (0o2775, PROJECT)


def test_stored_files_inherit_default_acl(tmp_path: Path, way: str) -> None:
    """As files that a learner would create there: the ACL counts in place of the umask."""
    launch = launch_of(tmp_path, 0o077)
    os.setxattr(tmp_path / "project", "system.posix_acl_default", DEFAULT_ACL)
    stored = store(launch)
    assert os.getxattr(stored / "plain", "system.posix_acl_default") == DEFAULT_ACL
    assert seen(stored / "plain")[0] == 0o770
    for name in ("plain/model.pt", "learner-1/training-log.txt"):
        assert seen(stored / name)[0] == 0o660  # the group bits are the ACL's mask
        assert os.getxattr(stored / name, "system.posix_acl_access")
    assert seen(stored / "run.sh")[0] == 0o770


def test_stored_files_have_current_group_of_submitter_in_directory_without_setgid(tmp_path: Path, way: str) -> None:
    launch = launch_of(tmp_path, 0o027, gid=OWN)
    results = Path(AttemptDir(launch.attempt_dir).results)
    os.chown(results / "run.sh", -1, CHOSEN)
    stored = store(replace(launch, stores=Stores(results=str(tmp_path / "new/training-7"), logs=launch.stores.logs)))
    directory = 0o0750 if os.getegid() == OWN else 0o2750
    assert seen(tmp_path / "new") == seen(stored) == seen(stored / "plain") == (directory, OWN)
    assert seen(stored / "plain/model.pt") == (0o640, OWN)
    assert seen(stored / "run.sh") == (0o750, CHOSEN)  # by its learner
    assert seen(tmp_path / "project")[1] == os.getegid()
    assert seen(tmp_path / "project/training-7/learner-1/training-log.txt") == (0o640, OWN)


def test_stored_files_are_copied_if_submitter_may_not_give_them_to_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others have opened their setgid directory to a user who is no member of its group."""
    launch = launch_of(tmp_path, 0o022, gid=OWN)
    os.chown(tmp_path / "project", -1, PROJECT)
    (tmp_path / "project").chmod(0o2777)
    monkeypatch.setattr(os, "chown", refusal(errno.EPERM))
    stored = store(launch)
    original = Path(AttemptDir(launch.attempt_dir).results) / "plain/model.pt"
    assert seen(stored / "plain/model.pt") == (0o644, PROJECT)
    assert seen(original) == (0o644, os.getegid())
    assert stored.joinpath("plain/model.pt").samefile(original) == (os.getegid() == PROJECT)
