"""Tests walks of very deep trees, which may open each directory only a few times."""

from __future__ import annotations

import errno
import io
import os
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ffdl_batch.attempt.directory_tree import KEPT, Directories, Gone, empty_directory, remove_tree, walk
from ffdl_batch.client.api_calls.job_output import _Pieces, _unpack
from ffdl_batch.controller.checkpoints import take_inventory
from ffdl_batch.controller.data.job_directories import remove_scratch
from ffdl_batch.domain.job.views import OutputView
from ffdl_batch.services.outcome.attempt_records import _files as checkpoint_files
from ffdl_batch.services.queries.job_output import archive_output
from ffdl_batch.staging.tree import Tree

LEVELS = 2500
EACH = 125


@pytest.fixture(scope="module")
def deep(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Make nested directories, more than a path can name. Some have files and a second directory, to which walks come
    back."""
    place = tmp_path_factory.mktemp("deep")
    root = place / "deep"
    here = os.open(place, os.O_RDONLY)
    try:
        for level in range(LEVELS):
            os.mkdir("deep" if not level else "d", dir_fd=here)
            below = os.open("deep" if not level else "d", os.O_RDONLY, dir_fd=here)
            os.close(here)
            here = below
            if level % EACH == 0:
                os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=here))
                os.write(descriptor := os.open("full", os.O_CREAT | os.O_WRONLY, dir_fd=here), b"x")
                os.close(descriptor)
                os.mkdir("e", dir_fd=here)
        yield root
    finally:
        os.close(here)
        remove_tree(str(place))


def listed(root: Path) -> int:
    with Tree(str(root)) as tree:
        return len(list(tree.files((), lambda name, why: None)))


def downloaded(root: Path) -> int:
    output = OutputView("training-1", "results", "COMPLETED", directory=str(root))
    with tarfile.open(fileobj=io.BytesIO(b"".join(archive_output(output)))) as archive:
        return sum(entry.isreg() for entry in archive)


def removed(root: Path) -> int:
    remove_scratch(str(root))
    assert not root.exists()
    return LEVELS // EACH * 2


@pytest.mark.parametrize(
    "work",
    [
        listed,
        downloaded,
        lambda root: 2 * len(take_inventory(str(root), 60.0).files),
        lambda root: len(list(checkpoint_files(str(root), str(root.parent)))),
        removed,
    ],
    ids=["listed", "downloaded", "inventory", "evidence", "removed"],
)
def test_walk_opens_few_directories_however_deep(
    deep: Path, monkeypatch: pytest.MonkeyPatch, work: Callable[[Path], int]
) -> None:
    opened, real = 0, os.open

    def count(*args: object, **options: object) -> int:
        nonlocal opened
        opened += 1
        return real(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", count)
    assert work(deep) == LEVELS // EACH * 2
    assert opened < 5 * LEVELS


def test_unpack_makes_directories_below_the_longest_path(tmp_path: Path) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive:
        archive.addfile(tarfile.TarInfo("deep/" * 1000 + "file"))
    try:
        assert _unpack(_Pieces(iter([packed.getvalue()]), lambda size: None), tmp_path, (), list[str]().append) == 1
        assert listed(tmp_path) == 1
    finally:
        remove_tree(str(tmp_path / "deep"))


def test_directories_do_not_go_up_to_directory_that_replaced_parent(tmp_path: Path) -> None:
    deepest = ("d",) * 20
    (tmp_path / "outside").mkdir()
    tmp_path.joinpath("root", *deepest).mkdir(parents=True)
    with Directories(str(tmp_path / "root")) as tree:
        tree.enter(deepest)
        tmp_path.joinpath("root", *deepest).rename(tmp_path / "outside" / "d")
        with pytest.raises(Gone):
            tree.enter((*deepest[:-1], "x"))
        assert os.fstat(tree.enter(deepest[:-1])).st_ino == tmp_path.joinpath("root", *deepest[:-1]).stat().st_ino


def test_remove_tree_follows_no_link_and_removes_all_that_it_can(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "file").write_text("kept")
    (tmp_path / "tree" / "a").mkdir(parents=True)
    (tmp_path / "tree" / "a" / "link").symlink_to(tmp_path / "outside")
    (tmp_path / "link").symlink_to(tmp_path / "outside")
    for name in ("tree", "link", "none"):
        remove_tree(str(tmp_path / name))
    assert [path.name for path in tmp_path.rglob("*")] == ["outside", "file"]
    empty_directory(str(tmp_path / "outside"))
    assert list((tmp_path / "outside").iterdir()) == []


@pytest.mark.usefixtures("bound_by_modes")
@pytest.mark.parametrize("mode", [0o555, 0o300, 0o000], ids=oct)
@pytest.mark.parametrize("depth", [3, KEPT + 3])
def test_remove_tree_removes_read_only_directories(tmp_path: Path, mode: int, depth: int) -> None:
    """The module cache of Go and the packages of conda are read-only."""
    outside, tree = tmp_path / "outside", tmp_path / "tree"
    outside.mkdir(mode=0o555)
    here = tree
    for name in ("go", *("pkg",) * depth):
        (here / name).mkdir(parents=True)
        (here / "link").symlink_to(outside)
        here = here / name
        (here / "file").touch(0o444)
    for directory in (here, *here.parents[: depth + 1]):
        directory.chmod(mode)
    remove_tree(str(tree))
    assert [path.name for path in tmp_path.iterdir()] == ["outside"]
    assert outside.stat().st_mode & 0o777 == 0o555


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_remove_scratch_reports_directory_that_stays_with_node_and_reason(
    tmp_path: Path, depth: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    scratch = tmp_path / "base" / "ffdl-training-1-1-0"
    stays = scratch.joinpath(*("d",) * depth)
    stays.mkdir(parents=True)
    (scratch / "other").write_text("removed")
    real = os.rmdir

    def refuse(path: str, *, dir_fd: int | None = None) -> None:
        if path == (stays.name if depth else str(stays)):
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))
        real(path, dir_fd=dir_fd)

    monkeypatch.setattr(os, "rmdir", refuse)
    remove_scratch(str(scratch))
    line = f"ffdl-controller: {scratch} stays on {os.uname().nodename}: [Errno 16] Device or resource busy\n"
    assert capsys.readouterr().err == line
    assert not (scratch / "other").exists() and stays.is_dir()


def test_remove_scratch_keeps_silent_if_directory_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    remove_scratch(str(tmp_path / "none"))
    assert capsys.readouterr().err == ""


def test_walk_reports_directory_that_cannot_be_read_and_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    real, unread = os.open, []

    def refuse(path: str, flags: int, *args: int, dir_fd: int | None = None) -> int:
        if path == "a":
            raise PermissionError(13, "Permission denied")
        return real(path, flags, *args, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", refuse)
    with Directories(str(tmp_path)) as tree:
        found = [parts for parts, _, _ in walk(tree, unread=lambda path, error: unread.append(path))]
    assert (found, unread) == ([(), ("b",)], ["a"])
