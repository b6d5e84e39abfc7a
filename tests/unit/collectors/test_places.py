"""Files where learners write: found without following what was planted."""

from __future__ import annotations

import os
from pathlib import Path

from ffdl_batch.collectors.learner_files import Found, files_below, opened


def listed(root: Path, depth: int = 9, most: int = 99) -> list[Found]:
    return files_below(str(root), lambda name: name.startswith("log"), depth, most)


def test_files_below_lists_files_by_path_down_to_depth(tmp_path: Path) -> None:
    for name in ("b/log", "a/x/log2", "a/other", "log1"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
    names = {depth: ["/".join(file.names) for file in listed(tmp_path, depth)] for depth in (0, 1, 2)}
    assert names == {0: ["log1"], 1: ["b/log", "log1"], 2: ["a/x/log2", "b/log", "log1"]}
    assert len(listed(tmp_path, most=2)) == 2


def test_files_below_ignores_links_pipes_and_directories(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    root = tmp_path / "root"
    elsewhere.mkdir()
    root.mkdir()
    (elsewhere / "log").write_text("secret")
    (root / "log-link").symlink_to(elsewhere / "log")
    (root / "directory").symlink_to(elsewhere)
    (root / "log-directory").mkdir()
    os.mkfifo(root / "log-pipe")
    assert listed(root) == []
    (tmp_path / "link").symlink_to(elsewhere)
    assert listed(tmp_path / "link") == []
    assert listed(tmp_path / "nothing") == []


def test_files_below_does_not_count_other_names_toward_limit(tmp_path: Path) -> None:
    for number in range(500):
        (tmp_path / f"other{number}").touch()
    (tmp_path / "log").touch()
    (tmp_path / "logs").mkdir()
    assert [file.names for file in listed(tmp_path, depth=0)] == [("log",)]


def test_opened_rejects_file_replaced_since_listing(tmp_path: Path) -> None:
    path = tmp_path / "d" / "log"
    path.parent.mkdir()
    path.write_text("mine")
    (found,) = listed(tmp_path)
    descriptor = opened(found)
    assert descriptor is not None and os.read(descriptor, 9) == b"mine"
    os.close(descriptor)
    (tmp_path / "other").write_text("other")
    (tmp_path / "other").rename(path)
    assert opened(found) is None
    (found,) = listed(tmp_path)
    path.parent.rename(tmp_path / "moved")
    (tmp_path / "d").symlink_to(tmp_path / "moved")
    assert opened(found) is None
    (tmp_path / "d").unlink()
    assert opened(found) is None
    path.parent.mkdir()
    os.mkfifo(path)
    assert opened(found) is None
