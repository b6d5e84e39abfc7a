"""Whether trees look as they did."""

from __future__ import annotations

import builtins
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from ffdl_batch.controller.stores import sight
from ffdl_batch.controller.stores.sight import sight_of


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

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError

    monkeypatch.setattr(os, "open", refuse)
    monkeypatch.setattr(builtins, "open", refuse)
    assert sight_of([str(tmp_path)], on)


def test_tree_fingerprint_of_missing_tree_differs_from_no_trees_and_empty_tree(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    missing = sight_of([str(tmp_path / "none")], on)
    assert missing != sight_of([], on) and missing != sight_of([str(tmp_path / "empty")], on)


def test_tree_fingerprint_stops_when_callback_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Stop(Exception):
        pass

    def stop() -> None:
        raise Stop

    lay(tmp_path)
    monkeypatch.setattr(sight, "LOOK_EACH", 2)
    with pytest.raises(Stop):
        sight_of([str(tmp_path)], stop)
