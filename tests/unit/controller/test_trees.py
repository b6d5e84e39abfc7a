"""Trees as learners may leave them, and what their copies are like."""

from __future__ import annotations

import builtins
import errno
import os
import resource
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ffdl_batch.attempt.directory_tree import KEPT, Directories, status_of
from ffdl_batch.controller.data import transfers
from ffdl_batch.controller.data.transfers import sight_of
from ffdl_batch.controller.data.tree_copy import copy_tree, remove_half_copied
from ffdl_batch.host.file_attributes import inner_target
from tests.unit.controller.rig import refusal


def open_descriptors() -> list[str]:
    return os.listdir("/proc/self/fd")  # noqa: PTH208 - names


@pytest.fixture
def few_descriptors() -> Iterator[None]:
    """A moment with room for two trees."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = max(int(name) for name in open_descriptors())
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 2 * KEPT + 12, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_copy_tree_needs_few_descriptors_for_deep_tree(tmp_path: Path, few_descriptors: None) -> None:
    """Deeper than a path may be long, and with a second branch every hundred levels."""
    source, target, levels, name = tmp_path / "s", tmp_path / "t", 600, "d" * 12
    try:
        with Directories(str(source), 0o777) as tree:
            for level in range(0, levels, 100):
                branch = tree.enter((*([name] * level), "branch"))
                os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=branch))
            leaf = tree.enter((name,) * levels)
            os.close(os.open("leaf", os.O_CREAT | os.O_WRONLY, dir_fd=leaf))
        before = open_descriptors()
        assert [copy_tree(str(source), str(target)) for _ in range(2)] == [7, 7]
        assert open_descriptors() == before
        with Directories(str(target)) as tree:
            assert status_of("leaf", tree.enter((name,) * levels)) is not None
            assert status_of("file", tree.enter((*([name] * 500), "branch"))) is not None
        remove_half_copied(str(target), lambda *_: False)
    finally:  # by a program that goes as deep
        subprocess.run(["rm", "-rf", str(source), str(target)], check=True)


@pytest.mark.parametrize("link", [True, False], ids=["linked", "copied"])
def test_copy_tree_preserves_arbitrary_byte_names(tmp_path: Path, link: bool) -> None:
    names = [b"\xff\xfe", b"new\nline", b"-rf", b" ", b"\xc3\xbc", b"\x01\x7f", b"x" * 255]
    for name in map(os.fsdecode, names):
        (tmp_path / "s" / f"in {name[:200]}" / name).mkdir(parents=True)
        (tmp_path / "s" / f"in {name[:200]}" / name / name).write_bytes(os.fsencode(name))
    assert copy_tree(str(tmp_path / "s"), str(tmp_path / "t"), link=link) == len(names)
    for name in map(os.fsdecode, names):
        assert (tmp_path / "t" / f"in {name[:200]}" / name / name).read_bytes() == os.fsencode(name)


def test_copy_tree_preserves_mode_time_and_supported_attributes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attributes that the target's file system does not take are left out, each by itself."""
    source, target = tmp_path / "s", tmp_path / "t"
    source.mkdir()
    (source / "file").write_text("x")
    (source / "file").chmod(0o751)
    os.utime(source / "file", ns=(5_000_000_001, 7_000_000_001))
    taken = {}

    def setxattr(file: int, name: str, value: bytes) -> None:
        if name == "security.x":
            raise PermissionError(1, "not permitted")
        taken[name] = value

    monkeypatch.setattr(os, "listxattr", lambda _file: ["security.x", "user.x"])
    monkeypatch.setattr(os, "getxattr", lambda _file, name: name.encode())
    monkeypatch.setattr(os, "setxattr", setxattr)
    copy_tree(str(source), str(target))
    found = (target / "file").stat()
    assert (found.st_mode & 0o7777, found.st_mtime_ns) == (0o751, 7_000_000_001)
    assert taken == {"user.x": b"user.x"}


def test_copy_tree_names_path_in_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = tmp_path / "s", tmp_path / "t"
    (source / "sub").mkdir(parents=True)
    (source / "sub" / "file").write_text("x")
    (target / "sub" / "file").mkdir(parents=True)
    with pytest.raises(OSError, match=f"'{target}/sub/file'$"):
        copy_tree(str(source), str(target))
    assert [path.name for path in (target / "sub").iterdir()] == ["file"]

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "not permitted", "file")

    monkeypatch.setattr("ffdl_batch.controller.data.tree_copy.open_regular", refuse)
    with pytest.raises(PermissionError, match=f"'{source}/sub/file'$"):
        copy_tree(str(source), str(tmp_path / "other"))
    (tmp_path / "third").mkdir()
    (tmp_path / "third" / "sub").write_text("in the way")
    with pytest.raises(FileExistsError, match=f"'{tmp_path}/third/sub'$"):
        copy_tree(str(source), str(tmp_path / "third"))


def test_copy_tree_keeps_modes_empty_directories_and_holes(tmp_path: Path) -> None:
    source, target = tmp_path / "s", tmp_path / "t"
    modes = {
        "run.sh": 0o755, "bin/tool": 0o4551, "secret": 0o600, "own": 0o3755, "bin": 0o555, "empty": 0o750,
        "shared": 0o1775, "usual": 0o1755, "all": 0o1777,
    }  # fmt: skip
    for name in ("bin", "empty", "shared", "usual", "all"):
        (source / name).mkdir(parents=True)
    for name in ("run.sh", "bin/tool", "secret", "own", "sparse"):
        (source / name).write_bytes(b"x")
    with (source / "sparse").open("r+b") as file:
        file.seek(64 << 20)
        file.write(b"middle")
        file.truncate(1 << 30)
    for name, mode in modes.items():
        (source / name).chmod(mode)
    copy_tree(str(source), str(target))
    found = {name: (target / name).stat().st_mode & 0o7777 for name in modes}
    assert found == {name: mode & (0o1777 if (source / name).is_dir() else 0o777) for name, mode in modes.items()}
    copied = (target / "sparse").stat()
    assert (copied.st_size, copied.st_blocks * 512 < 1 << 20) == (1 << 30, True)
    with (target / "sparse").open("rb") as file:
        assert file.read(2) == b"x\0"
        file.seek((64 << 20) - 2)
        assert file.read(10) == b"\0\0middle\0\0"


@pytest.mark.usefixtures("bound_by_modes")
def test_copy_tree_writes_into_read_only_directory_of_an_earlier_pass(tmp_path: Path) -> None:
    source, target = tmp_path / "s", tmp_path / "t"
    for number in range(2):
        (source / "sub").mkdir(parents=True, exist_ok=True)
        (source / "sub").chmod(0o755)
        (source / "sub" / str(number)).write_text("x")
        (source / "sub").chmod(0o555)
        copy_tree(str(source), str(target))
    assert sorted(os.listdir(target / "sub")) == ["0", "1"]  # noqa: PTH208 - names
    assert (target / "sub").stat().st_mode & 0o777 == 0o555


@pytest.mark.usefixtures("bound_by_modes")
@pytest.mark.parametrize("unreadable", ["b/file", "b", "a"])
def test_copy_tree_copies_others_when_one_cannot_be_read(tmp_path: Path, unreadable: str) -> None:
    source, target = tmp_path / "s", tmp_path / "t"
    (source / "b").mkdir(parents=True)
    for name in ("a", "b/file", "c"):
        (source / name).write_text(name)
    (source / unreadable).chmod(0)
    with pytest.raises(PermissionError, match=f"'{source}/{unreadable}'$"):
        copy_tree(str(source), str(target))
    names = {str(path.relative_to(target)) for path in target.rglob("*") if path.is_file()}
    assert names == {name for name in ("a", "b/file", "c") if not name.startswith(unreadable)}


def test_copy_tree_makes_inner_absolute_links_relative_and_notes_others(tmp_path: Path) -> None:
    source, target, notes = tmp_path / "s", tmp_path / "t", list[str]()
    (source / "deep" / "epoch3").mkdir(parents=True)
    os.mkfifo(source / "pipe")
    targets = {
        "latest": "deep/epoch3",
        "deep/up": "../latest",
        "inner": str(source / "deep" / "epoch3"),
        "deep/contained": "/job/results/deep/epoch3",
        "deep/top": "/job/results",
        "dangling": "none",
        "deep/out": "../../x",
        "sibling": "/job/results-2/x",
        "\x1b[2Jroot": "/etc",
    }
    for name, to in targets.items():
        (source / name).symlink_to(to)
    copy_tree(str(source), str(target), roots=(str(source), "/job/results/"), note=notes.append)
    found = {name: str((target / name).readlink()) for name in targets}
    changed = {"inner": "deep/epoch3", "deep/contained": "epoch3", "deep/top": ".."}
    assert found == {**targets, **changed}
    assert [note.partition(" is ")[0] for note in notes] == ["\\x1b[2Jroot", "pipe", "sibling", "deep/out"]
    assert "to /job/results-2/x;" in notes[2]


@pytest.mark.parametrize(
    ("target", "inner"),
    [
        ("b", "b"),
        ("../b", "../b"),
        (".", "."),
        ("..", ".."),
        ("../..", None),
        ("b/../../../b", None),
        ("b/../c", "c"),
        ("./b//c/", "./b//c/"),
        ("/b", None),
        ("/x/a/b", "b"),
        ("/x", ".."),
        ("/x/../y", None),
        ("/xy", None),
        ("../../x/c", "../c"),
        ("../../y/c", None),
        ("", None),
    ],
)
def test_inner_target_is_below_the_tree_and_goes_up_only_at_its_start(target: str, inner: str | None) -> None:
    assert inner_target(target, ("a",), ("/x",)) == inner


# ------------------------------------------------------------------------------------- whether trees look as they did


def on() -> None:
    """Go on."""


def lay(top: Path) -> None:
    for name in ("a", "deep/b", "deep/er/c", "other/d"):
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).write_text(name)
    (top / "link").symlink_to("/")
    (top / "link2").symlink_to("/")


CHANGES: dict[str, Callable[[Path], object]] = {
    "longer": lambda top: (top / "a").write_text("longer"),
    "touched": lambda top: os.utime(top / "deep/er/c", (1, 1)),
    "new": lambda top: (top / "deep/new").write_text(""),
    "gone": lambda top: (top / "other/d").unlink(),
    "renamed": lambda top: (top / "a").rename(top / "z"),
    "moved": lambda top: (top / "deep/b").rename(top / "deep/er/b"),
    "another link": lambda top: (top / "link2").replace(top / "link"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_tree_fingerprint_changes_when_tree_changes(tmp_path: Path, change: str) -> None:
    lay(tmp_path)
    seen = sight_of([str(tmp_path)], on)
    assert sight_of([str(tmp_path)], on) == seen
    CHANGES[change](tmp_path)
    assert sight_of([str(tmp_path)], on) != seen


def test_tree_fingerprint_changes_when_file_is_replaced_with_same_size_and_time(tmp_path: Path) -> None:
    lay(tmp_path)
    seen, time_ns = sight_of([str(tmp_path)], on), (tmp_path / "a").stat().st_mtime_ns
    (tmp_path / "new").write_text("b")
    os.utime(tmp_path / "new", ns=(time_ns, time_ns))
    (tmp_path / "new").replace(tmp_path / "a")
    assert sight_of([str(tmp_path)], on) != seen


def test_tree_fingerprint_opens_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lay(tmp_path)
    for module in (os, builtins):
        monkeypatch.setattr(module, "open", refusal(errno.EACCES))
    assert sight_of([str(tmp_path)], on)


def test_tree_fingerprint_of_missing_tree_differs_from_no_trees_and_empty_tree(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    missing = sight_of([str(tmp_path / "none")], on)
    assert missing != sight_of([], on) and missing != sight_of([str(tmp_path / "empty")], on)


def test_tree_fingerprint_stops_when_callback_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lay(tmp_path)
    monkeypatch.setattr(transfers, "LOOK_EACH", 2)
    with pytest.raises(PermissionError):
        sight_of([str(tmp_path)], refusal(errno.EACCES))
