"""The scaler of a pool: which jobs it admits and changes, what survives a crash, and who wins against the owner."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ffdl_batch.cli.render.job_list import place_or_reason
from ffdl_batch.client.api import is_ended
from ffdl_batch.domain.job.views import Resume
from ffdl_batch.domain.job_state import Cause, JobState
from ffdl_batch.domain.outcome.continuation import Spent
from ffdl_batch.services.job_control.resume import resume_job
from ffdl_batch.services.job_control.stop import cancel_job, halt_job
from ffdl_batch.services.queries.attach_plan import plan_attach
from ffdl_batch.services.queries.jobs import get_events, list_jobs
from ffdl_batch.services.refusals import Refused
from tests.unit.services.conftest import Site
from tests.unit.services.pool_bench import POOL, Bench, first_shrinks_for_second


@pytest.fixture
def bench(site: Site) -> Bench:
    return Bench(site)


def test_job_waits_until_scaler_admits_it(bench: Bench) -> None:
    job = bench.accept("k")
    bench.deployer.step()
    assert bench.site.job(job.id).pending_reason == "waits for GPUs of pool default"
    assert bench.site.scheduler.submitted == []
    bench.turn(tick_s=2)
    assert (bench.site.job(job.id).state, bench.learners(job)) == (JobState.QUEUED, [4])
    assert bench.site.job(job.id).pending_reason == ""


def test_running_job_shrinks_for_second_and_second_grows_after_its_end(bench: Bench) -> None:
    first, second = first_shrinks_for_second(bench)
    assert not bench.scaler.is_busy()
    [request] = [one for one in bench.site.platform.storage.store.history(first.id) if one.cause == Cause.RESIZED]
    assert request.message.startswith("the scaler of pool default halts the job to continue with ")
    halted = bench.checkpoints(first)
    assert halted.state is JobState.HALTED
    assert bench.scaler.is_busy(), "a daemon without a live job must not end now"
    bench.turn(tick_s=2)
    sizes = bench.learners(first, second)
    assert sum(sizes) <= 4 and min(sizes) >= 1
    assert [bench.site.job(job.id).state for job in (first, second)] == [JobState.QUEUED] * 2
    bench.start(first)
    bench.start(second)
    bench.report(second, 50.0, remaining=360_000.0)
    bench.completes(bench.site.job(first.id))
    bench.turn(tick_s=2)
    assert bench.halts(second) == [True], "the GPUs of the first job are free"
    bench.checkpoints(second)
    bench.turn(tick_s=2)
    assert bench.learners(second) == [4]
    attempts = bench.site.platform.storage.store.attempts(second.id)
    assert [one.learners for one in attempts] == [sizes[1], 4]
    tokens = [token for _, token in bench.site.scheduler.submitted]
    assert len(tokens) == len(set(tokens)) == 4, "each attempt is submitted once"


def test_job_that_scaler_has_halted_is_shown_as_continuing(bench: Bench) -> None:
    first, _ = first_shrinks_for_second(bench)
    job, site = bench.checkpoints(first), bench.site
    platform = site.platform
    text = "the scaler of pool default halted it to change its size; it continues by itself"
    view = site.view(job)
    assert (view.state, view.message, view.cure, view.continued_by) == ("HALTED", text, "", "default")
    assert not is_ended(view), "commands that wait for its end go on"
    listed = {one.id: one for one in list_jobs(platform.storage, site.caller)}
    assert (listed[job.id].message, place_or_reason(listed[job.id])) == (text, f"({text})")
    why = platform.explainer.explain_job(site.caller, job.id)
    assert (why.sentence, why.actions) == (f"it is not waiting: {text}", ())
    with pytest.raises(Refused) as refused:
        plan_attach(platform.storage, platform.adapters, site.caller, job.id, 1)
    assert refused.value.problem.cure == text
    assert get_events(platform.storage.store, site.caller, job.id, 0)[1] is False
    bench.turn(tick_s=2)
    assert site.view(job).continued_by == ""


def test_job_that_its_owner_has_halted_is_shown_as_halted(bench: Bench) -> None:
    first, _ = first_shrinks_for_second(bench)
    site = bench.site
    halt_job(site.platform.storage, site.platform.adapters, site.caller, first.id)
    job = bench.checkpoints(first)
    view = site.view(job)
    assert (view.state, view.continued_by, is_ended(view)) == ("HALTED", "", True)
    why = site.platform.explainer.explain_job(site.caller, job.id)
    assert (why.sentence, why.actions) == ("it is not waiting: it was halted", (f"ffdl resume {job.id}",))
    assert get_events(site.platform.storage.store, site.caller, job.id, 0)[1] is True


def test_job_without_reports_grows_to_the_size_of_its_owner(bench: Bench) -> None:
    first, second = first_shrinks_for_second(bench)
    bench.checkpoints(first)
    bench.turn(tick_s=2)
    bench.start(first)
    bench.start(second)
    bench.completes(bench.site.job(first.id))
    bench.turn(tick_s=61)
    assert bench.halts(second) == [True]
    size = bench.size(second)
    assert size is not None and size.learners == 4


def test_change_of_size_keeps_retry_budget_and_is_in_history(bench: Bench) -> None:
    first, _ = first_shrinks_for_second(bench)
    bench.site.move(bench.site.job(first.id), columns={"spent": Spent(timeouts=3)})
    bench.checkpoints(first)
    bench.turn(tick_s=2)
    assert replace(bench.site.job(first.id).spent, gpu_seconds=0.0) == Spent(timeouts=3, resizes=1)
    (entry,) = [one for one in bench.site.platform.storage.store.history(first.id) if one.cause == "resumed"]
    assert entry.message.startswith("the scaler of pool default gave it ")


@pytest.mark.parametrize("step", ["decided", "halted", "resumed", "admitted"])
def test_daemon_killed_at_step_of_change_continues_it_once(bench: Bench, step: str) -> None:
    first = bench.arrive("first")
    bench.report(first, 100.0, remaining=360_000.0)
    second = bench.accept("second")

    def halt(_turn: int) -> None:
        if bench.halts(first) == [True] and bench.site.job(first.id).state is JobState.PROCESSING:
            bench.checkpoints(first)

    assert bench.turns_killed_at(step, halt)
    assert [bench.site.job(job.id).state for job in (first, second)] == [JobState.QUEUED] * 2
    assert sum(bench.learners(first, second)) <= 4
    tokens = [token for _, token in bench.site.scheduler.submitted]
    assert sorted(tokens) == sorted({f"{first.id}-1", f"{first.id}-2", f"{second.id}-1"})


def test_halt_by_owner_wins_over_change_of_size(bench: Bench) -> None:
    first, _ = first_shrinks_for_second(bench)
    platform = bench.site.platform
    halt_job(platform.storage, platform.adapters, bench.site.caller, first.id)
    bench.checkpoints(first)
    bench.turn(tick_s=2)
    assert bench.site.job(first.id).state is JobState.HALTED


def test_cancelled_job_is_not_resumed_with_another_size(bench: Bench) -> None:
    first, _ = first_shrinks_for_second(bench)
    bench.checkpoints(first)
    platform = bench.site.platform
    cancel_job(platform.storage, platform.adapters, bench.site.caller, first.id)
    bench.turn(tick_s=2)
    assert bench.site.job(first.id).state is JobState.CANCELLED
    assert bench.size(first) is None


def test_halt_by_owner_between_attempts_stays(bench: Bench) -> None:
    first, _ = first_shrinks_for_second(bench)
    bench.checkpoints(first)
    platform = bench.site.platform
    halt_job(platform.storage, platform.adapters, bench.site.caller, first.id)
    bench.turn(tick_s=2)
    assert bench.site.job(first.id).state is JobState.HALTED
    resume_job(
        platform.storage, platform.adapters, platform.store_checks, bench.site.caller, first.id, Resume(learners=4)
    )
    bench.turn(tick_s=61)
    assert bench.learners(first)[0] < 4, "the pool has no room for 4, whatever the owner asks for"


def test_job_that_its_owner_resumes_before_the_scaler_does_gets_a_size(bench: Bench) -> None:
    first, second = first_shrinks_for_second(bench)
    bench.checkpoints(first)
    platform = bench.site.platform
    resume_job(platform.storage, platform.adapters, platform.store_checks, bench.site.caller, first.id, Resume())
    bench.turn(tick_s=61)
    assert [bench.site.job(job.id).state for job in (first, second)] == [JobState.QUEUED] * 2
    assert sum(bench.learners(first, second)) <= 4


def test_jobs_of_other_backend_or_partition_run_as_submitted(site: Site) -> None:
    for number, pool in enumerate((replace(POOL, backend="other"), replace(POOL, partition="gpu"))):
        bench = Bench(site, pool)
        job = bench.accept(f"k{number}")
        bench.deployer.step()
        assert site.job(job.id).state is JobState.QUEUED
        assert bench.size(job) is None
    job = bench.accept("k3", batch=", partition: gpu")
    bench.deployer.step()
    assert site.job(job.id).state is JobState.PENDING
