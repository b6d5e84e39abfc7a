"""Which size the scaler gives to a job: hints, holds, measured costs, and sizes that cannot be planned."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

import pytest

from ffdl_batch.attempt.reader import open_regular
from ffdl_batch.domain.job_state import JobState
from ffdl_batch.domain.launch.launch_file import Pod, encode
from ffdl_batch.domain.scheduler_errors import InvalidRequest, SchedulerUnreachable
from ffdl_batch.runtimes.launch_request import LaunchPlan, LaunchRequest
from ffdl_batch.services.elastic.pool_queries import explain_size
from ffdl_batch.services.outcome.attempt_records import read_launch
from ffdl_batch.store import SizeState
from tests.unit.services.conftest import MANIFEST, Site
from tests.unit.services.pool_bench import ELASTIC, POOL, Bench, first_shrinks_for_second, last_inputs


@pytest.fixture
def bench(site: Site) -> Bench:
    return Bench(site)


def test_hold_keeps_size_and_second_job_waits(bench: Bench) -> None:
    first = bench.arrive("first")
    bench.report(first, 100.0, remaining=360_000.0, hint=0)
    second = bench.accept("second")
    bench.turn(tick_s=2)
    bench.turn(tick_s=61)
    assert bench.halts(first) == [False]
    assert bench.site.job(second.id).pending_reason == "waits for GPUs of pool default"


@pytest.mark.parametrize(("learners", "hint", "most"), [(1, 1, 2), (2, -1, 1)])
def test_hint_limits_learners(bench: Bench, learners: int, hint: int, most: int) -> None:
    job = bench.arrive("first", learners=learners)
    assert bench.learners(job) == [learners], "nothing is known about more GPUs than it was submitted with"
    bench.report(job, 100.0, remaining=1e7, hint=hint)
    bench.turn(tick_s=61)
    bench.checkpoints(job)
    bench.turn(tick_s=2)
    assert bench.learners(job) == [most]
    found = explain_size(bench.site.platform.storage, bench.site.platform.elastic_pools, bench.site.caller, job.id)
    printed = f"the job printed ffdl-scale: {hint:+d} with {learners} learner{'s' if learners > 1 else ''}"
    assert found.limit == f"at most {most} learner{'s' if most > 1 else ''}, because {printed}"


@pytest.mark.parametrize("queue_s", [0.0, 1000.0])
def test_attempt_trains_with_its_size_for_minimum_time(site: Site, queue_s: float) -> None:
    bench = Bench(site, replace(POOL, min_between_s=300.0))
    first = bench.accept("first")
    bench.turn(tick_s=2)
    bench.site.clock.tick(queue_s)
    bench.start(first)
    bench.report(first, 100.0, remaining=360_000.0)
    bench.accept("second")
    bench.turn(tick_s=61)
    assert bench.halts(first) == [False]
    bench.turn(tick_s=300)
    assert bench.halts(first) == [True]


def test_running_jobs_shrink_in_pool_that_is_too_small_for_them(bench: Bench) -> None:
    jobs = [bench.arrive("first"), bench.arrive("other", batch=", partition: other")]
    assert [job.state for job in jobs] == [JobState.PROCESSING] * 2
    bench.pool = replace(POOL, gpus=2, min_between_s=1e4)
    bench.restart()
    bench.report(jobs[0], 100.0, remaining=1e6, hint=0)
    bench.turn(tick_s=61)
    assert bench.halts(jobs[0]) == [True], "neither its hint nor its age count"


def test_job_whose_halt_left_no_checkpoint_keeps_its_size(bench: Bench) -> None:
    first, second = first_shrinks_for_second(bench)
    bench.checkpoints(first, confirmed=False)
    bench.turn(tick_s=2)
    bench.start(first)
    bench.start(second)
    bench.completes(bench.site.job(second.id))
    bench.turn(tick_s=61)
    assert bench.halts(first) == [False]
    decision = last_inputs(bench)
    assert [one["hold"] for one in decision["jobs"]] == ["its last halt left no checkpoint"]


def test_job_whose_checkpoints_go_with_its_pods_keeps_its_size(bench: Bench) -> None:
    first = bench.arrive("first")
    attempt = bench.site.attempt(first)
    launch = read_launch(attempt)
    assert launch is not None
    Path(attempt.launch).write_text(encode(replace(launch, pod=Pod("/ffdl-pod", apart=True))))
    bench.report(first, 100.0, remaining=360_000.0)
    bench.accept("second")
    bench.turn(tick_s=61)
    assert bench.halts(first) == [False]
    decision = last_inputs(bench)
    assert [one["hold"][:41] for one in decision["jobs"]] == ["a halt would delete its checkpoints with ", ""]


def test_job_that_pool_is_too_small_for_waits_with_a_reason(site: Site) -> None:
    bench = Bench(site, replace(POOL, gpus=2))
    text = ELASTIC.replace("min_learners: 1", "min_learners: 3")
    job = site.accept("k", f"{MANIFEST}learners: 4\nbatch: {{elastic: {text}}}\n")
    bench.turn(tick_s=2)
    bench.turn(tick_s=61)
    waits = site.job(job.id)
    reason = "waits for GPUs of pool default, which has 2; it needs 3"
    assert (waits.state, waits.pending_reason) == (JobState.PENDING, reason)


def test_restart_cost_is_time_from_request_to_first_report_and_counts_for_other_jobs(bench: Bench) -> None:
    first, _ = first_shrinks_for_second(bench)
    size = bench.size(first)
    assert size is not None and size.state is SizeState.HALTING
    bench.checkpoints(first)
    bench.turn(tick_s=2)
    bench.start(first)
    bench.site.clock.tick(20)
    bench.report(first, 40.0)
    third = bench.accept("third")
    bench.turn(tick_s=61)
    noted = bench.size(first)
    assert noted is not None and noted.restart_s is not None
    assert noted.restart_s == pytest.approx(bench.site.clock.now() - 61 - size.requested_at, abs=0.01)
    last = last_inputs(bench)
    costs = {one["name"]: one["restart_s"] for one in last["jobs"]}
    assert costs == {first.id: noted.restart_s, third.id: noted.restart_s}


def test_size_that_cannot_be_planned_is_not_asked_for_again(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    first = bench.arrive("first", learners=2)
    bench.report(first, 100.0, remaining=1e7)
    plan = bench.site.scheduler.plan

    def refuse(request: LaunchRequest) -> LaunchPlan:
        if request.spec.resources.learners == 4:
            raise InvalidRequest("the partition has 3 nodes")
        return plan(request)

    monkeypatch.setattr(bench.site.scheduler, "plan", refuse)
    bench.turn(tick_s=61)
    bench.turn(tick_s=2)
    found = bench.size(first)
    assert found is not None and (found.state, found.learners) == (SizeState.HALTING, 3)


@pytest.mark.parametrize(
    ("on_node", "gpus", "learners"),
    [(1, 4, 4), (2, 4, 4), (3, 4, 3), (4, 4, 4), (1, 3, 3), (2, 3, 2), (4, 3, 2)],
)
def test_size_that_leaves_unusable_gpus_on_its_nodes_is_not_chosen(
    site: Site, monkeypatch: pytest.MonkeyPatch, on_node: int, gpus: int, learners: int
) -> None:
    """On a node with four GPUs, a job with three leaves one unused; two jobs with two fit."""
    bench = Bench(site, replace(POOL, gpus=gpus))
    first = bench.arrive("first", learners=2)
    bench.report(first, 100.0, remaining=1e7)
    plan = bench.site.scheduler.plan

    def spread(request: LaunchRequest) -> LaunchPlan:
        planned, nodes = plan(request), -(-request.spec.resources.learners // on_node)
        return replace(planned, launch=replace(planned.launch, nodes=nodes))

    monkeypatch.setattr(bench.site.scheduler, "plan", spread)
    bench.restart()  # what fits on a node is not known yet
    bench.turn(tick_s=61)
    found = bench.size(first)
    assert found is not None and (found.state, found.learners) == (SizeState.HALTING, learners)


def test_job_keeps_its_size_while_scheduler_does_not_answer(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    first = bench.arrive("first", learners=2)
    bench.report(first, 100.0, remaining=1e7)
    plan = bench.site.scheduler.plan

    def fail(_request: LaunchRequest) -> LaunchPlan:
        raise SchedulerUnreachable("slurmctld does not answer")

    monkeypatch.setattr(bench.site.scheduler, "plan", fail)
    bench.turn(tick_s=61)
    assert bench.halts(first) == [False]
    monkeypatch.setattr(bench.site.scheduler, "plan", plan)
    bench.turn(tick_s=61)
    assert bench.halts(first) == [True]


def test_reports_are_read_once_and_only_new_ones(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    first = bench.arrive("first")
    bench.report(first, 100.0, remaining=1e6)
    opened: list[str] = []

    def read(path: str) -> BinaryIO:
        opened.append(path)
        return open_regular(path)

    monkeypatch.setattr("ffdl_batch.services.elastic.learner_history.open_regular", read)
    bench.turn(tick_s=61)
    bench.turn(tick_s=61)
    assert len(opened) == 1, "the file has not grown"
    assert bench.scaler._histories[first.id].remaining == 1e6
    bench.report(first, 100.0, remaining=9e5, hint=0)
    bench.turn(tick_s=61)
    assert (len(opened), bench.scaler._histories[first.id].remaining) == (2, 9e5)


@pytest.mark.parametrize(("objective", "shares"), [("fair", True), ("completion", False), ("throughput", True)])
def test_objective_of_pool_decides_whether_second_job_waits(site: Site, objective: str, shares: bool) -> None:
    bench = Bench(site, replace(POOL, objective=objective))
    first = bench.arrive("first")
    bench.report(first, 100.0, remaining=100_000.0)
    second = bench.accept("second")
    bench.turn(tick_s=2)
    assert (site.job(second.id).state is JobState.QUEUED) is shares
