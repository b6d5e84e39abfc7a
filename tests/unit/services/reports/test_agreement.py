"""Our reckoning beside an accounting's, job by job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace

import pytest

from ffdl_batch.domain.backend_facts import AccountedRun, AccountedUse, AccountingOutage
from ffdl_batch.domain.job.job import Token
from ffdl_batch.domain.job.spec import Resources
from ffdl_batch.domain.job.submission import Caller
from ffdl_batch.domain.job_state import JobState
from ffdl_batch.domain.metrics.usage_report import Agreement
from ffdl_batch.domain.outcome.observation import NativeId
from ffdl_batch.domain.scheduler_errors import AccountingUnreachable
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.services.refusals import Refused
from ffdl_batch.services.reports import accounting_comparison
from ffdl_batch.services.reports.accounting_comparison import find_agreement
from ffdl_batch.services.reports.usage import Period
from tests.fakes.scheduler import FakeScheduler
from tests.planted_jobs import PlantedAttempt, PlantedJob, plant
from tests.unit.services.conftest import Site

P, D, Q = JobState.PENDING, JobState.DEPLOYING, JobState.QUEUED
PROC, DONE = JobState.PROCESSING, JobState.COMPLETED
BEGIN, HOUR = 1_700_000_000.0, 3600.0


@dataclass
class Keeping(FakeScheduler):
    """A scheduler that keeps accounts; `runs` None = this site keeps none."""

    runs: dict[str, Sequence[AccountedRun]] | None = field(default_factory=dict)
    away: bool = False
    asked_for: list[dict[NativeId, Token]] = field(default_factory=list)

    def accounting_outage(self) -> AccountingOutage | None:
        return None

    def accounted_runs(self, attempts: Mapping[NativeId, Token]) -> Mapping[NativeId, Sequence[AccountedRun]] | None:
        self.asked_for.append(dict(attempts))
        if self.away:
            raise AccountingUnreachable("slurmdbd is away", 5.0)
        if self.runs is None:
            return None
        return {native: self.runs[str(native)] for native in attempts if str(native) in self.runs}

    def accounted_uses(self, since: float, until: float) -> Sequence[AccountedUse] | None:
        raise AssertionError("the uses of all users are not asked for")


@pytest.fixture
def keeping(site: Site) -> Keeping:
    scheduler = Keeping()
    site.platform.adapters.use("fake", scheduler)
    site.clock.at = BEGIN + 10 * HOUR
    return scheduler


def hour(number: int = 1, native: str = "11", end: JobState | None = DONE) -> PlantedJob:
    """One hour with two GPUs; `end` None = it goes on."""
    last = [] if end is None else [(BEGIN + HOUR, end, 1)]
    history = [(BEGIN, P, 0), (BEGIN, D, 1), (BEGIN, Q, 1), (BEGIN, PROC, 1), *last]
    ended_at = None if end is None else BEGIN + HOUR
    attempt = PlantedAttempt(native, ended_at, "000", gpu_seconds=0.0 if end is None else 2 * HOUR)
    return PlantedJob(history, (attempt,), number, resources=Resources(gpus=2.0))


def found(site: Site, tolerance_s: float = 30.0) -> Agreement:
    return find_agreement(
        site.platform.storage, site.platform.adapters, Caller(1000), Period(BEGIN, BEGIN + 10 * HOUR), tolerance_s
    )


def run(elapsed_s: float, gpus: float | None = 2.0) -> AccountedRun:
    return AccountedRun(elapsed_s, gpus, 4.0, is_over=True)


@pytest.mark.parametrize(
    ("theirs", "differs"),
    [
        ([run(3620.0)], False),
        ([run(3631.0)], True),
        ([run(3569.0)], True),
        ([run(3600.0, 1.0)], True),
        ([run(3600.0, None)], False),
        ([run(1000.0), run(2640.0)], False),  # started twice: two tolerances
        ([], True),
    ],
)
def test_agreement_lists_job_that_differs_beyond_tolerance(
    site: Site, keeping: Keeping, theirs: list[AccountedRun], differs: bool
) -> None:
    plant(site.platform.storage.store.engine, [hour()])
    keeping.runs = {"11": theirs}
    said = found(site)
    assert (said.compared, said.differing, said.unknown) == (1, int(differs), 0)
    assert [row.job for row in said.rows] == (["training-000000001"] if differs else [])
    is_counted = all(one.gpus is not None for one in theirs)
    assert said.gpus_counted == int(is_counted)
    assert said.ours_gpu_hours == pytest.approx(2.0 if is_counted else 0.0)
    assert keeping.asked_for == [{NativeId("11"): Token("training-000000001-1")}]


def test_agreement_counts_unaccounted_jobs_as_unknown_and_skips_running_jobs(site: Site, keeping: Keeping) -> None:
    plant(site.platform.storage.store.engine, [hour(), hour(2, "12", None), hour(3, "13")])
    keeping.runs = {"13": [run(3600.0)]}
    said = found(site)
    assert (said.compared, said.differing, said.unknown, said.running) == (2, 0, 1, 1)
    assert (said.ours_gpu_hours, said.theirs_gpu_hours, said.gpus_counted) == (2.0, 2.0, 1)  # of the same jobs
    assert [(row.native_ids, row.known, row.theirs_gpu_s) for row in said.rows] == [(("11",), False, None)]


def test_agreement_reports_reason_for_unknown_job(site: Site, keeping: Keeping) -> None:
    plant(site.platform.storage.store.engine, [hour(), hour(2, "12")])
    keeping.runs = {"12": [AccountedRun(0.0, None, None, is_over=False, unread="sacct printed '-1' for the seconds")]}
    said = found(site)
    assert (said.compared, said.differing, said.unknown) == (2, 0, 2)
    assert {row.native_ids[0]: row.why for row in said.rows} == {
        "11": "the accounting has nothing by this id and name",
        "12": "sacct printed '-1' for the seconds",
    }


@pytest.mark.parametrize(
    ("resources", "held_s", "theirs", "counted", "differing"),
    [
        (Resources(gpus=0.5), HOUR / 2, 0.0, 0, 0),  # the accounting does not count shares
        (Resources(gpus=0.5), HOUR / 2, 0.5, 1, 0),
        (Resources(gpus=0.5), HOUR / 2, 0.75, 1, 1),
        (Resources(gres={"shard": 3}), 0.75 * HOUR, 0.0, 0, 0),
        (Resources(gres={"shard": 3}), 0.75 * HOUR, 0.75, 1, 0),
        (Resources(gpus=1.0, gpu_type="2g.20gb"), HOUR, 1.0, 1, 0),  # it counts devices
    ],
)
def test_agreement_compares_shares_as_parts_of_a_gpu(
    site: Site, keeping: Keeping, resources: Resources, held_s: float, theirs: float, counted: int, differing: int
) -> None:
    job = hour()
    attempt = replace(job.attempts[0], gpu_seconds=held_s)
    plant(site.platform.storage.store.engine, [replace(job, resources=resources, attempts=(attempt,))])
    keeping.runs = {"11": [run(3600.0, theirs)]}
    said = found(site)
    assert (said.gpus_counted, said.differing) == (counted, differing)


def test_agreement_queries_accounting_in_batches_and_limits_rows(
    site: Site, keeping: Keeping, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accounting_comparison, "AT_ONCE", 4)
    monkeypatch.setattr(accounting_comparison, "MOST_ROWS", 3)
    plant(site.platform.storage.store.engine, [hour(number, str(number)) for number in range(1, 11)])
    said = found(site)
    assert [len(asked) for asked in keeping.asked_for] == [4, 4, 2]
    assert (said.unknown, len(said.rows)) == (10, 3)


def test_agreement_lists_backend_if_site_keeps_no_accounting(site: Site, keeping: Keeping) -> None:
    plant(site.platform.storage.store.engine, [hour()])
    keeping.runs = None
    said = found(site)
    assert (said.compared, said.backends, said.without) == (0, (), ("fake",))


def test_agreement_lists_backend_without_accounting_support(site: Site) -> None:
    site.clock.at = BEGIN + 10 * HOUR
    plant(site.platform.storage.store.engine, [hour()])
    assert found(site).without == ("fake",)


def test_agreement_raises_retryable_error_when_accounting_is_unreachable(site: Site, keeping: Keeping) -> None:
    plant(site.platform.storage.store.engine, [hour()])
    keeping.away = True
    with pytest.raises(Refused, match="the accounting of fake cannot be compared with: slurmdbd is away") as refused:
        found(site)
    assert refused.value.problem.exit_code == 75
