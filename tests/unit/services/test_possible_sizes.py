"""With how many learners jobs of a pool can be planned, and how many attempts are planned to find out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest

from ffdl_batch.domain.job.job import Job
from ffdl_batch.domain.scheduler_errors import InvalidRequest, SchedulerUnreachable
from ffdl_batch.runtimes.launch_request import LaunchPlan, LaunchRequest
from ffdl_batch.services.backends.adapters import Adapters
from ffdl_batch.services.backends.node_exclusion import NodeExclusion
from ffdl_batch.services.deployment.attempt_planning import plan_attempt
from ffdl_batch.services.elastic.possible_sizes import MOST_ON_NODE, REFUSED_S, PossibleSizes, fills_nodes
from ffdl_batch.services.job_storage import JobStorage
from ffdl_batch.store import SizeState
from tests.unit.services.conftest import MANIFEST, Site
from tests.unit.services.pool_bench import ELASTIC, POOL, Bench

Nodes = Callable[[int], int | None]
"""Number of nodes for a number of learners; None if it cannot be planned."""
AT_MOST_12 = ELASTIC.replace("max_learners: 4", "max_learners: 12").replace("max: 256", "max: 4096")


def plans_on(site: Site, monkeypatch: pytest.MonkeyPatch, nodes: Nodes) -> list[int]:
    """Let the scheduler plan with these nodes. Return the list of the numbers of learners that it is asked about."""
    plan, found = type(site.scheduler).plan, list[int]()

    def spread(request: LaunchRequest) -> LaunchPlan:
        found.append(request.spec.resources.learners)
        count = nodes(found[-1])
        if count is None:
            raise InvalidRequest("the partition has not as many nodes")
        planned = plan(site.scheduler, request)
        return replace(planned, launch=replace(planned.launch, nodes=count))

    monkeypatch.setattr(site.scheduler, "plan", spread)
    return found


def sizes_of(site: Site) -> PossibleSizes:
    platform = site.platform
    return PossibleSizes(platform.storage, platform.adapters, platform.node_exclusion)


@pytest.mark.parametrize(
    ("per_node", "permitted"),
    [
        (1, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]),
        (2, [1, 2, 4, 6, 8, 10, 12]),
        (3, [1, 3, 6, 9, 12]),
        (4, [1, 2, 4, 8, 12]),
        (8, [1, 2, 4, 8]),
        (MOST_ON_NODE, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]),
    ],
)
def test_sizes_are_those_that_fill_nodes(
    site: Site, monkeypatch: pytest.MonkeyPatch, per_node: int, permitted: list[int]
) -> None:
    assert [number for number in range(1, 13) if fills_nodes(number, per_node)] == permitted
    job = site.accept("k", f"{MANIFEST}learners: 1\nbatch: {{elastic: {AT_MOST_12}}}\n")
    asked = plans_on(site, monkeypatch, lambda learners: -(-learners // per_node))
    sizes = sizes_of(site)
    sizes.look([job])
    assert (sorted(sizes.of(job)), len(asked)) == (permitted, 6)
    sizes.look([job])
    assert len(asked) == 6
    site.clock.tick(REFUSED_S + 1)
    sizes.look([job])
    assert len(asked) == 12, "nodes may have been added"


def test_least_submitted_and_present_number_are_always_permitted(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    plans_on(site, monkeypatch, lambda learners: -(-learners // 4))
    text = AT_MOST_12.replace("min_learners: 1", "min_learners: 3")
    job = site.accept("k", f"{MANIFEST}learners: 5\nbatch: {{elastic: {text}}}\n")
    job = replace(job, overrides=replace(job.overrides, learners=7))
    sizes = sizes_of(site)
    sizes.look([job])
    assert sorted(sizes.of(job)) == [3, 4, 5, 7, 8, 12]
    assert all(sizes.can_plan(job, learners, 512) for learners in (3, 5, 7, 8))
    assert not sizes.can_plan(job, 10, 512), "GPUs of its allocation would be idle"


def test_size_that_cannot_be_planned_is_refused_for_a_time(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    plans_on(site, monkeypatch, lambda learners: learners if learners < 4 else None)
    job = site.accept("k", f"{MANIFEST}learners: 1\nbatch: {{elastic: {ELASTIC}}}\n")
    sizes = sizes_of(site)
    sizes.look([job])
    assert sorted(sizes.of(job)) == [1, 2, 3, 4]
    assert [sizes.can_plan(job, learners, 64) for learners in (3, 4)] == [True, False]
    sizes.forget({job.id})
    assert sorted(sizes.of(job)) == [1, 2, 3]
    site.clock.tick(REFUSED_S + 1)
    sizes.forget({job.id})
    assert sorted(sizes.of(job)) == [1, 2, 3, 4]


def test_known_sizes_stay_while_scheduler_does_not_answer(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    plans_on(site, monkeypatch, lambda learners: -(-learners // 2))
    job = site.accept("k", f"{MANIFEST}learners: 1\nbatch: {{elastic: {ELASTIC}}}\n")
    sizes = sizes_of(site)
    sizes.look([job])
    other = site.accept("other", f"{MANIFEST}learners: 1\nbatch: {{elastic: {ELASTIC}}}\n")
    asked: list[int] = []

    def fail(request: LaunchRequest) -> LaunchPlan:
        asked.append(request.spec.resources.learners)
        raise SchedulerUnreachable("slurmctld does not answer")

    monkeypatch.setattr(site.scheduler, "plan", fail)
    site.clock.tick(REFUSED_S + 1)
    sizes.look([job, other])
    assert sorted(sizes.of(job)) == [1, 2, 4]
    assert sorted(sizes.of(other)) == [1, 2, 3, 4], "nothing is known of its nodes"
    assert len(asked) == 1, "about other jobs, the scheduler is not asked now"


def test_waiting_and_unchanged_jobs_are_planned_once(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def count(storage: JobStorage, adapters: Adapters, node_exclusion: NodeExclusion, job: Job) -> LaunchPlan:
        asked.append(job.id)
        return plan_attempt(storage, adapters, node_exclusion, job)

    monkeypatch.setattr("ffdl_batch.services.elastic.possible_sizes.plan_attempt", count)
    bench = Bench(site, replace(POOL, gpus=1))
    running = bench.arrive("running", learners=1)
    bench.report(running, 100.0, remaining=1e7)
    waiting = [bench.accept(f"k{number}") for number in range(5)]
    for _ in range(6):
        bench.turn(tick_s=61)
        assert Counter(asked) == dict.fromkeys([running.id, *(job.id for job in waiting)], 6)
    assert [bench.size(job) for job in waiting] == [None] * 5


def test_decision_that_cannot_be_planned_costs_one_attempt_for_each_job(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(site)
    first = bench.arrive("first", learners=2)
    bench.report(first, 100.0, remaining=1e7)
    asked = plans_on(site, monkeypatch, lambda learners: learners if learners < 4 else None)
    bench.turn(tick_s=61)
    assert (asked, bench.halts(first)) == ([4], [False])
    bench.turn(tick_s=2)
    found = bench.size(first)
    assert found is not None and (found.state, found.learners) == (SizeState.HALTING, 3)
    assert asked == [4, 3]
