"""Times, tables and what a terminal gets to see."""

from __future__ import annotations

import sys
from datetime import datetime, timedelta

import pytest

from ffdl_batch.cli.render.formatting import (
    format_number,
    format_time,
    is_colourful,
    paint_state,
    parse_moment,
    print_line,
    print_table,
)
from ffdl_batch.cli.render.log_lines import terminal_line

NOW = datetime(2027, 1, 20, 12, 0).timestamp()


@pytest.mark.parametrize(
    ("text", "ago"),
    [
        ("now", timedelta()),
        ("30m", timedelta(minutes=30)),
        ("2h30m", timedelta(hours=2, minutes=30)),
        ("5min ago", timedelta(minutes=5)),
        ("1w2d", timedelta(days=9)),
        ("today", timedelta(hours=12)),
        ("yesterday", timedelta(hours=36)),
        ("2027-01-20T11:59:59", timedelta(seconds=1)),
        ("2027-01-20", timedelta(hours=12)),
    ],
)
def test_parse_moment_reads_relative_and_absolute_times(text: str, ago: timedelta) -> None:
    assert parse_moment(text, NOW) == NOW - ago.total_seconds()


def test_parse_moment_reads_epoch_and_time_zone() -> None:
    assert parse_moment("1700000000", NOW) == 1_700_000_000
    assert parse_moment("1700000000123", NOW) == 1_700_000_000.123
    assert parse_moment("1970-01-02T00:00+00:00", NOW) == 86400


@pytest.mark.parametrize(
    "text",
    [
        *("", "soon", "5", "12:00", "ago", "-3h"),
        *("9" * 17, "9" * 401, "9" * 5000 + ".5", "9" * 401 + "d", "1h" + "9" * 5000 + "m ago"),
    ],
)
def test_parse_moment_rejects_invalid_text(text: str) -> None:
    with pytest.raises(ValueError, match="is not a time"):
        parse_moment(text, NOW)


@pytest.mark.parametrize(("width", "last"), [(None, "python3 train.py"), (16, "python3 t"), (3, "COMMAND")])
def test_print_table_cuts_last_column_at_terminal_width(
    capsys: pytest.CaptureFixture[str], width: int | None, last: str
) -> None:
    print_table(["PID", "COMMAND"], [["12345", "python3 train.py"]], width=width)
    header, row = capsys.readouterr().out.splitlines()
    assert header == "PID    COMMAND" and row == f"12345  {'python3 train.py'[: len(last)].rstrip()}"


def test_print_table_pads_no_other_row_for_one_long_value(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [["a", "x" * 300, "site"], ["b", "short", "default"]]
    print_table(["KEY", "VALUE", "ORIGIN"], rows, widest=10)
    shown = ["KEY  VALUE       ORIGIN", f"a    {'x' * 300}  site", "b    short       default"]
    assert capsys.readouterr().out.splitlines() == shown


def test_colours_are_used_only_on_terminal_without_no_color(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert is_colourful()
    assert paint_state("FAILED") == "\x1b[31mFAILED\x1b[0m"
    monkeypatch.setenv("NO_COLOR", "1")
    assert paint_state("FAILED") == "FAILED"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: False)
    monkeypatch.delenv("NO_COLOR")
    assert not is_colourful()


def test_terminal_line_drops_or_keeps_colours_and_escapes_all_else() -> None:
    line = "10%\r\x1b[38:5:2;1mdone\x1b[0m\x1b[2J\x1b]0;x\x07\r"
    assert terminal_line(line) == r"done\x1b[2J\x1b]0;x\x07"
    assert terminal_line(line, colours=True) == "\x1b[38:5:2;1mdone\x1b[0m" + r"\x1b[2J\x1b]0;x\x07" + "\x1b[0m"


def test_table_has_one_row_per_line_and_width_of_escapes(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["NAME", "STATE"], [["a\nb\u202e", "FAILED"], ["c", "QUEUED"]])
    assert capsys.readouterr().out.splitlines() == [
        "NAME        STATE", r"a\nb\u202e  FAILED", "c           QUEUED",
    ]  # fmt: skip


def test_print_line_indents_further_lines_of_value(capsys: pytest.CaptureFixture[str]) -> None:
    print_line("Name", "x\nState: COMPLETED")
    assert capsys.readouterr().out == f"{'Name:':<20} x\n{' ' * 21}State: COMPLETED\n"


def test_format_number_and_format_time_print_short_values() -> None:
    assert (format_number(4.0), format_number(0.5), format_time(None)) == ("4", "0.5", "N/A")
