"""Texts that FfDL accepts as `since_time`."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from ffdl_batch.domain.ffdl_times import parse_since

NOW = 1_800_000_000.0  # 2027-01-15 08:00:00 UTC


@pytest.fixture(autouse=True)
def zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("1800000000123", 1800000000.123),
        ("0", 0.0),
        ("now", NOW),
        (" yesterday ", NOW - 86400),
        ("5m", NOW - 300),
        ("2h30m", NOW - 9000),
        ("1.5h", NOW - 5400),
        ("250ms", NOW - 0.25),
        ("3 hours ago", NOW - 10800),
        ("1 week ago", NOW - 7 * 86400),
        ("2027-01-15T08:00:00Z", NOW),
        ("2027-01-15T09:00:00.500+01:00", NOW + 0.5),
        ("2027-01-15T08:00:00.123456789Z", NOW + 0.123456),
        ("2027-01-15T09:00:00", NOW),
        ("Fri Jan 15 09:00:00 2027", NOW),
        ("Fri Jan 15 08:00:00 UTC 2027", NOW),
        ("Fri Jan 15 01:00:00 -0700 2027", NOW),
        ("15 Jan 27 08:00 GMT", NOW),
        ("15 Jan 27 09:00 +0100", NOW),
        ("Fri, 15 Jan 2027 08:00:00 GMT", NOW),
        ("Friday, 15-Jan-27 08:00:00 UTC", NOW),
        ("9:00AM", NOW),
        ("9:01AM", NOW + 60 - 86400),  # of yesterday: it has not come yet today
    ],
)
def test_moment_is_read(text: str, moment: float) -> None:
    assert parse_since(text, NOW) == pytest.approx(moment, abs=1e-6)


@pytest.mark.parametrize(
    "text",
    ["soon", "5x", "-5m", "1e3", "9" * 16, "3 fortnights ago", "Fri Jan 45 08:00:00 2027", "0001-01-01T00:00:00", "١٢"],
)
def test_other_text_is_refused_with_examples(text: str) -> None:
    with pytest.raises(ValueError, match="is not a time; write milliseconds since the epoch"):
        parse_since(text, NOW)
