"""The usage report over planted jobs, on both databases."""

from __future__ import annotations

import errno
import math
import os
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from ffdl_batch.domain.incidents.incident import Incident
from ffdl_batch.domain.job.spec import BatchOptions, Resources, Role
from ffdl_batch.domain.job.submission import Caller
from ffdl_batch.domain.job_state import JobState
from ffdl_batch.domain.metrics.rates import Rates
from ffdl_batch.domain.metrics.usage import GpuUse, UsageSample, encode_sample
from ffdl_batch.domain.metrics.usage_report import Group, JobUse, Share, UsageReport, Waste
from ffdl_batch.services.refusals import Refused
from ffdl_batch.services.reports import gpu_efficiency
from ffdl_batch.services.reports.usage import Period, job_uses, report_usage
from ffdl_batch.store import usage_rows
from ffdl_batch.store.incidents import add_incidents, incident_row
from tests.planted_jobs import PlantedAttempt, PlantedJob, plant
from tests.unit.services.conftest import Site

P, D, Q = JobState.PENDING, JobState.DEPLOYING, JobState.QUEUED
DOWN, PROC, STORE = JobState.DOWNLOADING, JobState.PROCESSING, JobState.STORING
DONE, FAILED = JobState.COMPLETED, JobState.FAILED
HOUR = 3600.0
GPU2 = Resources(learners=2, cpus=4.0, gpus=1.0, gpu_type="A100")
ADA = Caller(1000)


@pytest.fixture
def begin(site: Site) -> float:
    """The beginning of the period; the clock stands ten hours later."""
    begin = 1_700_000_000.0
    site.clock.at = begin + 10 * HOUR
    return begin


def about(amount: float) -> Any:
    """The same but for what adding up loses; stands where a number does."""
    return pytest.approx(amount)


def ended(begin: float, number: int = 1, state: JobState = DONE, **values: object) -> PlantedJob:
    """Waits half an hour, downloads half an hour, processes two hours and stores one."""
    entries = [(0.0, P, 0), (0.1, D, 1), (0.2, Q, 1), (0.5, DOWN, 1), (1.0, PROC, 1), (3.0, STORE, 1), (4.0, state, 1)]
    history = [(begin + at * HOUR, which, attempt) for at, which, attempt in entries]
    attempt = PlantedAttempt("12", ended_at=begin + 4 * HOUR, gpu_seconds=7 * HOUR, outcome_code="000")
    job = PlantedJob(history, (attempt,), number, resources=GPU2)
    return replace(job, **values)  # type: ignore[arg-type]


def reported(site: Site, since: float, until: float, caller: Caller = ADA, *, all_users: bool = False) -> UsageReport:
    return report_usage(site.platform.storage, site.platform.settings, caller, Period(since, until, all_users))


def rows(site: Site, since: float, until: float) -> list[JobUse]:
    return list(job_uses(site.platform.storage, site.platform.settings, ADA, Period(since, until)))


def test_usage_report_charges_job_for_resources_it_held(site: Site, begin: float) -> None:
    plant(site.platform.storage.store.engine, [ended(begin, batch=BatchOptions(account="physics"))])
    found = reported(site, begin, begin + 10 * HOUR)
    assert (found.jobs, found.submitted, found.attempts, found.running, found.never_ran) == (1, 1, 1, 0, 0)
    assert (found.gpu_hours, found.cpu_hours) == (about(7.0), about(3.5 * 8))
    assert found.tenants == (Group("physics", 1, about(7.0), about(28.0), 0.0, 0.0),)
    assert [group.name for group in (*found.users, *found.frameworks)] == ["ada", "pytorch"]
    assert found.lost == ()
    assert found.held == (
        Waste("held while results were stored", about(2.0), 1),
        Waste("held while data were loaded", about(1.0), 1),
    )
    (use,) = rows(site, begin, begin + 10 * HOUR)
    assert (use.job, use.account, use.learners, use.gpus_per_learner, use.attempts) == (
        "training-000000001", "physics", 2, 1.0, 1,
    )  # fmt: skip
    assert (use.started_at, use.ended_at, use.queued_s) == (begin + 0.5 * HOUR, begin + 4 * HOUR, 0.5 * HOUR)


def test_usage_report_periods_add_up_to_whole(site: Site, begin: float) -> None:
    lost = ended(begin, 2, FAILED, attempts=(PlantedAttempt("1", begin + 4 * HOUR, "C201", "failure", 7 * HOUR),))
    plant(site.platform.storage.store.engine, [ended(begin), lost])
    cuts = [begin, begin + 0.7 * HOUR, begin + 2.3 * HOUR, begin + 3.9 * HOUR, begin + 10 * HOUR]
    parts = [reported(site, since, until) for since, until in pairwise(cuts)]
    whole = reported(site, cuts[0], cuts[-1])
    assert whole.lost == (Waste("the learner ended with an error (C201)", about(4.0), 1),)
    for amount in ("gpu_hours", "cpu_hours"):
        assert math.fsum(getattr(part, amount) for part in parts) == about(getattr(whole, amount))
    assert math.fsum(one.gpu_hours for part in parts for one in part.lost) == about(4.0)
    assert sum(one.count for part in parts for one in part.times) == sum(one.count for one in whole.times) == 6
    assert [part.submitted for part in parts] == [2, 0, 0, 0]


def test_usage_report_counts_running_jobs_until_now_and_waiting_jobs_as_zero(site: Site, begin: float) -> None:
    running = ended(begin, 1, history=ended(begin).history[:5], attempts=(PlantedAttempt("12"),))
    waiting = ended(begin, 2, history=ended(begin).history[:3], attempts=(PlantedAttempt("13"),))
    cancelled = ended(begin, 3, history=[(begin, P, 0), (begin, JobState.CANCELLED, 0)], attempts=())
    plant(site.platform.storage.store.engine, [running, waiting, cancelled])
    found = reported(site, begin, begin + 100 * HOUR)
    assert (found.jobs, found.running, found.never_ran) == (3, 1, 2)
    assert found.gpu_hours == about(2 * 9.5)
    assert found.lost == ()
    assert {one.kind: one.count for one in found.times} == {"queueing": 1, "download": 1, "processing": 0}


def test_usage_report_includes_only_jobs_active_in_period(site: Site, begin: float) -> None:
    resumed = [
        (begin, P, 0), (begin, D, 1), (begin, PROC, 1), (begin + HOUR, JobState.HALTED, 1),
        (begin + 8 * HOUR, P, 1, "resumed"), (begin + 8 * HOUR, D, 2), (begin + 8 * HOUR, PROC, 2),
    ]  # fmt: skip
    attempts = (PlantedAttempt("1", begin + HOUR), PlantedAttempt("2"))
    plant(site.platform.storage.store.engine, [ended(begin), ended(begin, 2, history=resumed, attempts=attempts)])
    assert [use.job for use in rows(site, begin + 3.5 * HOUR, begin + 5 * HOUR)] == ["training-000000001"]
    assert rows(site, begin + 5 * HOUR, begin + 6 * HOUR) == []
    assert [use.job for use in rows(site, begin + 9 * HOUR, begin + 10 * HOUR)] == ["training-000000002"]
    assert rows(site, begin - HOUR, begin) == []


def test_usage_report_compares_job_shapes_with_published_shares(site: Site, begin: float) -> None:
    roles = {"chief": Role(1, gpus=0.0, cpus=2.0), "worker": Role(3, gpus=2.0)}
    plant(site.platform.storage.store.engine, [
        ended(begin, 1, framework="TensorFlow"),
        ended(begin, 2, batch=BatchOptions(roles=roles), resources=replace(GPU2, learners=4), attempts=()),
        ended(begin, 3, resources=Resources(cpus=1.0), array="array-000000001", attempts=()),
        ended(begin, 4, gpus_now=4.0, attempts=()),
    ])  # fmt: skip
    found = reported(site, begin, begin + 10 * HOUR)
    assert found.by_framework[:2] == (Share("pytorch", 3, 75.0, None), Share("tensorflow", 1, 25.0, 69.3))
    assert [(one.kind, one.count) for one in found.gpus_per_learner] == [
        ("none", 1), ("1", 2), ("2", 4), ("3 or more", 2),
    ]  # fmt: skip
    assert [(one.kind, one.count, one.published) for one in found.learners_per_job] == [
        ("1", 1, 96.2), ("2", 2, None), ("3 to 4", 1, None),
    ]  # fmt: skip
    by_job = {use.job[-1]: use for use in rows(site, begin, begin + 10 * HOUR)}
    assert by_job["2"].gpu_hours == about(3.5 * 6)
    assert by_job["2"].cpu_hours == about(3.5 * (2 + 3 * 4))
    assert by_job["3"].array == "array-000000001"
    assert by_job["4"].gpu_hours == about(3.5 * 8)


def test_usage_report_applies_rates_of_gpu_type(site: Site, begin: float) -> None:
    rates = Rates("EUR", gpu_hour=1.0, cpu_hour=0.5, gpu_types={"a100": 3.0})
    site.set_settings(rates=rates)
    plant(site.platform.storage.store.engine, [ended(begin), ended(begin, 2, resources=replace(GPU2, gpu_type=""))])
    found = reported(site, begin, begin + 10 * HOUR)
    assert found.has_costs
    assert found.currency == "EUR"
    assert [use.cost for use in rows(site, begin, begin + 10 * HOUR)] == [about(35.0), about(21.0)]
    assert found.cost == about(56.0)


@pytest.mark.parametrize(
    ("resources", "gpus", "each"),
    [
        (Resources(gpus=0.5), None, 0.5),
        (Resources(gpus=0.3), 0.5, 0.3),  # rounded up to whole shares
        (Resources(gres={"shard": 3}), 0.75, 0.75),
        (Resources(gpus=1.0, gpu_type="nvidia_a100_2g.20gb"), 1.0, 1.0),
    ],
)
@pytest.mark.parametrize("is_over", [True, False])
def test_usage_report_counts_shares_as_parts_of_a_gpu(
    site: Site, begin: float, resources: Resources, gpus: float | None, each: float, is_over: bool
) -> None:
    held = resources.gpus if gpus is None else gpus
    attempt = PlantedAttempt("12", begin + 4 * HOUR, "000", gpu_seconds=3.5 * held * HOUR, gpus=gpus)
    job = ended(begin, resources=resources, attempts=(attempt,))
    if not is_over:
        site.clock.at = begin + 4 * HOUR
        job = replace(job, history=job.history[:5], attempts=(PlantedAttempt("12", gpus=gpus),))
    plant(site.platform.storage.store.engine, [job])
    site.set_settings(rates=Rates("EUR", gpu_hour=1.0, gpu_types={"nvidia_a100_2g.20gb": 0.4}))
    part = 2 / 7 if resources.gpu_type else 1.0
    price = 0.4 if resources.gpu_type else held
    (use,) = rows(site, begin, begin + 10 * HOUR)
    assert (use.gpu_hours, use.cost, use.gpus_per_learner) == (
        about(3.5 * held * part),
        about(3.5 * price),
        about(each),
    )


def test_usage_report_applies_parts_of_gpu_types_in_settings(site: Site, begin: float) -> None:
    site.set_settings(rates=Rates(gpu_parts={"Shared": 0.25}))
    attempt = PlantedAttempt("12", begin + 4 * HOUR, "000", gpu_seconds=3.5 * HOUR)
    job = ended(begin, resources=Resources(gpus=1.0, gpu_type="shared"), attempts=(attempt,))
    plant(site.platform.storage.store.engine, [job])
    found = reported(site, begin, begin + 10 * HOUR)
    assert (found.gpu_hours, found.efficiency.gpu_hours) == (about(3.5 / 4), about(3.5 / 4))


@pytest.mark.parametrize(
    ("state", "attempt", "cause"),
    [
        (FAILED, {"outcome_code": "C201", "interruption": "failure"}, "the learner ended with an error (C201)"),
        (FAILED, {"outcome_code": "S110", "interruption": "node_failure"}, "node or controller failed"),
        (FAILED, {"outcome_code": "C203", "interruption": "timeout"}, "time limit"),
        (JobState.HALTED, {"outcome_code": "000", "interruption": "halt"}, "halted by its owner"),
        (JobState.CANCELLED, {"outcome_code": "000"}, "cancelled by its owner"),
        (FAILED, {"outcome_code": "X999"}, "X999"),
    ],
)
def test_usage_report_names_cause_of_lost_work(
    site: Site, begin: float, state: JobState, attempt: dict[str, Any], cause: str
) -> None:
    planted = PlantedAttempt("1", begin + 4 * HOUR, gpu_seconds=7 * HOUR, saved_at=begin + 2.5 * HOUR, **attempt)
    plant(site.platform.storage.store.engine, [ended(begin, 1, state, attempts=(planted,))])
    assert reported(site, begin, begin + 10 * HOUR).lost == (Waste(cause, about(1.0), 1),)


def test_usage_report_names_cause_of_lost_work_by_incident_nearest_to_end_of_run(site: Site, begin: float) -> None:
    engine = site.platform.storage.store.engine
    plant(engine, [ended(begin, 1, FAILED)])
    seen = (("end-0", "node.clock", 1), ("end-1", "node.gpu", 4), ("hang-0", "node.disk", 4))
    found = [Incident("training-000000001", 1, episode, kind, begin + at * HOUR) for episode, kind, at in seen]
    with engine.begin() as connection:
        add_incidents(connection, [incident_row(one, begin + 5 * HOUR) for one in found])
    (lost,) = reported(site, begin, begin + 10 * HOUR).lost
    assert lost.cause == "a GPU or its links failed (node.gpu)"


def test_usage_report_shows_other_users_only_to_administrators(site: Site, begin: float) -> None:
    plant(site.platform.storage.store.engine, [ended(begin), ended(begin, 2, uid=1001, user="bob")])
    assert [group.name for group in reported(site, begin, begin + 10 * HOUR).users] == ["ada"]
    everybody = reported(site, begin, begin + 10 * HOUR, Caller(0, is_admin=True), all_users=True)
    assert {group.name for group in everybody.users} == {"ada", "bob"}
    with pytest.raises(Refused, match="only administrators"):
        reported(site, begin, begin + 10 * HOUR, all_users=True)


def test_usage_report_rejects_empty_period(site: Site, begin: float) -> None:
    with pytest.raises(Refused, match="the period is empty"):
        reported(site, begin, begin)


def test_job_uses_pages_through_all_jobs_without_holding_connection(
    site: Site, begin: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(usage_rows, "PAGE", 3)
    plant(site.platform.storage.store.engine, [ended(begin, number) for number in range(1, 11)])
    seen = []
    for use in job_uses(site.platform.storage, site.platform.settings, ADA, Period(begin, begin + 10 * HOUR)):
        site.platform.storage.store.count_live()  # would wait for ever for the one connection of SQLite
        seen.append(use.job)
    assert seen == [f"training-{number:09}" for number in range(1, 11)]


def sampled(site: Site, number: int, samples: list[tuple[float, list[float | None]]], node: int = 0) -> Path:
    """What a node controller would have written."""
    directory = Path(site.platform.storage.root.job(f"training-{number:09}").attempt(1).metrics)
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"usage-{node}.jsonl"
    with path.open("a") as file:
        for at, shares in samples:
            gpus = tuple(GpuUse(str(index), 1, used) for index, used in enumerate(shares))
            file.write(encode_sample(UsageSample(at, "n1", gpus=gpus)))
    return path


def steady(begin: float, seconds: float, shares: list[float | None]) -> list[tuple[float, list[float | None]]]:
    return [(begin + at, shares) for at in range(0, int(seconds) + 1, 10)]


def test_efficiency_weights_utilisation_by_gpu_time_and_reports_coverage(site: Site, begin: float) -> None:
    plant(site.platform.storage.store.engine, [ended(begin)])
    sampled(site, 1, steady(begin + HOUR, HOUR, [0.5, 0.0]))
    seen = reported(site, begin, begin + 10 * HOUR).efficiency
    assert (seen.gpu_hours, seen.sampled_gpu_hours) == (about(7.0), about(2.0))
    assert seen.utilisation == about(0.25)
    assert seen.covered == about(2 / 7)
    assert seen.idle_gpu_hours == about(1.0)


def test_efficiency_ignores_samples_outside_period_and_in_gaps(site: Site, begin: float) -> None:
    plant(site.platform.storage.store.engine, [ended(begin)])
    sampled(site, 1, [*steady(begin + HOUR, 600, [1.0]), (begin + 2 * HOUR, [1.0])])
    seen = reported(site, begin + HOUR + 300, begin + 10 * HOUR).efficiency
    assert seen.sampled_gpu_hours * HOUR == about(300 + 3 * 10)


def test_efficiency_caps_sampled_gpu_time_despite_malformed_samples(site: Site, begin: float) -> None:
    plant(site.platform.storage.store.engine, [ended(begin)])
    path = sampled(site, 1, steady(begin + 0.5 * HOUR, 3.5 * HOUR, [9.0] * 50))
    path.write_text(path.read_text() + '[]\n{"at": "x"}\n{"at": NaN, "gpus": [{"used": 1}]}\n{"at": 1e400}\nnonsense\n')
    os.truncate(path, 2**40)
    seen = reported(site, begin, begin + 10 * HOUR).efficiency
    assert seen.sampled_gpu_hours == about(7.0)
    assert (seen.utilisation, seen.covered) == (about(1.0), about(1.0))


def test_efficiency_counts_jobs_as_unread_when_time_runs_out(
    site: Site, begin: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_efficiency, "PATIENCE_S", -1.0)
    plant(site.platform.storage.store.engine, [ended(begin), ended(begin, 2)])
    seen = reported(site, begin, begin + 10 * HOUR).efficiency
    assert (seen.unread, seen.utilisation) == (2, None)


def test_efficiency_counts_job_as_unread_if_sample_file_fails_to_open(
    site: Site, begin: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    def open_broken(path: str) -> BinaryIO:
        raise OSError(errno.EIO, "broken", path)

    monkeypatch.setattr(gpu_efficiency, "open_regular", open_broken)
    plant(site.platform.storage.store.engine, [ended(begin), ended(begin, 2)])
    sampled(site, 1, steady(begin + HOUR, 60, [1.0]))
    assert reported(site, begin, begin + 10 * HOUR).efficiency.unread == 1
