"""Times and bars of transfers."""

from __future__ import annotations

import pytest

from ffdl_batch.cli.render.progress import Meter, describe_done, draw_bar, format_span, rate_line
from ffdl_batch.domain.data.staging_protocol import Done, Progress, Retry


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.04, "0.0 s"), (9.54, "9.5 s"), (70, "70 s"), (600, "10 min"), (12_000, "3 h 20 min")]
)
def test_transfer_duration_is_formatted_in_seconds_minutes_or_hours(seconds: float, text: str) -> None:
    assert format_span(seconds) == text


def test_draw_bar_and_rate_line_print_transfer_progress() -> None:
    half = Progress(1, 3, 500, 1000, 100.0)
    assert draw_bar(half) == "[############............]  50% 500 B of 1000 B, 1 of 3 files, 100 B/s, 5.0 s left"
    assert draw_bar(Progress(0, 0, 0, 0, 0.0)).startswith("[........................]   0% ")
    assert draw_bar(Progress(2, 2, 0, 0, 0.0)).startswith("[########################] 100% ")
    assert draw_bar(Progress(2, 2, 12, 10, 0.0)).startswith("[########################] 100% ")
    assert rate_line(Progress(1, 3, 5, 1000, 1.0, early=True)) == "5 B of 1000 B, 1 of 3 files, 1 B/s"
    assert rate_line(Progress(3, 3, 1000, 1000, 5.0)) == "1000 B of 1000 B, 3 of 3 files, 5 B/s"


def test_transfer_summary_counts_files_bytes_and_skipped_files() -> None:
    assert describe_done(Done(3, 1000, 0, 1.0), "stored") == "3 files stored in 1.0 s (1000 B moved)"
    said = describe_done(Done(1, 0, 2, 1.0, 1), "brought")
    assert said == "1 file brought in 1.0 s (0 B moved, 1 existed, 2 left out)"


def test_meter_prints_each_retry_cause_once_and_counts_repeats(capsys: pytest.CaptureFixture[str]) -> None:
    with Meter() as meter:
        for number in range(8):
            cause = f"the answer ended {123_456 + number} bytes early"
            meter.show(Retry(f"big: {cause}", 0.1, cause))
        meter.show(Retry("big: no answer", 2.0, "no answer"))
        meter.show(Progress(0, 1, 5, 10, 1.0, early=True))
        meter.show(Retry("big: no answer", 2.0, "no answer"))
        meter.show(Retry("of an older release", 0.0))
    assert capsys.readouterr().err.splitlines() == [
        "ffdl: big: the answer ended 123456 bytes early",
        "ffdl: big: no answer; again in 2 s",
        "ffdl: 5 B of 10 B, 0 of 1 file, 1 B/s",
        "ffdl: the answer ended … bytes early: 7 more times",
        "ffdl: of an older release",
        "ffdl: no answer: 1 more time",
    ]
