"""Reads the texts that FfDL accepts as `since_time`.

Source: IBM/FfDL, metrics/service (time parsing of the training-data service), which reads Go's layouts and durations.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta

_LAYOUTS = (
    "%Y-%m-%dT%H:%M:%S.%f%z",  # RFC 3339
    "%Y-%m-%dT%H:%M:%S%z",
    "%Y-%m-%dT%H:%M:%S",
    "%a %b %d %H:%M:%S %Y",  # ANSI C
    "%a %b %d %H:%M:%S %z %Y",  # Ruby
    "%d %b %y %H:%M %z",  # RFC 822
    "%a, %d %b %Y %H:%M:%S %z",  # RFC 1123
)
_OF_ZONE_NAME = ("%a %b %d %H:%M:%S %Y", "%d %b %y %H:%M", "%a, %d %b %Y %H:%M:%S", "%A, %d-%b-%y %H:%M:%S")
"""Unix, RFC 822, RFC 1123 and RFC 850, each with the name of a time zone where :data:`_ZONE_NAME` finds one."""
_ZONE_NAME = re.compile(r" (UTC|GMT|Z)(?= |$)", re.ASCII)
_FRACTION = re.compile(r"(\.\d{6})\d+", re.ASCII)
"""A fraction of a second with more digits than strptime reads."""
_KITCHEN = "%I:%M%p"
_DURATION = re.compile(r"(?:\d+(?:\.\d+)?(?:h|m|s|ms))+", re.ASCII)
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|h|m|s)", re.ASCII)
_AGO = re.compile(r"(\d{1,9}) +(second|minute|hour|day|week)s? +ago", re.ASCII)
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_UNITS = {"second": 1, "minute": 60, "hour": 3600, "day": 86400, "week": 7 * 86400}
_LONGEST_MS = 15
"""Digits of milliseconds since the epoch."""


def parse_since(text: str, now: float) -> float:
    """Return a moment in seconds since the epoch. Dates without a time zone are in the local one.

    `text` may be milliseconds since the epoch, ``now``, ``yesterday``, a duration before now (``2h30m``),
    ``3 hours ago``, or a date in one of the layouts above. Raises ValueError.
    """
    asked = text.strip()
    if asked.isascii() and asked.isdecimal() and len(asked) <= _LONGEST_MS:
        return int(asked) / 1000
    if asked in ("now", "yesterday"):
        return now - 86400 * (asked == "yesterday")
    if _DURATION.fullmatch(asked):
        return now - sum(float(number) * _SECONDS[unit] for number, unit in _PART.findall(asked))
    if ago := _AGO.fullmatch(asked):
        return now - int(ago[1]) * _UNITS[ago[2]]
    return _parse_date(asked, now)


def _parse_date(text: str, now: float) -> float:
    text = _FRACTION.sub(r"\1", text)
    without = _ZONE_NAME.sub("", text)
    in_utc = [(f"{without} +0000", f"{layout} %z") for layout in _OF_ZONE_NAME if without != text]
    for words, layout in [(text, layout) for layout in _LAYOUTS] + in_utc:
        if found := _read(words, layout):
            return found.timestamp()
    if clock := _read(text.replace(" ", ""), _KITCHEN):
        today = datetime.fromtimestamp(now)
        moment = today.replace(hour=clock.hour, minute=clock.minute, second=0, microsecond=0)
        return (moment if moment <= today else moment - timedelta(days=1)).timestamp()
    raise ValueError(
        f"{text[:80]!r} is not a time; write milliseconds since the epoch, 10m, 3 hours ago or 2026-11-30T10:00:00Z"
    )


def _read(text: str, layout: str) -> datetime | None:
    try:
        found = datetime.strptime(text, layout)
        found.timestamp()
    except (ValueError, OverflowError, OSError):  # also a year that the C library does not know
        return None
    return found
