"""What a person is told of data that move."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ffdl_batch.controller.data.transfer_progress import also_beside, into_log, text_of
from ffdl_batch.domain.data.staging_protocol import Cached, Done, Failed, FaultClass, Line, Note, Progress, Retry

MIB, GIB = 1 << 20, 1 << 30


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (
            Progress(812, 9000, 12 * GIB, 151 * GIB, 640 * MIB),
            "812 of 9000 files, 12 GiB of 151 GiB, 640 MiB/s, 4 min left",
        ),
        (Progress(0, 1, 0, 90, 1.0), "0 of 1 file, 0 B of 90 B, 1 B/s, 2 min left"),
        (Progress(0, 1, 0, GIB, 102_400), "0 of 1 file, 0 B of 1 GiB, 100 KiB/s, 2 h 55 min left"),
        (Progress(3, 4, 433, 40 * MIB, 43.0, early=True), "3 of 4 files, 433 B of 40 MiB, 43 B/s"),
        (Progress(1, 1, 5, 5, 0.0), ""),
        (Cached(0, "k", "t", "l", 5, filled=False), "5 B come from the cache of this node"),
        (Progress(0, 0, 0, 0, 0.0), ""),
        (Retry("x: it answered 503 SlowDown", 2.1), "x: it answered 503 SlowDown; tried again in 2 s"),
        (Retry("x was changed", 0), "x was changed; tried again"),
        (Note("y is left out"), "y is left out"),
        (Done(3, MIB, 1, 2.0, 2), "3 files, 2 of them were there, 1 left out, 1 MiB in 2 s, 512 KiB/s"),
        (Done(3, 10, 0, 2.0, 1, 1), "3 files, 1 of them was there, 1 written still, 10 B in 2 s, 5 B/s"),
        (Done(0, 0, 0, 0.1), "0 files, 0 B in 0 s"),
        (Failed("S302", "told elsewhere", FaultClass.NETWORK), ""),
    ],
)
def test_progress_text_describes_each_kind_of_line(line: Line, text: str) -> None:
    assert text_of(line) == text


def test_progress_log_appends_lines_with_time_marks(tmp_path: Path) -> None:
    log, marks = tmp_path / "log", tmp_path / "marks"
    log.write_text("before\n")
    tell = into_log(str(log), str(marks), "loading data")
    tell(Note("a"))
    tell(Progress(0, 0, 0, 0, 0.0))
    assert log.read_text() == "before\nffdl: loading data: a\n"
    (mark,) = marks.read_text().splitlines()
    assert mark.split()[1] == str(log.stat().st_size)


def test_progress_log_ends_with_failure_reason(tmp_path: Path) -> None:
    log = tmp_path / "log"
    into_log(str(log), str(tmp_path / "marks"), "loading data")(Failed("S302", "no answer", FaultClass.NETWORK))
    assert log.read_text() == "ffdl: loading data: S302: no answer\n"


def test_progress_log_prints_error_if_log_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    into_log(str(tmp_path / "not" / "there"), str(tmp_path / "marks"), "x")(Note("a"))
    assert "No such file" in capsys.readouterr().err


def test_progress_file_exists_until_transfer_is_done(tmp_path: Path) -> None:
    cell, heard = tmp_path / "now.json", list[Line]()
    tell = also_beside(str(cell), "storing", heard.append)
    tell(Note("a"))
    assert json.loads(cell.read_text())["said"] == "a"
    tell(Done(1, 1, 0, 1.0))
    assert not cell.exists()
    tell(Done(1, 1, 0, 1.0))
    assert len(heard) == 3


def test_progress_file_keeps_retry_reason_until_data_moves(tmp_path: Path) -> None:
    cell = tmp_path / "now.json"
    tell = also_beside(str(cell), "loading data", lambda _line: None)

    def said() -> str:
        return str(json.loads(cell.read_text())["said"])

    tell(Retry("no answer", 8))
    tell(Progress(0, 0, 0, 0, 0.0))
    assert said() == "no answer; tried again in 8 s"
    tell(Progress(1, 2, 5, 9, 0.0))
    assert said() == "1 of 2 files, 5 B of 9 B, 0 B/s; no answer; tried again in 8 s"
    tell(Progress(1, 2, 6, 9, 1.0))
    tell(Progress(1, 2, 6, 9, 0.0))
    assert said() == "1 of 2 files, 6 B of 9 B, 0 B/s"


def test_progress_file_is_skipped_quietly_without_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cell = tmp_path / "attempt" / "now.json"
    tell = also_beside(str(cell), "loading data", lambda _line: None)
    tell(Progress(0, 1, 0, 9, 1.0))
    tell(Done(0, 0, 0, 0.0))
    assert capsys.readouterr().err == "" and not cell.parent.exists()
    cell.parent.mkdir()
    tell(Progress(0, 1, 1, 9, 1.0))
    assert json.loads(cell.read_text())["said"].startswith("0 of 1 file")
