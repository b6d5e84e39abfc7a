"""Parse and write times of logs."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from ffdl_batch.domain.metrics.records import LATEST_MS

_NUMBER = re.compile(r"\d+(?:\.\d*)?\Z")
_GLOG = re.compile(r"[DIWEF]?(\d\d)(\d\d)\s+(\d+):(\d\d):(\d\d)(?:\.(\d+))?\Z")
_ISO = re.compile(r"(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d(?::\d\d)?)(?:[.,](\d+))?\s*(Z|[-+]\d\d:?\d\d)?\Z")
_LEAST_S, _LEAST_MS = 1e8, 1e11
_SLACK = timedelta(days=2)


def time_ms(text: str, now_s: float) -> int | None:
    """Return the milliseconds since the epoch; None if `text` is not a known form of time, or no time of a record.

    Known forms are ISO 8601, glog's stamps (which have no year: the latest past one is used) and numbers: seconds or
    milliseconds since the epoch. A time without a zone is in the node's time zone.
    """
    text = text.strip()
    if _NUMBER.match(text):
        number = float(text)
        return record_ms(number if number >= _LEAST_MS else number * 1000) if number >= _LEAST_S else None
    try:
        moment = _glog(text, now_s) or _iso(text)
        return None if moment is None else record_ms(moment.timestamp() * 1000)
    except (ValueError, OverflowError):
        return None


def record_ms(milliseconds: float) -> int | None:
    """Return a time as records have it; None if it is out of their range."""
    return int(milliseconds) if 0 <= milliseconds <= LATEST_MS else None


def _iso(text: str) -> datetime | None:
    found = _ISO.match(text)
    if found is None:
        return None
    day, clock, fraction, zone = found.groups()
    return datetime.fromisoformat(f"{day}T{clock}{zone or ''}") + _fraction(fraction)


def _glog(text: str, now_s: float) -> datetime | None:
    found = _GLOG.match(text)
    if found is None:
        return None
    month, day, hour, minute, second = (int(part) for part in found.groups()[:5])
    now = datetime.fromtimestamp(now_s)
    moment = datetime(now.year, month, day, hour, minute, second) + _fraction(found.group(6))
    return moment.replace(year=now.year - 1) if moment > now + _SLACK else moment


def _fraction(digits: str | None) -> timedelta:
    return timedelta(microseconds=int((digits or "0")[:6].ljust(6, "0")))


def rfc3339(seconds: float) -> str:
    """Return the time in UTC, with a Z; "" if it is outside of the calendar."""
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    except (ValueError, OverflowError, OSError):
        return ""
