"""Tests that platform files are written even if a learner closed them or their directories."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ffdl_batch.attempt.file_writer import give_access, open_own, restore_directory, touch, write_text
from tests.file_modes import modes_count

MODES = (0o000, 0o100, 0o400, 0o500)


def attempt_in(tmp_path: Path) -> Path:
    events = tmp_path / "job" / "attempt-1" / "events"
    events.mkdir(parents=True)
    (events / "head.jsonl").write_text("earlier\n")
    return events / "head.jsonl"


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("levels", [(1,), (2,), (3,), (1, 2, 3)])
def test_writers_open_closed_directories_again(mode: int, levels: tuple[int, ...], tmp_path: Path) -> None:
    path = attempt_in(tmp_path)
    for level in levels:
        path.parents[level - 1].chmod(mode)
    with modes_count():
        restore_directory(str(path.parent))
        with os.fdopen(open_own(str(path), os.O_WRONLY | os.O_APPEND), "w") as file:
            file.write("later\n")
        write_text(str(path.parent / "cell"), "{}")
        touch(str(path.parent / "heartbeat"))
        assert path.read_text() == "earlier\nlater\n"


@pytest.mark.parametrize("mode", MODES)
def test_cell_is_written_into_closed_directory(mode: int, tmp_path: Path) -> None:
    path = attempt_in(tmp_path)
    path.parents[1].chmod(mode)
    with modes_count():
        write_text(str(path.parents[1] / "final.json"), "{}")
        assert (path.parents[1] / "final.json").read_text() == "{}"


def test_closed_file_keeps_its_content_when_it_is_opened_again(tmp_path: Path) -> None:
    path = attempt_in(tmp_path)
    path.chmod(0)
    with modes_count(), os.fdopen(open_own(str(path), os.O_RDWR | os.O_APPEND), "r+") as file:
        assert file.read() == "earlier\n"


def test_access_is_given_only_to_own_files_that_deny_it(tmp_path: Path) -> None:
    path = attempt_in(tmp_path)
    target = tmp_path / "elsewhere"
    target.mkdir(mode=0)
    (path.parent / "link").symlink_to(target)
    with modes_count():
        assert not give_access(str(path))
        assert not give_access(str(path.parent / "link"))
        assert not give_access(str(path.parent / "missing"))
    assert target.stat().st_mode & 0o777 == 0
