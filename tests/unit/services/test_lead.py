"""How early learners are warned, and what a chain may use up."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ffdl_batch.domain.job.job import AttemptEnd
from ffdl_batch.domain.job.learner_layout import members_of, parts_of
from ffdl_batch.domain.job.spec import (
    BatchOptions,
    DataStore,
    Element,
    Framework,
    JobSpec,
    Placement,
    Resources,
    Restart,
    Retry,
    Role,
    Staging,
    StoreType,
)
from ffdl_batch.domain.job.spec import Checkpoint as Asked
from ffdl_batch.domain.job_state import Cause, JobState
from ffdl_batch.domain.launch.limits import Lead, LeadFrom
from ffdl_batch.domain.outcome.continuation import Budget, Checkpoint, Spent
from ffdl_batch.services.data.staging_attempt import CPUS, MEMORY_BYTES, for_staging, stages_ahead
from ffdl_batch.services.deployment.attempt_planning import plan_attempt
from ffdl_batch.services.outcome.retry_budget import MAX_LEAD_S, budget_of, lead_of
from tests.unit.services.conftest import MANIFEST, Site


def spec(time_s: int | None = None, signal: str = "", **asked: object) -> JobSpec:
    checkpoint = Asked(**asked)  # type: ignore[arg-type]
    return JobSpec(
        "x", Framework("a", "b", "c"), batch=BatchOptions(time_s=time_s, signal=signal, checkpoint=checkpoint)
    )


def took(seconds: float | None, *, confirmed: bool = True, answered: bool = True) -> Checkpoint:
    return Checkpoint(asked=True, confirmed=confirmed, answered=answered, took_s=seconds)


@pytest.mark.parametrize(
    ("job", "measured", "lead", "origin"),
    [
        (spec(), (), 70, "default"),
        (spec(grace_s=5), (), 15, "default"),
        (spec(lead_s=33), (took(100.0),), 33, "manifest"),
        (spec(lead_s=0), (took(100.0),), None, ""),
        (spec(signal="USR1@120"), (), None, ""),
        (spec(), (took(4.0),), 16, "measured"),
        (spec(), (took(4.1), took(20.5), took(3.0)), 41, "measured"),
        (spec(), (took(30.0, confirmed=False),), 55, "measured"),
        (spec(), (took(500.0, confirmed=False, answered=False),), 70, "default"),
        (spec(), (took(500.0, confirmed=False, answered=False), took(2.0)), 13, "measured"),
        (spec(), (took(None), Checkpoint()), 70, "default"),
        (spec(time_s=60), (), 30, "time limit"),
        (spec(time_s=61, lead_s=45), (), 30, "time limit"),
        (spec(time_s=90, lead_s=45), (), 45, "manifest"),
        (spec(time_s=1), (), 1, "time limit"),
        (spec(time_s=86400), (took(4.0),), 16, "measured"),
        (spec(lead_s=10**6), (), MAX_LEAD_S, "manifest"),
    ],
)
def test_lead_of_returns_seconds_and_origin(
    job: JobSpec, measured: tuple[Checkpoint, ...], lead: int | None, origin: str
) -> None:
    assert lead_of(job, measured) == Lead(lead, LeadFrom(origin))


@given(st.none() | st.integers(1, 10**7), st.lists(st.floats(0, 1e6)), st.none() | st.integers(1, 10**7))
def test_lead_of_stays_within_maximum_and_half_of_time_limit(
    time_s: int | None, measured: list[float], asked: int | None
) -> None:
    lead = lead_of(spec(time_s=time_s, lead_s=asked), [took(seconds) for seconds in measured]).seconds
    assert lead is not None and 1 <= lead <= MAX_LEAD_S
    assert time_s is None or lead <= max(1, time_s / 2)


@given(st.lists(st.floats(0, 1e4), min_size=1), st.floats(0, 1e4))
def test_lead_of_never_shortens_after_slower_checkpoint(measured: list[float], slower: float) -> None:
    before = lead_of(spec(), [took(seconds) for seconds in measured]).seconds
    after = lead_of(spec(), [took(seconds) for seconds in (*measured, slower)]).seconds
    assert before is not None and after is not None and after >= before


def test_plan_attempt_uses_time_and_file_of_checkpoint_confirmed_last(site: Site) -> None:
    job = site.deployed()
    first = site.scheduler.planned[-1]
    assert (first.lead_s, first.lead_from, first.confirmed) == (70, LeadFrom.DEFAULT, "")
    for checkpoint in (replace(took(8.0), newest="step-4"), Checkpoint(asked=True, saved_at=9.0, newest="step-205")):
        halted = site.move(job, JobState.HALTED, attempt_end=AttemptEnd("halt", checkpoint))
        resumed = site.move(halted, JobState.PENDING, cause=Cause.RESUMED)
        job = replace(resumed, attempt=resumed.attempt + 1)
        plan_attempt(site.platform.storage, site.platform.adapters, site.platform.node_exclusion, job)
        later = site.scheduler.planned[-1]
        assert (later.lead_s, later.lead_from, later.confirmed) == (22, LeadFrom.MEASURED, "step-4")


@pytest.mark.parametrize(
    ("retry", "budget"),
    [
        (Retry(), Budget()),
        (Retry(timeouts=0), Budget(timeouts=0, saved_is_enough=True)),
        (Retry(timeouts=7), Budget(timeouts=7, saved_is_enough=True)),
        (Retry(preemptions=1, node_failures=2, failures=3), Budget(preemptions=1, node_failures=2, failures=3)),
        (Retry(gpu_hours=1.5), Budget(gpu_seconds=5400.0)),
        (Retry(gpu_hours=0.0), Budget(gpu_seconds=0.0)),
    ],
)
def test_budget_of_converts_manifest_retry_settings(retry: Retry, budget: Budget) -> None:
    assert budget_of(retry) == budget


def test_first_plan_uses_lead_and_retry_budget_of_manifest(site: Site) -> None:
    extra = "batch: {time: 2h, checkpoint: {grace_s: 20}, retry: {timeouts: 4, gpu_hours: 2}}\n"
    site.accept("k", MANIFEST + extra)
    request = site.scheduler.planned[-1]
    assert (request.lead_s, request.spent, request.carry) == (30, Spent(), "")
    assert request.budget == Budget(timeouts=4, gpu_seconds=7200.0, saved_is_enough=True)


STORE = DataStore("c", StoreType.MOUNT_COS, StoreType.MOUNT_COS, "in/set", "out", {"auth_url": "https://s3"})
BATCH = BatchOptions(
    partition="gpu", account="vision", time_s=3600, nodelist="n1,n2", exclude="n9", placement=Placement.PACK,
    restart=Restart.LEARNER, staging=Staging.AHEAD, env={"PS_HOSTS_COUNT": "2", "HTTPS_PROXY": "http://proxy"},
    slurm_args=("--exclusive", "--gpu-bind=closest", "--wckey=w"),
)  # fmt: skip
SPEC = JobSpec(
    "x",
    Framework("horovod", "i", "mpirun -np 4 train; PS_HOSTS_COUNT=2"),
    resources=Resources(4, 16.0, 2.0, "a100", 64 * 1000**3, gres={"npu": 1}),
    data_stores=(STORE,),
    batch=BATCH,
)


@pytest.mark.parametrize(
    ("spec", "ahead"),
    [
        (SPEC, True),
        (replace(SPEC, batch=replace(BATCH, staging=Staging.INLINE)), False),
        (replace(SPEC, data_stores=()), False),
        (replace(SPEC, element=Element("array-0", "x", 0, 2, 0, 1)), False),
        (replace(SPEC, data_stores=(replace(STORE, training_data=""),)), False),
        (replace(SPEC, data_stores=(replace(STORE, effective_type=StoreType.DIRECTORY),)), False),
    ],
)
def test_staging_ahead_requires_option_single_job_and_remote_training_data(spec: JobSpec, ahead: bool) -> None:
    assert stages_ahead(spec, ()) is ahead


def test_staging_ahead_requests_one_small_learner_without_gpus() -> None:
    for spec in (SPEC, replace(SPEC, batch=replace(BATCH, roles={"chief": Role(2, gpus=1.0), "ps": Role(2)}))):
        small = for_staging(spec)
        (part,), (_,) = parts_of(small), members_of(small)
        assert (part.gpus, small.resources) == (0.0, Resources(1, CPUS, memory_bytes=MEMORY_BYTES))
        kept = (small.batch.partition, small.batch.account, small.batch.time_s, small.batch.exclude)
        assert (kept, small.batch.nodelist) == (("gpu", "vision", 3600, "n9"), "")
        assert small.batch.slurm_args == ("--wckey=w",)
        assert small.batch.env == {"HTTPS_PROXY": "http://proxy"}
    less = replace(SPEC, resources=Resources(cpus=1.0, memory_bytes=10**9))
    assert for_staging(less).resources == Resources(cpus=1.0, memory_bytes=10**9)
