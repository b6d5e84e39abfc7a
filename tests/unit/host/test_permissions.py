"""The umask and the groups of a process, and messages for a process that is older than a membership."""

from __future__ import annotations

import errno
import grp
import os
import pwd

import pytest

from ffdl_batch.host.permissions import find_old_groups, is_default_mode, read_umask, umask_set, with_old_groups

DENIED = PermissionError(errno.EACCES, "Permission denied")


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
    said = f"; {why}; log in again and run: ffdl daemon restart" if joined else ""
    assert with_old_groups("/p is closed", DENIED) == f"/p is closed{said}"
    assert with_old_groups("/p is missing", FileNotFoundError(errno.ENOENT, "No such file")) == "/p is missing"


def test_process_of_user_without_database_entry_lacks_no_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(_: int) -> pwd.struct_passwd:
        raise KeyError

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    assert find_old_groups() is None
