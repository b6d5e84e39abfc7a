"""The local directory: no link leads out of it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ffdl_batch.attempt.directory_tree import Gone
from ffdl_batch.staging.faults import Skip
from ffdl_batch.staging.tree import Tree, open_own


def test_tree_replaces_link_or_file_that_blocks_directory(tmp_path: Path) -> None:
    outside, root = tmp_path / "outside", tmp_path / "root"
    outside.mkdir()
    root.mkdir()
    (root / "link").symlink_to(outside)
    (root / "file").write_text("1")
    with Tree(str(root)) as tree:
        for name in ("link", "file"):
            with tree.directory((name, "below"), make=True) as directory:
                os.close(os.open("here", os.O_CREAT | os.O_WRONLY, 0o600, dir_fd=directory))
            assert (root / name / "below" / "here").is_file()
    assert list(outside.iterdir()) == []


def test_tree_follows_no_links_and_skips_special_files(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "file").write_text("1")
    (tmp_path / "link").symlink_to("there")
    (tmp_path / "file").symlink_to("there/file")
    os.mkfifo(tmp_path / "pipe")
    with Tree(str(tmp_path)) as tree:
        for parts in (("link", "file"), ("file",), ("none",), ("there",), ("pipe",)):
            with pytest.raises(Gone):
                os.close(tree.open_file(parts))
            assert tree.status(parts) is None
        os.close(tree.open_file(("there", "file")))
        left_out: list[str] = []
        names = [name for name, _ in tree.files((), lambda name, _why: left_out.append(name))]
    assert (names, left_out) == (["there/file"], ["file", "link", "pipe"])


def test_tree_accepts_link_in_root_path(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to("there")
    with Tree(str(tmp_path / "link" / "new"), make=True):
        assert (tmp_path / "there" / "new").is_dir()


def test_open_own_replaces_links_and_special_files_with_own_file(tmp_path: Path) -> None:
    (tmp_path / "theirs").write_text("theirs")
    (tmp_path / "link").symlink_to("theirs")
    os.link(tmp_path / "theirs", tmp_path / "name")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "own").write_text("half")
    directory = os.open(tmp_path, os.O_RDONLY)
    for name in ("link", "name", "pipe", "own", "new"):
        file = open_own(name, directory)
        os.write(file, b"ours")
        os.close(file)
        assert (tmp_path / name).read_text() == "ours"
        assert not (tmp_path / name).is_symlink()
    os.close(directory)
    assert (tmp_path / "theirs").read_text() == "theirs"


def test_tree_place_skips_name_of_existing_directory(tmp_path: Path) -> None:
    (tmp_path / "name").mkdir()
    (tmp_path / "half").write_text("1")
    with Tree(str(tmp_path)) as tree, tree.directory(()) as here, pytest.raises(Skip):
        tree.place("half", ("name",), here)
    assert [path.name for path in tmp_path.iterdir()] == ["name"]
