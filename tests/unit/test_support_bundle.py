"""Parts of support archives, and the file that they are written to."""

from __future__ import annotations

import stat
import sys
import tarfile
from pathlib import Path

import pytest

from ffdl_batch.domain.job.views import SupportPart
from ffdl_batch.exit_handling import Stop
from ffdl_batch.support_bundle import command_part, file_part, text_part, write_archive


def test_file_part_has_whole_lines_of_end_within_limit(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("secret-cut-in-half\nsecond\nthird")
    part = file_part("log", str(tmp_path / "log"), below=str(tmp_path), most=8)
    assert part == SupportPart("log", "third", "the last part of 31 bytes")
    whole = file_part("log", str(tmp_path / "log"), below=str(tmp_path), most=31)
    assert (whole.text, whole.note) == ("secret-cut-in-half\nsecond\nthird", "")


def test_file_part_joins_rotated_file_so_that_no_line_is_cut(tmp_path: Path) -> None:
    (tmp_path / "log.1").write_text("first\nhalf of a ")
    (tmp_path / "log").write_text("line\nlast\n")
    place = str(tmp_path / "log")
    part = file_part("log", place, below=str(tmp_path), most=25, is_rotated=True)
    assert (part.text, part.note) == ("half of a line\nlast\n", "the last part of 26 bytes")
    assert file_part("log", place, below=str(tmp_path), most=10, is_rotated=True).text == "last\n"


@pytest.mark.parametrize(
    ("data", "size", "text", "left_out"),
    [
        (b"half\nwhole\n", 20, "whole\n", ""),
        (b"half of a bar\rnext state", 30, "next state", ""),
        (b"one long line", 20, "", "its last 13 bytes have no line end"),
        (b"one long line", 13, "one long line", ""),
        (b"ELF\0\n", 5, "", "it is binary"),
        (b"\xff\xfe\n", 3, "\ufffd\ufffd\n", ""),
        (b"", 0, "", ""),
    ],
)
def test_text_part_drops_first_line_if_it_may_be_cut(data: bytes, size: int, text: str, left_out: str) -> None:
    part = text_part("log", data, size)
    assert (part.text, part.left_out) == (text, left_out)


def test_command_part_reports_why_there_is_no_output() -> None:
    assert command_part("x", ["/no/such/program"]).left_out == "/no/such/program is not installed"
    failing = command_part("x", [sys.executable, "-c", "print('not permitted'); raise SystemExit(3)"])
    assert failing.left_out == f"{sys.executable} exited with status 3: not permitted"
    assert command_part("x", [sys.executable, "-c", "print('fine')"]).text == "fine\n"


def test_archive_has_safe_names_and_lists_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_PASSWORD", "of-environment-7")
    target = tmp_path / "ticket.tar.gz"
    parts = [
        SupportPart("../../etc/evil\n", "of-environment-7 \x1b[2J"),
        SupportPart("/absolute", "given-value"),
        SupportPart("gone", left_out="no such file\n  forged: line"),
    ]
    said = write_archive(target, parts, ["given-value"], force=False)
    assert said.startswith(f"{target}: 2 files, 1 left out")
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    with tarfile.open(target) as archive:
        assert archive.getnames() == ["ticket/MANIFEST.txt", "ticket/etc/evil\\n", "ticket/absolute"]
        texts = [file.read().decode() for one in archive if (file := archive.extractfile(one)) is not None]
    assert texts[1:] == ["*** \\x1b[2J", "***"]
    assert "REVIEW THESE FILES" in texts[0]
    assert texts[0].endswith("Left out:\n  gone: no such file\\n  forged: line\n")
    assert [path.name for path in tmp_path.iterdir()] == ["ticket.tar.gz"]


def test_archive_is_refused_where_it_would_replace_something(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    for name, force in (("file", False), ("link", True), ("", True), ("none/file", False)):
        with pytest.raises(Stop) as stopped:
            write_archive(tmp_path / name, [], force=force)
        assert stopped.value.code == 2
    assert (tmp_path / "file").read_text() == "mine"
