"""What the scaler does when something fails or is removed, and with jobs that wait for other reasons."""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path

import pytest

from ffdl_batch.domain.job.job import Change, Job
from ffdl_batch.domain.job.views import Resume
from ffdl_batch.domain.job_state import JobState
from ffdl_batch.domain.outcome.continuation import Spent
from ffdl_batch.domain.outcome.controller_events import Outcome
from ffdl_batch.domain.outcome.observation import EndCause
from ffdl_batch.domain.scheduler_errors import InvalidRequest
from ffdl_batch.runtimes.launch_request import LaunchPlan, LaunchRequest
from ffdl_batch.services.deployment.step_lease import StepLease
from ffdl_batch.services.elastic import learner_history
from ffdl_batch.services.elastic.learner_history import LearnerHistory
from ffdl_batch.services.elastic.pool_queries import replay_decisions
from ffdl_batch.services.elastic.possible_sizes import REFUSED_S
from ffdl_batch.services.elastic.size_changes import SizeChanges
from ffdl_batch.services.job_control.resume import resume_job
from ffdl_batch.services.job_control.stop import halt_job
from tests.unit.services.chains import end
from tests.unit.services.conftest import MANIFEST, Site
from tests.unit.services.pool_bench import ELASTIC, POOL, Bench, first_shrinks_for_second, last_inputs
from tests.unit.store.jobs import statements

WAITS = "waits for GPUs of pool default"


@pytest.fixture
def bench(site: Site) -> Bench:
    return Bench(site)


def fails(bench: Bench, job: Job) -> Job:
    """Its learner fails while the job is halted."""
    job = bench.site.job(job.id)
    bench.site.head(job).ends(Outcome.FAILED, error_code="C201", exit_code=1, gpu_seconds=30.0)
    return end(bench.site, job, EndCause.FAILURE)


# --------------------------------------------------------------------------- jobs that cannot use GPUs of the pool


def test_job_that_waits_for_another_job_gets_no_gpus_of_the_pool(bench: Bench) -> None:
    first = bench.arrive("first", learners=2)
    after = bench.accept("after", learners=2, batch=f", dependency: afterok:{first.id}")
    bench.turn(tick_s=2)
    other = bench.accept("other", learners=2)
    bench.turn(tick_s=11)
    assert bench.site.job(after.id).pending_reason.startswith("Dependency: ")
    assert bench.site.job(other.id).state is JobState.QUEUED
    assert bench.size(after) is None
    bench.completes(bench.site.job(first.id))
    bench.turn(tick_s=11)
    bench.turn(tick_s=2)
    assert bench.site.job(after.id).state is JobState.QUEUED


def test_pool_keeps_no_gpus_for_job_that_its_owner_lets_the_scheduler_hold(bench: Bench) -> None:
    held = bench.accept("held", batch=", hold: true")
    bench.turn(tick_s=2)
    other = bench.accept("other")
    bench.turn(tick_s=2)
    assert [bench.site.job(job.id).state for job in (held, other)] == [JobState.QUEUED] * 2
    assert bench.learners(held, other) == [4, 4]
    bench.start(other)
    bench.start(held)
    bench.turn(tick_s=61)
    assert any(bench.halts(held, other)), "8 learners do not fit into 4 GPUs"


# --------------------------------------------------------------------------------------- unfinished changes of size


@pytest.mark.parametrize("learners", [0, 2])
def test_job_halted_for_a_size_continues_when_its_pool_was_removed(bench: Bench, learners: int) -> None:
    first, second = first_shrinks_for_second(bench)
    known = bench.size(first)
    assert known is not None
    if not learners:
        store = bench.site.platform.storage.store
        lease = bench.scaler._leases["default"].named
        store.elastic.change(lease, bench.site.job(first.id), Change(), replace(known, learners=0), known)
    bench.checkpoints(first)
    bench.site.set_settings(elastic={})
    platform = bench.site.platform
    assert platform.scaler() is None
    last = platform.last_size_changes()
    assert last is not None and last.is_busy()
    assert last.step()[0] == 1
    assert not last.is_busy()
    platform.deployer().step()
    bench.site.clock.tick(61)
    platform.deployer().step()
    assert [bench.site.job(job.id).state for job in (first, second)] == [JobState.QUEUED] * 2
    assert bench.learners(first) == [learners or 4]
    assert last.step()[0] == 0


def test_scaler_of_other_pools_continues_job_of_removed_pool(bench: Bench) -> None:
    first, _ = first_shrinks_for_second(bench)
    bench.checkpoints(first)
    bench.site.platform.storage.store.end_leases_of("test")
    bench.site.set_settings(elastic={"other": POOL})
    scaler = bench.site.platform.scaler()
    assert scaler is not None
    scaler.step()
    bench.site.platform.deployer().step()
    assert (bench.site.job(first.id).state, bench.learners(first)) == (JobState.QUEUED, [2])


def test_failure_during_change_of_size_uses_retry_budget_and_job_continues(bench: Bench) -> None:
    text = f"{MANIFEST}learners: 4\nbatch: {{elastic: {ELASTIC}, retry: {{failures: 1}}}}\n"
    first = bench.site.accept("first", text)
    bench.turn(tick_s=2)
    bench.start(first)
    bench.report(first, 100.0, remaining=360_000.0)
    bench.accept("second")
    bench.turn(tick_s=2)
    assert bench.halts(first) == [True]
    halted = fails(bench, first)
    assert (halted.state, halted.spent.failures) == (JobState.HALTED, 1)
    bench.turn(tick_s=2)
    assert (bench.site.job(first.id).state, bench.learners(first)) == (JobState.QUEUED, [2])
    bench.start(first)
    failed = fails(bench, first)
    assert failed.state is JobState.FAILED, "the budget allowed one failure"


def test_failure_during_halt_by_owner_leaves_job_halted(bench: Bench) -> None:
    text = f"{MANIFEST}learners: 4\nbatch: {{elastic: {ELASTIC}, retry: {{failures: 1}}}}\n"
    job = bench.site.accept("first", text)
    bench.turn(tick_s=2)
    bench.start(job)
    platform = bench.site.platform
    halt_job(platform.storage, platform.adapters, bench.site.caller, job.id)
    assert fails(bench, job).state is JobState.HALTED
    bench.turn(tick_s=61)
    assert bench.site.job(job.id).state is JobState.HALTED


def test_failure_without_retry_budget_ends_job_during_change_of_size(bench: Bench) -> None:
    first, _ = first_shrinks_for_second(bench)
    assert fails(bench, first).state is JobState.FAILED


def test_gpu_hours_of_attempts_that_the_scaler_ended_count(bench: Bench) -> None:
    first, _ = first_shrinks_for_second(bench)
    job = bench.site.job(first.id)
    bench.site.head(job).ends(Outcome.HALTED, interruption="halt", gpu_seconds=120.0)
    assert end(bench.site, job, EndCause.SUCCESS).state is JobState.HALTED
    bench.turn(tick_s=2)
    assert bench.site.job(first.id).spent == Spent(gpu_seconds=120.0, resizes=1)


# ------------------------------------------------------------------------------------------- decisions and changes


def test_refused_size_is_tried_again_later(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    one_batch = ELASTIC.replace("min: 16, max: 256", "min: 63, max: 64")
    first = bench.site.accept("first", f"{MANIFEST}learners: 2\nbatch: {{elastic: {one_batch}}}\n")
    bench.turn(tick_s=2)
    bench.start(first)
    bench.report(first, 100.0, remaining=1e7, hint=1)
    plan = bench.site.scheduler.plan

    def refuse(_request: LaunchRequest) -> LaunchPlan:
        raise InvalidRequest("the partition has 2 nodes")

    monkeypatch.setattr(bench.site.scheduler, "plan", refuse)
    bench.turn(tick_s=61)
    monkeypatch.setattr(bench.site.scheduler, "plan", plan)
    bench.turn(tick_s=61)
    assert bench.halts(first) == [False]
    bench.turn(tick_s=REFUSED_S)
    assert bench.halts(first) == [True]


def test_waiting_job_gets_no_gpus_that_running_one_did_not_free(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    first = bench.arrive("first")
    bench.report(first, 100.0, remaining=360_000.0)
    second = bench.accept("second")
    with monkeypatch.context() as patched:
        patched.setattr(SizeChanges, "halt", lambda *_: False)  # the job has changed since it was read
        bench.turn(tick_s=2)
    assert bench.site.job(second.id).pending_reason == WAITS
    bench.turn(tick_s=61)
    assert bench.halts(first) == [True]
    assert bench.size(second) is not None


def test_job_that_is_admitted_while_it_is_put_off_is_due_at_once(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    job = bench.accept("k")
    put_off = StepLease.put_off

    def slowly(lease: StepLease, delays: object) -> object:
        if delays:
            monkeypatch.setattr(StepLease, "put_off", put_off)
            store = bench.site.platform.storage.store
            store.elastic.pause("default", 1.0)
        return put_off(lease, delays)  # type: ignore[arg-type]

    monkeypatch.setattr(StepLease, "put_off", slowly)
    bench.deployer.step()
    bench.deployer.step()
    assert bench.site.job(job.id).state is JobState.QUEUED


def test_decision_reads_jobs_that_wait_in_the_same_statements_and_not_whole(bench: Bench) -> None:
    bench.arrive("first")
    store = bench.site.platform.storage.store

    def sent_with(*waiting: str) -> list[str]:
        for key in waiting:
            bench.accept(key)
        for _ in range(2):
            bench.turn(tick_s=61)
        bench.site.clock.tick(61)
        with statements(store) as sent:
            bench.scaler.step()
        return sent

    sent_with("a")
    few, many = sent_with("b"), sent_with("c", "d", "e", "f")
    assert len(few) == len(many)
    assert sum("jobs.spec" in one for one in many) == 2, "only halted and shrinking jobs, of which there are none"


@pytest.mark.parametrize("step_s", [-3600.0, -200.0])
def test_pool_is_decided_about_after_the_clock_was_set_back(
    site: Site, monkeypatch: pytest.MonkeyPatch, step_s: float
) -> None:
    """The attempt of the first job then seems to begin in the future, and it has not reported yet."""
    bench = Bench(site, replace(POOL, min_between_s=300.0))
    first = bench.arrive("first")
    bench.accept("second")
    clock = site.clock
    monkeypatch.setattr(clock, "now", lambda: clock.monotonic() + step_s)
    bench.turn(tick_s=61)
    assert len(last_inputs(bench)["jobs"]) == 2
    bench.turn(tick_s=600)
    assert bench.halts(first) == [True]


def test_job_whose_next_attempt_cannot_be_planned_stops_no_other_job_of_its_pool(bench: Bench) -> None:
    first = bench.arrive("first", learners=2)
    Path(bench.site.platform.storage.root.job(first.id).exported).write_text("{")
    bench.restart()  # what fits on a node is not known yet
    second = bench.accept("second", learners=2)
    bench.turn(tick_s=2)
    assert bench.site.job(second.id).state is JobState.QUEUED


def test_job_that_has_almost_ended_gets_gpus_to_end(bench: Bench) -> None:
    first = bench.arrive("first")
    bench.report(first, 1e6, remaining=0.0)
    platform = bench.site.platform
    bench.turn(tick_s=61)
    halt_job(platform.storage, platform.adapters, bench.site.caller, first.id)
    bench.checkpoints(first)
    resume_job(platform.storage, platform.adapters, platform.store_checks, bench.site.caller, first.id, Resume())
    bench.turn(tick_s=2)
    bench.turn(tick_s=2)
    assert bench.site.job(first.id).state is JobState.QUEUED


# ------------------------------------------------------------------------------------------------ reports of learners


def look(bench: Bench, job: Job, history: LearnerHistory | None = None) -> LearnerHistory:
    history = history or LearnerHistory()
    store, job = bench.site.platform.storage.store, bench.site.job(job.id)
    history.look(bench.site.platform.storage.root, job, store.attempts(job.id))
    return history


def test_reports_that_cannot_be_read_stop_no_other_job(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    first = bench.arrive("first")
    bench.report(first, 100.0, remaining=360_000.0)
    second = bench.accept("second")

    def fail(path: str) -> None:
        raise OSError(errno.EIO, "Input/output error", path)

    monkeypatch.setattr(learner_history, "open_regular", fail)
    bench.turn(tick_s=2)
    assert [one["name"] for one in last_inputs(bench)["jobs"]] == [first.id, second.id]


def test_start_is_not_timed_if_the_beginning_of_the_reports_was_left_out(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = bench.arrive("first")
    for _ in range(3):
        bench.report(job, 100.0)
        bench.site.clock.tick(10)
    assert look(bench, job).first_at == {(1, 0): pytest.approx(bench.site.clock.now() - 30, abs=0.01)}
    monkeypatch.setattr(learner_history, "MOST_BYTES", 400)
    found = look(bench, job)
    assert found.first_at == {(1, 0): None} and found.times.most_gpus == 4


def test_speeds_of_earlier_attempts_are_not_used_after_resume_with_other_gpus(bench: Bench) -> None:
    first = bench.arrive("first", learners=2)
    bench.report(first, 100.0)
    platform = bench.site.platform
    halt_job(platform.storage, platform.adapters, bench.site.caller, first.id)
    bench.checkpoints(first)
    resume = Resume(gpus=2)
    resume_job(platform.storage, platform.adapters, platform.store_checks, bench.site.caller, first.id, resume)
    bench.turn(tick_s=2)
    bench.turn(tick_s=2)
    bench.start(first)
    assert look(bench, first).times.most_gpus == 0
    bench.report(first, 150.0)
    assert look(bench, first).times.most_gpus == bench.learners(first)[0] * 2


def test_report_of_attempt_with_fewer_samples_than_gpus_is_no_measurement(bench: Bench) -> None:
    job = bench.arrive("first")
    bench.report(job, 100.0)
    found = LearnerHistory()
    store = bench.site.platform.storage.store
    attempts = [replace(one, global_batch=2) for one in store.attempts(job.id)]
    found.look(bench.site.platform.storage.root, bench.site.job(job.id), attempts)
    assert found.times.most_gpus == 0


def test_files_of_earlier_attempts_are_not_looked_at_again(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    first, _ = first_shrinks_for_second(bench)
    bench.checkpoints(first)
    bench.turn(tick_s=2)
    bench.start(first)
    history = look(bench, first)
    looked: list[str] = []

    def note(path: str) -> int:
        looked.append(Path(path).parts[-3])
        return 0

    look(bench, first, history)
    monkeypatch.setattr(learner_history, "size_of", note)
    look(bench, first, history)
    assert len(looked) == 1 and history.times.most_gpus == 4


# -------------------------------------------------------------------------------------------------------- other users


def test_replay_does_not_name_jobs_of_other_users(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    platform = bench.site.platform
    job = bench.arrive("first")
    monkeypatch.setattr("ffdl_batch.elastic.policy.LEAST_SPEED", 1e300)

    def replayed(**caller: object) -> str:
        asks = replace(bench.site.caller, **caller)  # type: ignore[arg-type]
        (found,) = replay_decisions(platform.storage, platform.elastic_pools, asks, None)
        return " ".join(found.differences)

    other = bench.site.caller.uid + 1
    assert replayed().startswith(f"{job.id} got 4 GPUs")
    assert replayed(uid=other, is_admin=True).startswith(f"{job.id} got 4 GPUs")
    assert replayed(uid=other).startswith("a job got 4 GPUs")
