"""Lines of logs that grow, are cut, rotated and full of rubbish."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ffdl_batch.collectors.followed_file import FollowedFile, LineCutter
from ffdl_batch.collectors.learner_files import Found
from tests.unit.collectors.rig import Told

LIMIT = 100


class Log:
    """A log with its rotated ones, and who follows it."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "log"
        self.told = Told()
        self.file = FollowedFile(LIMIT, None, self.told.notes().note)

    def again(self) -> None:
        """A successor takes over."""
        place = self.file.place
        self.file.close()
        self.file = FollowedFile(LIMIT, place, self.told.notes().note)

    def write(self, data: bytes) -> None:
        with self.path.open("ab") as file:
            file.write(data)

    def rotate(self) -> None:
        if self.path.with_name("log.1").exists():
            self.path.with_name("log.1").rename(self.path.with_name("log.2"))
        self.path.rename(self.path.with_name("log.1"))

    def read(self, final: bool = False) -> list[str]:
        found, more = [], True
        while more:
            names = {0: "log", 1: "log.1", 2: "log.2"}
            paths = {n: self.path.with_name(name) for n, name in names.items() if self.path.with_name(name).exists()}
            listed = {
                n: Found(str(path.parent), (path.name,), path.stat().st_ino, path.stat().st_size)
                for n, path in paths.items()
            }
            lines, more = self.file.lines(listed, final)
            found += [line.text for line in lines]
        return found


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path)


@pytest.mark.parametrize("restarts", [False, True])
def test_followed_file_returns_line_once_complete_also_after_restart(log: Log, restarts: bool) -> None:
    assert log.read() == []
    log.write(b"one\ntw")
    assert log.read() == ["one"]
    if restarts:
        log.again()
    log.write(b"o\nthree")
    assert log.read() == ["two"]
    assert log.read(final=True) == ["three"]


def test_followed_file_returns_each_progress_bar_state_as_line(log: Log) -> None:
    log.write(b"start\r\n\n10%\r20%\r\r30%\r")
    assert log.read() == ["start", "", "10%", "20%", "30%"]
    log.write(b"\nend\n")
    assert log.read() == ["end"]


def test_followed_file_replaces_invalid_utf8(log: Log) -> None:
    log.write(b"a\xff\xfeb\x00\xc3\n\xe2\x82\xac\n")
    assert log.read() == ["a��b\x00�", "€"]


def test_followed_file_cuts_long_lines_and_reports_once(log: Log) -> None:
    log.write(b"x" * 10_000_000 + b"\nafter\n" + b"y" * 200 + b"\n")
    assert log.read() == ["x" * LIMIT, "after", "y" * LIMIT]
    assert log.told.kinds == ["long_lines"]


def test_followed_file_reads_truncated_log_from_start(log: Log) -> None:
    log.write(b"one\ntwo\nrest")
    assert log.read() == ["one", "two"]
    log.path.write_bytes(b"new\n")
    assert log.read() == ["rest", "new"]
    assert log.told.kinds == ["truncated"]


@pytest.mark.parametrize("change", ["truncated", "replaced"])
def test_followed_file_reports_log_truncated_or_replaced_during_restart(log: Log, change: str) -> None:
    log.write(b"one\ntwo\n")
    assert log.read() == ["one", "two"]
    log.again()
    if change == "replaced":
        log.path.rename(log.path.with_name("kept"))
    log.path.write_bytes(b"new\n")
    assert log.read() == ["new"]
    assert log.told.kinds == [change]


def test_followed_file_loses_no_line_on_rotation(log: Log) -> None:
    log.write(b"one\n")
    assert log.read() == ["one"]
    log.write(b"two\nhalf")
    log.rotate()
    assert log.read() == ["two"]  # its writer may not have noticed yet
    log.write(b"three\n")
    log.rotate()
    log.write(b"four\n")
    assert log.read() == ["half", "three", "four"]


def test_followed_file_loses_no_line_on_rotation_during_restart(log: Log) -> None:
    log.write(b"one\n")
    assert log.read() == ["one"]
    log.write(b"two\n")
    log.again()
    log.rotate()
    log.write(b"three\n")
    log.rotate()
    log.write(b"four\n")
    assert log.read() == ["two", "three", "four"]
    assert log.told.kinds == []


def test_followed_file_reads_rotated_logs_first_on_start(log: Log) -> None:
    log.write(b"one\n")
    log.rotate()
    log.write(b"two\n")
    log.rotate()
    log.write(b"three\n")
    assert log.read() == ["one", "two", "three"]


def test_followed_file_reads_deleted_log_to_end(log: Log) -> None:
    log.write(b"one\n")
    assert log.read() == ["one"]
    log.write(b"two")
    log.path.unlink()
    assert log.read(final=True) == ["two"]


def test_followed_file_does_not_block_on_pipe(log: Log) -> None:
    os.mkfifo(log.path)
    assert log.read() == []


@given(
    st.lists(st.sampled_from([b"a", b"bc\n", b"\r", b"\n", b"\r\n", b"d" * 9, b"\xff"])), st.lists(st.integers(1, 9))
)
def test_line_cutter_returns_same_lines_for_any_chunk_sizes(parts: list[bytes], sizes: list[int]) -> None:
    data = b"".join(parts)
    whole = LineCutter(0, 5)
    expected = [(start, line.rstrip(b"\r\n")[:5]) for start, line in whole.feed(data) + whole.finish()]
    cutter, found, at = LineCutter(0, 5), [], 0
    for size in sizes:
        found += cutter.feed(data[at : at + size])
        at += size
    found += cutter.feed(data[at:]) + cutter.finish()
    assert [(start, line.rstrip(b"\r\n")[:5]) for start, line in found] == expected


def test_line_cutter_returns_start_of_each_line() -> None:
    cutter = LineCutter(10, 50)
    assert [start for start, _ in cutter.feed(b"ab\r\n\r\nc\rd")] == [10, 14, 16]
    assert cutter.start == 18
