"""The umask and the groups of a process, and why it may not use a path."""

from __future__ import annotations

import errno
import grp
import os
import pwd
from pathlib import Path

import pytest

from ffdl_batch.host.permissions import (
    explain_denial,
    find_old_groups,
    is_default_mode,
    read_umask,
    umask_set,
    with_denial,
)
from tests.owners import belongs_to

JOINED, OTHER, STRANGER = 4_711_815, 4_711_816, 4_711_817
OLD = f"ffdl's daemon was started before you became a member of the group '{JOINED}'"
RESTART = "log in again and run: ffdl daemon restart"
ASK = "ask its owner for access, or use another path"


@pytest.mark.parametrize("umask", [0, 0o002, 0o027, 0o777])
def test_umask_is_read_as_it_was_set(umask: int) -> None:
    before = read_umask()
    with umask_set(umask):
        assert read_umask() == umask
    assert read_umask() == before


@pytest.mark.parametrize(
    ("mode", "directory", "is_default"),
    [(0o640, False, True), (0o750, False, True), (0o750, True, True), (0o2750, True, True), (0o644, False, False),
     (0o600, False, False), (0o640, True, False), (0o700, True, False)],
)  # fmt: skip
def test_default_modes_are_those_that_umask_leaves_of_new_files(mode: int, directory: bool, is_default: bool) -> None:
    assert is_default_mode(mode, 0o027, directory=directory) is is_default


@pytest.mark.parametrize(
    ("joined", "named"),
    [({}, ""), ({4711: "proj"}, "the group 'proj'"), ({4711: "proj", 9: "lab"}, "the groups 'lab', 'proj'")],
)
def test_message_names_groups_that_user_joined_after_start(
    monkeypatch: pytest.MonkeyPatch, joined: dict[int, str], named: str
) -> None:
    monkeypatch.setattr(os, "getgrouplist", lambda _name, gid: [gid, os.getegid(), *os.getgroups(), *joined])
    monkeypatch.setattr(pwd, "getpwuid", lambda _: pwd.struct_passwd(("ada", "x", 7, os.getegid(), "", "/", "/")))
    monkeypatch.setattr(grp, "getgrgid", lambda gid: grp.struct_group((joined[gid], "x", gid, [])))
    why = f"ffdl's daemon was started before you became a member of {named}"
    assert str(find_old_groups()) == (f"{why}; {RESTART}" if joined else "None")


@pytest.mark.usefixtures("bound_by_modes", "joined_later")
@pytest.mark.parametrize(
    ("gid", "mode", "wanted", "why", "cure"),
    [
        (JOINED, 0o750, os.R_OK, OLD, RESTART),
        (JOINED, 0o710, os.X_OK, OLD, RESTART),
        (JOINED, 0o770, os.W_OK, OLD, RESTART),
        (JOINED, 0o750, os.W_OK, f"{{}} belongs to user '{STRANGER}' and group '{JOINED}', and has mode 0750", ASK),
        (JOINED, 0o700, os.R_OK, f"{{}} belongs to user '{STRANGER}' and group '{JOINED}', and has mode 0700", ASK),
        (OTHER, 0o770, os.R_OK, f"{{}} belongs to user '{STRANGER}' and group '{OTHER}', and has mode 0770", ASK),
    ],
)  # fmt: skip
def test_daemon_is_blamed_only_if_group_of_directory_permits_access(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gid: int, mode: int, wanted: int, why: str, cure: str
) -> None:
    (tmp_path / "project").mkdir(0)
    belongs_to(monkeypatch, tmp_path / "project", STRANGER, gid, mode)
    found = explain_denial(str(tmp_path / "project"), wanted)
    assert found is not None
    assert (found.why, found.cure) == (why.format(tmp_path / "project"), cure)


@pytest.mark.usefixtures("bound_by_modes", "joined_later")
@pytest.mark.parametrize(
    ("mode", "name", "wanted", "cure"),
    [
        (0, "my dir", 0, "chmod u+rwx '{}'"),
        (0, "my dir/file", 0, "chmod u+rwx '{}'"),
        (0, "my dir/no/file", os.R_OK, "chmod u+rwx '{}'"),
        (0o070, "my dir", os.R_OK, "chmod u+rwx '{}'"),
        (0o555, "my dir", os.W_OK, "chmod u+rwx '{}'"),
        (0o555, "my dir/new", 0, "chmod u+rwx '{}'"),
        (0o700, "my dir/file", 0, "chmod u+r '{}/file'"),
        (0o700, "my dir/file", os.W_OK, "chmod u+rw '{}/file'"),
        (0o700, "my dir/new", 0, ""),
    ],
)
def test_own_file_or_directory_is_named_with_its_mode_and_chmod(
    tmp_path: Path, mode: int, name: str, wanted: int, cure: str
) -> None:
    place = tmp_path / "my dir"
    place.mkdir()
    (place / "file").touch(0)
    place.chmod(mode)
    found = explain_denial(str(tmp_path / name), wanted)
    place.chmod(0o700)
    if not cure:
        assert found is None
        return
    blamed, seen = (place / "file", 0) if cure.endswith("file'") else (place, mode)
    assert found is not None
    assert (found.why, found.cure) == (f"you own {blamed}, and it has mode {seen:04o}", cure.format(place))


@pytest.mark.usefixtures("bound_by_modes")
def test_messages_of_denied_access_are_completed(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir(0)
    path = str(tmp_path / "d" / "file")
    denied = PermissionError(errno.EACCES, "Permission denied", path)
    said = f"it is closed; you own {tmp_path / 'd'}, and it has mode 0000; chmod u+rwx {tmp_path / 'd'}"
    assert with_denial("it is closed", denied) == said
    assert with_denial("no", PermissionError(errno.EPERM, "Operation not permitted", path)) == "no"
    assert with_denial("no", PermissionError(errno.EACCES, "Permission denied", "file")) == "no"
    assert with_denial("no", PermissionError(errno.EACCES, "Permission denied")) == "no"
    assert with_denial("no", FileNotFoundError(errno.ENOENT, "No such file", path)) == "no"
    assert with_denial("no", None) == "no"


def test_process_of_user_without_database_entry_lacks_no_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(_: int) -> pwd.struct_passwd:
        raise KeyError

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    assert find_old_groups() is None
