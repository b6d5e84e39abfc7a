"""The period of a report: a month of local time, or from a moment to another."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime

import click

_MONTH = re.compile(r"(\d{4})-(\d{1,2})", re.ASCII)


@dataclass(frozen=True, slots=True)
class Period:
    """From `since` to before `until`, seconds since the epoch; `name` is what a person calls it."""

    since: float
    until: float
    name: str


def read_period(month: str | None, since: float | None, until: float | None, now: float) -> Period:
    """What the options of a report say; without any, the month that `now` is in. Raises UsageError."""
    if month is not None and (since is not None or until is not None):
        raise click.UsageError("--month goes with neither --since nor --until")
    if since is None and until is None:
        return read_month(month or f"{datetime.fromtimestamp(now):%Y-%m}")
    if since is None:
        raise click.UsageError("--until needs --since, the beginning of the period")
    end = now if until is None else until
    if end <= since:
        raise click.UsageError("the period is empty: --until has to lie after --since")
    return Period(since, end, f"{local(since)} to {local(end)}")


def read_month(text: str) -> Period:
    """``2026-11``, from its first to before the next month's first midnight by local time; summer time counts. Raises
    UsageError."""
    match = _MONTH.fullmatch(text.strip())
    year, number = (int(match[1]), int(match[2])) if match is not None else (0, 0)
    if not (1970 <= year <= 9998 and 1 <= number <= 12):
        raise click.UsageError(f"{text[:60]!r} is no month; write for example 2026-11")
    after = datetime(year + number // 12, number % 12 + 1, 1)
    begin = datetime(year, number, 1)
    return Period(begin.timestamp(), after.timestamp(), f"{year}-{number:02}")


def local(at: float) -> str:
    """A moment by local time, with its distance from UTC (ISO 8601)."""
    return datetime.fromtimestamp(at).astimezone().isoformat(timespec="seconds")
