"""Times of --begin and --deadline: the moment that Slurm's parse_time would read in the submitter's zone."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from ffdl_batch.domain.sbatch.begin_time import read_absolute, read_begin_time, to_absolute
from ffdl_batch.host.time_zone import read_utc_offsets

BERLIN = ZoneInfo("Europe/Berlin")
NOW = datetime(2027, 1, 20, 15, 30, 20, tzinfo=BERLIN).timestamp()
UTC_OFFSETS = ((0, 0),)


@contextmanager
def zone(name: str) -> Iterator[None]:
    before = os.environ.get("TZ")
    os.environ["TZ"] = name
    time.tzset()
    try:
        yield
    finally:
        if before is None:
            del os.environ["TZ"]
        else:
            os.environ["TZ"] = before
        time.tzset()


@pytest.mark.parametrize(
    ("text", "local"),
    [
        ("16:00", "2027-01-20T16:00:00"), ("15:30", "2027-01-21T15:30:00"), ("15:31", "2027-01-20T15:31:00"),
        ("4:00pm", "2027-01-20T16:00:00"), ("12:05 AM", "2027-01-21T00:05:00"), ("12:00pm", "2027-01-21T12:00:00"),
        ("16:00:30", "2027-01-20T16:00:30"), ("now", "2027-01-20T15:30:20"), ("now+1hour", "2027-01-20T16:30:20"),
        ("now + 60 minutes", "2027-01-20T16:30:20"), ("now-1day", "2027-01-19T15:30:20"),
        ("now+90", "2027-01-20T15:31:50"), ("NOW+2WEEKS", "2027-02-03T15:30:20"), ("today", "2027-01-20T00:00:00"),
        ("tomorrow", "2027-01-21T00:00:00"), ("tomorrow noon", "2027-01-21T12:00:00"),
        ("noon", "2027-01-21T12:00:00"), ("teatime", "2027-01-20T16:00:00"), ("fika", "2027-01-21T15:00:00"),
        ("elevenses tomorrow", "2027-01-21T11:00:00"), ("midnight", "2027-01-21T00:00:00"),
        ("2027-07-20", "2027-07-20T00:00:00"), ("2027-07-20T12:34", "2027-07-20T12:34:00"),
        ("2027-7-2T12:34:56", "2027-07-02T12:34:56"), ("0120", "2028-01-20T00:00:00"), ("0121", "2027-01-21T00:00:00"),
        ("01/20/27-16:00", "2027-01-20T16:00:00"), ("12:00 01/20", "2028-01-20T12:00:00"),
        ("16:00 01.20", "2027-01-20T16:00:00"), ("070427", "2027-07-04T00:00:00"), ("uts1800000000", ""),
        ("2027-03-28T02:30", "2027-03-28T03:30:00"),  # the clock is set forward
        ("2027-10-31T02:30", "2027-10-31T02:30:00"),  # it shows this twice
        ("2027-01-20T12:34:00Z", "2027-01-20T13:34:00"), ("2027-07-20 12:34-07:00", "2027-07-20T21:34:00"),
    ],
)  # fmt: skip
def test_begin_time_is_read_in_zone_of_submitter(text: str, local: str) -> None:
    with zone("Europe/Berlin"):
        offsets = read_utc_offsets(NOW)
    at = read_begin_time(text, NOW, offsets)
    assert at == (datetime.fromisoformat(local).replace(tzinfo=BERLIN).timestamp() if local else 1_800_000_000)
    assert read_absolute(to_absolute(text, NOW, offsets)) == at


@pytest.mark.parametrize(
    "text",
    ["", "nonsense", "25:00", "24:00", "13:00pm", "now+", "now+3moons", "2027-13", "13/45", "1" * 60, "uts12", "-",
     "monday", "2027-02-30", "16:60", "now 16:00", "2027-01-20T12:34+1", "now+999999999weeks", "²", "uts²²²²²²²²"],
)  # fmt: skip
def test_begin_time_rejects_what_slurm_does_not_read(text: str) -> None:
    with pytest.raises(ValueError, match="not a time that sbatch accepts; write 16:00"):
        read_begin_time(text, NOW, UTC_OFFSETS)


@pytest.mark.parametrize("name", ["UTC", "Europe/Berlin", "America/St_Johns", "CET-1CEST,M3.5.0,M10.5.0/3", "XYZ+7"])
def test_read_utc_offsets_agrees_with_local_time_for_five_years(name: str) -> None:
    with zone(name):
        offsets = read_utc_offsets(NOW)
        for text in ("2027-03-27T12:00", "2027-08-01T09:00", "2028-12-24T00:00", "2031-06-06T06:00"):
            wall = datetime.fromisoformat(text).timetuple()
            assert read_begin_time(text, NOW, offsets) == time.mktime(wall), text
    assert datetime.fromisoformat(to_absolute("noon", NOW, offsets)).astimezone(UTC).timestamp() > NOW
