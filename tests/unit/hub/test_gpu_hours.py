"""Quotas of GPU-hours: what the hub reads from an accounting, and what it admits, on SQLite and real PostgreSQL."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from datetime import date, datetime

import pytest

from ffdl_batch.domain.admission import Claim
from ffdl_batch.domain.backend_facts import AccountedRun, AccountedUse, AccountingOutage
from ffdl_batch.domain.job.job import Token
from ffdl_batch.domain.outcome.observation import NativeId
from ffdl_batch.domain.scheduler_errors import AccountingUnreachable
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.site.hub import gpu_hours
from ffdl_batch.site.hub.gpu_hours import SETTLED_S, NoAccounting, Period
from ffdl_batch.site.hub.store import HubStore, open_hub_store
from ffdl_batch.site.hub.tenants import EACH, WHOLE, Quota
from ffdl_batch.store.database import Database, connect
from tests.unit.hub.test_admission import ADA, BOB, NAMES, ask, limit
from tests.unit.store.conftest import empty_url  # noqa: F401 - a fixture
from tests.unit.store.jobs import FakeClock

HOUR = 3600.0
NOON = time.mktime((2026, 11, 25, 12, 0, 0, 0, 0, -1))
"""Of a Wednesday."""
MIDNIGHT, MONDAY = NOON - 12 * HOUR, NOON - 60 * HOUR
DAY, WEEK, MONTH = "gpu-hours/day", "gpu-hours/week", "gpu-hours/month"


@dataclass
class Accounting:
    """An accounting of jobs of one GPU that began and ended at these times."""

    jobs: list[tuple[str, str, float, float]] = field(default_factory=list)
    asked: list[tuple[float, float]] = field(default_factory=list)
    why: str = ""
    is_missing: bool = False

    def accounted_uses(self, since: float, until: float) -> Sequence[AccountedUse] | None:
        self.asked.append((since, until))
        if self.why:
            raise AccountingUnreachable(self.why, 5.0)
        if self.is_missing:
            return None
        found: dict[tuple[str, str], float] = {}
        for user, account, began, ended in self.jobs:
            if (held := min(ended, until) - max(began, since)) > 0:
                found[user, account] = found.get((user, account), 0.0) + held
        return [AccountedUse(*key, 1, held, 0.0) for key, held in found.items()]

    def accounting_outage(self) -> AccountingOutage | None:
        raise AssertionError("outages are not asked for")

    def accounted_runs(self, attempts: Mapping[NativeId, Token]) -> Mapping[NativeId, Sequence[AccountedRun]] | None:
        raise AssertionError("single runs are not asked for")


@dataclass
class Site:
    """A hub with the tenant vision, of which ada and bob are members."""

    database: Database
    store: HubStore
    accounting: Accounting
    at: float = NOON
    """The time on the clock of the database."""

    def use(self, user: str, hours: float, began: float = MIDNIGHT, account: str = "vis") -> None:
        """Let a job of one GPU have run."""
        self.accounting.jobs.append((user, account, began, began + hours * HOUR))


@pytest.fixture
def site(empty_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:  # noqa: F811
    accounting = Accounting()
    database = connect(empty_url, False, FakeClock())
    store = open_hub_store(database, lambda uid: NAMES.get(uid, ""), accounting)
    store.tenants.put("vision", None, ["vis"])
    store.tenants.add_member("vision", ADA)
    store.tenants.add_member("vision", BOB)
    site = Site(database, store, accounting)
    monkeypatch.setattr(Database, "now", lambda *_: site.at)
    try:
        yield site
    finally:
        database.close()


@pytest.mark.parametrize(
    ("today", "first_days"),
    [
        ("2026-11-30", ("2026-11-30", "2026-11-30", "2026-11-01")),
        ("2026-11-29", ("2026-11-29", "2026-11-23", "2026-11-01")),
        ("2027-01-01", ("2027-01-01", "2026-12-28", "2027-01-01")),
    ],
)
def test_periods_begin_at_midnight_on_monday_and_on_first_of_month(today: str, first_days: tuple[str, ...]) -> None:
    found = [period.first_day(date.fromisoformat(today)).isoformat() for period in Period]
    assert tuple(found) == first_days


def test_nothing_is_read_without_quota_of_gpu_hours(site: Site) -> None:
    limit(site.store, "gpus", 8)
    site.store.gpu_hours.read()
    assert site.accounting.asked == []


def test_past_days_are_read_once_and_today_each_time(site: Site) -> None:
    limit(site.store, MONTH, 100)
    limit(site.store, DAY, 100)
    site.store.gpu_hours.read()
    begins = [since for since, _ in site.accounting.asked]
    assert [datetime.fromtimestamp(since).date() for since in begins] == [date(2026, 11, n) for n in range(25, 0, -1)]
    assert site.accounting.asked[:2] == [(MIDNIGHT, NOON), (MIDNIGHT - 24 * HOUR, MIDNIGHT)]
    site.accounting.asked.clear()
    site.at = MIDNIGHT + 24 * HOUR + 60
    site.store.gpu_hours.read()
    assert site.accounting.asked == [(MIDNIGHT + 24 * HOUR, site.at), (MIDNIGHT, MIDNIGHT + 24 * HOUR)]
    site.at += SETTLED_S
    site.store.gpu_hours.read()  # yesterday, for the last time
    site.accounting.asked.clear()
    site.store.gpu_hours.read()
    assert site.accounting.asked == [(MIDNIGHT + 24 * HOUR, site.at)]


def test_job_waits_while_used_reserved_and_requested_gpu_hours_exceed_quota(site: Site) -> None:
    site.use("ada", 4)
    limit(site.store, DAY, 15)
    site.store.gpu_hours.read()
    assert ask(site.store, ADA, Claim("a", "vis", gpus=2, hours=3)) == ["go"]
    assert ask(site.store, BOB, Claim("b", gpus=1, hours=6), Claim("c", gpus=1, hours=5)) == [
        f"wait: waiting for quota of tenant vision: {DAY} limit 15, in use 10, requested 6",
        "go",
    ]
    site.store.admission.end(ADA, ["a"])
    assert ask(site.store, BOB, Claim("b", gpus=1, hours=6)) == ["go"]


def test_use_of_earlier_periods_does_not_count(site: Site) -> None:
    site.use("ada", 5, MONDAY - HOUR)
    site.use("ada", 2, MIDNIGHT - HOUR)
    for resource in (DAY, WEEK, MONTH):
        limit(site.store, resource, 100)
    site.store.gpu_hours.read()
    whole = site.store.admission.uses()["vision"].whole
    assert [round(whole[resource], 6) for resource in (DAY, WEEK, MONTH)] == [1.0, 6.0, 7.0]


def test_job_that_can_never_fit_or_has_no_time_limit_is_refused(site: Site) -> None:
    limit(site.store, WEEK, 10)
    site.store.gpu_hours.read()
    assert ask(site.store, ADA, Claim("a", gpus=4, hours=3), Claim("b", gpus=1), Claim("c"), Claim("d", hours=9)) == [
        f"refuse: {WEEK}: 12 exceeds the quota of tenant vision (10); request less, or choose another account with "
        "--account",
        f"refuse: {WEEK}: the quota of tenant vision requires a time limit; set one with --time",
        "go",
        "go",
    ]


def test_hours_that_live_job_may_still_use_shrink_with_time(site: Site) -> None:
    limit(site.store, DAY, 8)
    site.store.gpu_hours.read()
    assert ask(site.store, ADA, Claim("a", gpus=2, hours=4)) == ["go"]
    site.at += 3 * HOUR
    assert ask(site.store, BOB, Claim("b", gpus=6, hours=1)) == ["go"]
    site.at += 2 * HOUR
    assert site.store.admission.uses()["vision"].whole[DAY] == 0.0


def test_use_counts_for_tenant_of_account_and_for_only_tenant_of_user(site: Site) -> None:
    site.store.tenants.put("speech", None, ["sp"])
    site.store.tenants.add_member("speech", ADA)
    for user, account in (("ada", "vis"), ("ada", "sp"), ("ada", "own"), ("bob", "own"), ("eve", "vis"), ("eve", "x")):
        site.use(user, 1, account=account)
    for member, tenant in ((WHOLE, "vision"), (EACH, "vision"), ("bob", "vision"), (WHOLE, "speech")):
        site.store.tenants.put_quota(tenant, Quota(member, MONTH, 1))
    site.store.gpu_hours.read()
    uses = site.store.admission.uses()
    assert uses["vision"].whole[MONTH] == 3.0  # ada's and eve's of its account, and bob's, who has no other tenant
    assert (uses["vision"].of_uid[ADA][MONTH], uses["vision"].of_uid[BOB][MONTH]) == (1.0, 1.0)
    assert uses["speech"].whole[MONTH] == 1.0


def test_new_jobs_wait_until_all_days_of_the_period_were_read(site: Site) -> None:
    limit(site.store, DAY, 8)
    said = f"wait: waiting for quota of tenant vision: the hub has not read all days of {DAY} from the accounting yet"
    assert ask(site.store, ADA, Claim("a", gpus=1, hours=1)) == [said]
    site.accounting.why = "connection refused"
    with pytest.raises(NoAccounting, match="connection refused"):
        site.store.gpu_hours.read()
    assert ask(site.store, ADA, Claim("a", gpus=1, hours=1), Claim("b")) == [said, "go"]
    site.accounting.why = ""
    site.store.gpu_hours.read()
    assert ask(site.store, ADA, Claim("a", gpus=1, hours=1)) == ["go"]


def test_reading_that_takes_long_is_continued_by_the_next_one(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    limit(site.store, MONTH, 10)
    monkeypatch.setattr(gpu_hours.time, "monotonic", lambda: float(len(site.accounting.asked)))  # type: ignore[attr-defined]
    site.store.gpu_hours.read(patience_s=10)
    assert len(site.accounting.asked) == 10
    assert ask(site.store, ADA, Claim("a", gpus=1, hours=1))[0].startswith("wait: ")
    site.store.gpu_hours.read()
    assert ask(site.store, ADA, Claim("a", gpus=1, hours=1)) == ["go"]


def test_figures_are_kept_during_outage_of_accounting(site: Site) -> None:
    limit(site.store, MONTH, 2)
    site.use("ada", 1)
    site.store.gpu_hours.read()
    site.accounting.why = "connection refused"
    with pytest.raises(NoAccounting):
        site.store.gpu_hours.read()
    assert ask(site.store, BOB, Claim("a", gpus=1, hours=1.5), Claim("b", gpus=1, hours=1)) == [
        f"wait: waiting for quota of tenant vision: {MONTH} limit 2, in use 1, requested 1.5",
        "go",
    ]


def test_site_without_accounting_is_reported(site: Site) -> None:
    site.accounting.is_missing = True
    with pytest.raises(NoAccounting, match="the scheduler has no accounting"):
        site.store.gpu_hours.read(MONTH)
    site.store.gpu_hours.read()
