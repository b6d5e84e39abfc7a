"""Times as sbatch's --begin and --deadline take them, read in the time zone of the submitter. Pure.

Slurm reads such a time when sbatch runs, in the zone of that process. Here sbatch may run later, on a host in another
zone, and again for a later attempt. So a submission replaces these times by absolute ones.
"""

from __future__ import annotations

import re
from datetime import date, datetime, timedelta, timezone

from ffdl_batch.host.time_zone import UtcOffsets

EXAMPLES = "16:00, now+1hour, 2027-01-20T12:34 or 2027-01-20T12:34:00+01:00"
LEAP_YEAR = 1_830_000_000
"""A moment in a year with a 29 February, at which every time that sbatch knows exists."""
_CLOCKS = {"midnight": 0, "noon": 12, "elevenses": 11, "fika": 15, "teatime": 16}
_UNITS = {"second": 1, "minute": 60, "hour": 3600, "day": 86_400, "week": 7 * 86_400}
_DAY_S = 86_400
_EPOCH = datetime(1970, 1, 1)
_ABSOLUTE = re.compile(r"(\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d)?)\s?(Z|[+-]\d\d:\d\d)", re.ASCII)
_NOW = re.compile(r"now(?:\s*([+-])\s*(\d{1,9})\s*(?:(second|minute|hour|day|week)s?)?)?", re.ASCII | re.IGNORECASE)
_PART = re.compile(
    r"""[ \t\-T]*(?:
      (?P<day>today|tomorrow) | (?P<name>midnight|noon|elevenses|fika|teatime)
    | (?P<hour>\d{1,2}):(?P<minute>[0-5]\d)(?::(?P<second>[0-5]\d))?(?:\s*(?P<half>am|pm))?
    | (?P<iso>\d{4}-\d{1,2}-\d{1,2})
    | (?P<month>0[1-9]|1[0-2]|[1-9](?!\d))[./]?(?P<mday>0[1-9]|[12]\d|3[01]|[1-9](?!\d))[./]?(?P<year>\d\d)?
    )""",
    re.ASCII | re.IGNORECASE | re.VERBOSE,
)
"""One part of a time: the forms of parse_time in src/common/parse_time.c, Slurm 20.11 to 26.05."""


def to_absolute(text: str, now: float, offsets: UtcOffsets) -> str:
    """Return the time in ISO 8601 with its offset from UTC, as ``2027-01-20T16:00:00+01:00``. Raises ValueError."""
    at = read_begin_time(text, now, offsets)
    return datetime.fromtimestamp(at, timezone(timedelta(seconds=_offset_at(at, offsets)))).isoformat()


def read_absolute(text: str) -> int | None:
    """Return the seconds since the epoch of a time with an offset from UTC; None for any other text."""
    match = _ABSOLUTE.fullmatch(text.strip())
    if match is None:
        return None
    return int(datetime.fromisoformat(match[1] + ("+00:00" if match[2] == "Z" else match[2])).timestamp())


def sbatch_time(text: str) -> str:
    """Return a time in a form that sbatch reads alike in every time zone: seconds since the epoch, as
    ``uts1800000000`` (parse_time.c, Slurm 20.11 to 26.05). A time without an offset from UTC stays as it is."""
    at = read_absolute(text)
    return text if at is None else f"uts{at}"


def read_begin_time(text: str, now: float, offsets: UtcOffsets) -> int:
    """Return the seconds since the epoch that sbatch would read at `now`, in the zone with these offsets.

    Times with an offset from UTC are accepted, too. Raises ValueError.
    """
    try:
        found = _read(text.strip(), int(now), offsets)
    except (ValueError, OverflowError):  # no such hour, day or year
        found = None
    if found is None or not 0 < found < 2**32:
        raise ValueError(f"{text[:60]!r} is not a time that sbatch accepts; write {EXAMPLES}")
    return found


def _read(text: str, now: int, offsets: UtcOffsets) -> int | None:
    if text[:3].lower() == "uts" and text[3:].isascii() and text[3:].isdigit():
        return int(text[3:]) if int(text[3:]) >= 1_000_000 else None  # the least that Slurm takes for a time
    if match := _NOW.fullmatch(text):
        delta = int(match[2] or 0) * _UNITS[(match[3] or "second").lower()]
        return now - delta if match[1] == "-" else now + delta
    absolute = read_absolute(text)
    return _read_local(text, now, offsets) if absolute is None else absolute


def _read_local(text: str, now: int, offsets: UtcOffsets) -> int | None:
    here, position = _local(now, offsets), 0
    day: date | None = None
    clock: timedelta | None = None
    is_yearless = False
    while position < len(text):
        part = _PART.match(text, position)
        if part is None:
            return None
        position, is_clock = part.end(), bool(part["name"] or part["hour"])
        if (clock if is_clock else day) is not None:
            return None
        if is_clock:
            clock = _clock_of(part)
        else:
            day, is_yearless = _day_of(part, here, _local(now + _DAY_S, offsets)), _has_no_year(part)
    if day is None and clock is None:
        return None
    minute = here.replace(second=59)
    found = datetime.combine(day or here.date(), datetime.min.time()) + (clock or timedelta())
    if day is None and found <= minute:
        found = datetime.combine(_local(now + _DAY_S, offsets).date(), datetime.min.time()) + (clock or timedelta())
    elif is_yearless and found <= minute:
        found = found.replace(year=found.year + 1)
    return _epoch_of(found, offsets)


def _clock_of(part: re.Match[str]) -> timedelta:
    """Return the time since midnight. Raises ValueError for an hour that does not exist."""
    if part["name"]:
        return timedelta(hours=_CLOCKS[part["name"].lower()])
    hour, half = int(part["hour"]), (part["half"] or "").lower()
    if hour > 23 or (half and hour > 12):
        raise ValueError("no such hour")
    if half:
        hour = hour % 12 + (12 if half == "pm" else 0)
    return timedelta(hours=hour, minutes=int(part["minute"]), seconds=int(part["second"] or 0))


def _day_of(part: re.Match[str], here: datetime, later: datetime) -> date:
    """Return the day. Raises ValueError for one that does not exist."""
    if part["day"]:
        return (later if part["day"].lower() == "tomorrow" else here).date()
    if part["iso"]:
        year, month, mday = map(int, part["iso"].split("-"))
        return date(year, month, mday)
    return date(here.year if _has_no_year(part) else 2000 + int(part["year"]), int(part["month"]), int(part["mday"]))


def _has_no_year(part: re.Match[str]) -> bool:
    """Whether the next such day is meant; Slurm takes a year 00 for none."""
    return bool(part["month"]) and int(part["year"] or 0) == 0


def _local(at: int, offsets: UtcOffsets) -> datetime:
    return _EPOCH + timedelta(seconds=at + _offset_at(at, offsets))


def _epoch_of(local: datetime, offsets: UtcOffsets) -> int:
    """Return when a clock of the zone shows `local`: the first time of two; if it never does, because the clock is set
    forward, as if it had not been (as mktime(3))."""
    wall = int((local - _EPOCH).total_seconds())
    times = sorted({wall - _offset_at(at, offsets) for at in (wall - _DAY_S, wall + _DAY_S)})
    return next((at for at in times if at + _offset_at(at, offsets) == wall), times[-1])


def _offset_at(at: int, offsets: UtcOffsets) -> int:
    return next((offset for since, offset in reversed(offsets) if since <= at), offsets[0][1])
