"""Reads the GPU time of all users from the scheduler's accounting, for quotas of GPU-hours.

The use of each day is stored. A past day is read once, and today once a minute, and only while there is such a quota. A
decision about a job reads what is stored, so it does not wait for the accounting.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import date, datetime, timedelta
from enum import StrEnum

from sqlalchemy import delete, func, insert, select
from sqlalchemy.engine import Connection

from ffdl_batch.domain.backend_facts import AccountedUse
from ffdl_batch.domain.metrics.usage_report import HOUR_S
from ffdl_batch.domain.scheduler_errors import SchedulerUnreachable
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.ports.capabilities import HasAccounting
from ffdl_batch.site.hub.schema import DAYS, QUOTAS, USES
from ffdl_batch.store import StoreError
from ffdl_batch.store.database import Database

log = logging.getLogger(__name__)

INTERVAL_S = 60.0
SETTLED_S = 600.0
"""How long after the end of a day its records may still change: slurmctld sends them to slurmdbd with a delay."""
PREFIX = "gpu-hours/"
_KEPT_DAYS = 40


class Period(StrEnum):
    """A period of the calendar in the hub's time zone. Quotas reset at the start of each."""

    DAY = "day"
    WEEK = "week"
    """From Monday."""
    MONTH = "month"

    def first_day(self, today: date) -> date:
        """Return the day on which the present period began."""
        if self is Period.WEEK:
            return today - timedelta(days=today.weekday())
        return today.replace(day=1) if self is Period.MONTH else today


class NoAccounting(Exception):
    """The accounting cannot be read; the text says why."""


@dataclass(frozen=True, slots=True)
class Hours:
    """GPU-hours of a period, by user and account."""

    is_known: bool
    """Whether all days of the period were read."""
    used: Counter[tuple[str, str]]


class GpuHours:
    """The stored use. Safe in every thread."""

    def __init__(self, database: Database, source: HasAccounting | None) -> None:
        """`database` has the hub's tables. `source` is None if this hub asks no scheduler."""
        self._database, self._source = database, source
        self._lock = threading.Lock()
        self._why = ""

    async def keep_reading(self) -> None:
        """Read the accounting in intervals until the task is cancelled."""
        while True:
            try:
                await asyncio.to_thread(self.read)
            except (NoAccounting, StoreError) as error:
                if str(error) != self._why:
                    log.error("cannot read the accounting, so GPU-hours quotas use old figures: %s", error)
                self._why = str(error)
            except Exception:
                log.exception("cannot read the accounting, so GPU-hours quotas use old figures")
            else:
                self._why = ""
            await asyncio.sleep(INTERVAL_S)

    def read(self, *resources: str, patience_s: float = math.inf) -> None:
        """Read the days that quotas, and quotas of `resources`, need: those that are not stored or may have changed,
        today first. After `patience_s`, leave the rest to the next call. Raises NoAccounting, StoreError."""
        deadline = time.monotonic() + patience_s
        if not self._lock.acquire(timeout=min(patience_s, threading.TIMEOUT_MAX)):
            raise NoAccounting("it is being read; try again in a minute")
        try:
            with self._database.reading() as connection:
                now = self._database.now(connection)
                needed = select(QUOTAS.c.resource).where(QUOTAS.c.resource.startswith(PREFIX)).distinct()
                found = (*connection.execute(needed).scalars(), *resources)
                periods = {Period(one.removeprefix(PREFIX)) for one in found}
                read_at = {row.day: row.read_at for row in connection.execute(select(DAYS))}
            if not periods:
                return
            day = today = datetime.fromtimestamp(now).date()
            first = min(period.first_day(today) for period in periods)
            while day >= first and time.monotonic() < deadline:
                end = _begin(day + timedelta(days=1))
                if read_at.get(day.isoformat(), 0.0) < end + SETTLED_S:
                    self._store(day, self.used(_begin(day), min(end, now)), now)
                day -= timedelta(days=1)
        finally:
            self._lock.release()

    def used(self, since: float, until: float) -> Sequence[AccountedUse]:
        """Return the use of all users in a period from the accounting. Raises NoAccounting."""
        if self._source is None:
            raise NoAccounting(
                "the hub reads no accounting: listing_interval_s is 0, or the slurm backend is not installed"
            )
        try:
            found = self._source.accounted_uses(since, until)
        except SchedulerUnreachable as error:
            raise NoAccounting(str(error)) from error
        if found is None:
            raise NoAccounting("the scheduler has no accounting")
        return found

    def _store(self, day: date, uses: Iterable[AccountedUse], now: float) -> None:
        name = day.isoformat()
        rows = [{"day": name, "user": one.user, "account": one.account, "gpu_s": one.gpu_s} for one in uses]
        oldest = (day - timedelta(days=_KEPT_DAYS)).isoformat()
        with self._database.writing() as connection:
            for table in (USES, DAYS):
                connection.execute(delete(table).where((table.c.day == name) | (table.c.day < oldest)))
            if rows:
                connection.execute(insert(USES), rows)
            connection.execute(insert(DAYS).values(day=name, read_at=now))


def stored_hours(connection: Connection, period: Period, now: float) -> Hours:
    """Return what is stored about the present period. Two statements for any number of users."""
    today = datetime.fromtimestamp(now).date()
    first = period.first_day(today)
    count = select(func.count()).select_from(DAYS).where(DAYS.c.day >= first.isoformat())
    is_known = connection.execute(count).scalar_one() > (today - first).days
    query = select(USES.c.user, USES.c.account, func.sum(USES.c.gpu_s)).where(USES.c.day >= first.isoformat())
    rows = connection.execute(query.group_by(USES.c.user, USES.c.account))
    return Hours(is_known, Counter({(user, account): gpu_s / HOUR_S for user, account, gpu_s in rows}))


def _begin(day: date) -> float:
    """Return the beginning of a day in local time, in seconds since the epoch."""
    return time.mktime(day.timetuple())
