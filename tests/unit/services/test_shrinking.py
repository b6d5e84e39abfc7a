"""Changes of size in place: what the scaler requests from controllers and scheduler, and how it survives a crash."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import pytest

from ffdl_batch.attempt.layout import AttemptDir
from ffdl_batch.domain.job.elastic import Elastic
from ffdl_batch.domain.job_state import JobState
from ffdl_batch.domain.launch.launch_file import decode, encode
from ffdl_batch.domain.outcome.controller_events import Event, EventKind, Outcome
from ffdl_batch.domain.outcome.observation import EndCause, NativeId
from ffdl_batch.services.elastic import in_place
from ffdl_batch.services.elastic.pool_queries import show_pools
from ffdl_batch.services.monitoring.watcher import SETTLE_S
from ffdl_batch.services.outcome.attempt_records import read_events
from ffdl_batch.store import SizeState
from tests.unit.services.chains import end
from tests.unit.services.conftest import Site
from tests.unit.services.pool_bench import ANY_BATCH, ELASTIC, POOL, Nodes, first_shrinks, last_inputs


@pytest.fixture
def bench(site: Site) -> Nodes:
    return Nodes(site)


def test_job_shrinks_in_place_and_its_nodes_go_to_the_next(bench: Nodes) -> None:
    first, second = first_shrinks(bench)
    assert bench.halts(first) == [False]
    size = bench.size(first)
    assert size is not None and (size.state, size.learners, size.attempt) == (SizeState.SHRINKING, 2, 1)
    assert bench.staying(first) == 2
    assert bench.site.job(second.id).state is JobState.QUEUED, "the scheduler starts it when nodes are free"
    (pool,) = show_pools(bench.site.platform.storage, bench.scaler._pools, bench.site.caller)
    shown = {one.id: (one.gpus, one.wanted_gpus, one.reason) for one in pool.jobs}
    assert shown[first.id] == (4, 2, "shrinking in place to 2 learners")
    bench.leave(first, 4)
    bench.turn(tick_s=2)
    assert bench.site.scheduler.shrunk == [], "learner 3 has not left yet"
    bench.leave(first, 3)
    bench.turn(tick_s=2)
    native = NativeId.parse(bench.site.job(first.id).native_id)
    assert bench.site.scheduler.shrunk == [(native, ("n1", "n2"))]
    job = bench.site.job(first.id)
    assert (job.state, job.attempt, job.global_batch, bench.learners(first)) == (JobState.PROCESSING, 1, 32, [2])
    assert bench.learners(second) == [2]
    bench.turn(tick_s=61)
    assert (len(bench.site.scheduler.shrunk), bench.halts(first)) == (1, [False])
    bench.completes(first)


def test_change_in_place_is_in_history_and_view_of_attempt(bench: Nodes) -> None:
    first, _ = first_shrinks(bench)
    bench.leave(first, 3, 4)
    bench.turn(tick_s=2)
    history = bench.site.platform.storage.store.history(first.id)
    (entry,) = [one for one in history if one.cause == "resized"]
    message = "the scaler of pool default shrank the job in place to 2 learners and batch 32"
    assert (entry.state, entry.attempt, entry.message) == (JobState.PROCESSING, 1, message)
    (attempt,) = bench.site.view(first).attempts
    assert (attempt.learners, attempt.global_batch) == (4, 64)
    assert [(one.at, one.learners, one.global_batch) for one in attempt.resizes] == [(entry.at, 2, 32)]


@pytest.mark.parametrize("step", ["decided", "shrinking", "left", "given_back", "shrunk", "admitted"])
def test_daemon_killed_at_step_of_change_in_place_continues_it_once(bench: Nodes, step: str) -> None:
    first = bench.arrive("first")
    bench.report(first, 100.0, remaining=360_000.0)
    second = bench.accept("second")

    def leave(turn: int) -> None:
        if turn == 2:
            bench.leave(first, 3, 4)

    assert bench.turns_killed_at(step, leave)
    assert {one for _, one in bench.site.scheduler.shrunk} == {("n1", "n2")}
    assert bench.learners(first, second) == [2, 2]
    jobs = [bench.site.job(job.id) for job in (first, second)]
    assert [(job.state, job.attempt) for job in jobs] == [(JobState.PROCESSING, 1), (JobState.QUEUED, 1)]
    (attempt,) = bench.site.platform.storage.store.attempts(first.id)
    assert len(attempt.resizes) == 1
    tokens = [token for _, token in bench.site.scheduler.submitted]
    assert sorted(tokens) == sorted({f"{first.id}-1", f"{second.id}-1"})


def test_only_the_daemon_with_the_lease_waits_for_leaving_learners(bench: Nodes) -> None:
    first_shrinks(bench)
    other = replace(bench.site.platform, owner="other").scaler()
    assert other is not None
    for scaler in (bench.scaler, other):
        scaler.step()
    assert (bench.scaler._shrinks, other._shrinks) == (True, False)


def test_events_of_staying_nodes_are_read_only_when_the_others_have_left(
    bench: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = first_shrinks(bench)
    read: list[str] = []

    def note(attempt: AttemptDir, sources: Collection[str] = ()) -> list[Event]:
        read.extend(sources)
        return read_events(attempt, sources)

    monkeypatch.setattr(in_place, "read_events", note)
    bench.scaler.step()
    assert read == ["head", "node-2", "node-3"]
    bench.leave(first, 3, 4)
    bench.scaler.step()
    assert set(read) == {"head", "node-0", "node-1", "node-2", "node-3"}


@pytest.mark.parametrize("is_given_back", [True, False])
@pytest.mark.parametrize("has_record", [True, False])
def test_gpu_time_counts_nodes_until_they_are_given_back(bench: Nodes, is_given_back: bool, has_record: bool) -> None:
    first, _ = first_shrinks(bench)
    bench.leave(first, 3, 4)
    bench.site.scheduler.down = not is_given_back
    bench.turn(tick_s=10)
    given_back = bench.site.clock.now() if is_given_back else math.inf
    bench.site.scheduler.down = False
    bench.site.clock.tick(100)
    head = bench.site.head(first)
    head.beats()
    begun = min(event.at for event in read_events(bench.site.attempt(first)))
    if has_record:
        head.ends(Outcome.FAILED, error_code="C201", exit_code=1, gpu_seconds=4 * (head.at - begun))
    bench.site.end(bench.site.job(first.id), EndCause.FAILURE, started=begun)
    bench.turn(tick_s=SETTLE_S + 61)
    bench.site.watch()
    (attempt, *_) = bench.site.platform.storage.store.attempts(first.id)
    expected = 4 * (head.at - begun) - 2 * max(0.0, head.at - given_back)
    assert attempt.gpu_seconds == pytest.approx(expected, abs=1.0)


@pytest.mark.parametrize(("ended", "state"), [((1, 2), JobState.COMPLETED), ((2,), JobState.QUEUED)])
def test_shrunk_job_whose_controllers_die_is_complete_only_if_the_staying_learners_are_done(
    bench: Nodes, ended: tuple[int, ...], state: JobState
) -> None:
    first, _ = first_shrinks(bench)
    bench.leave(first, 3, 4)
    bench.turn(tick_s=2)
    head = bench.site.head(first)
    for learner in ended:
        head.says(f"node-{learner - 1}", EventKind.LEARNER_ENDED, learner_id=learner, exit_code=0)
        head.says(f"node-{learner - 1}", EventKind.STORED, learner_id=learner)
    end(bench.site, bench.site.job(first.id), EndCause.NODE_FAIL)
    bench.turn(tick_s=SETTLE_S + 61)
    assert bench.site.job(first.id).state is state


@pytest.mark.parametrize(
    "manifest",
    [
        pytest.param(ELASTIC, id="not in place"),
        pytest.param(ANY_BATCH.replace("min: 16", "min: 64"), id="batch too small"),
    ],
)
def test_job_that_cannot_shrink_in_place_is_halted(bench: Nodes, manifest: str) -> None:
    first = bench.arrive("first", batch=manifest)
    bench.report(first, 100.0, remaining=360_000.0)
    bench.accept("second")
    bench.turn(tick_s=2)
    assert bench.halts(first) == [True]


def test_job_is_halted_if_only_part_of_a_node_would_become_free(bench: Nodes) -> None:
    first = bench.arrive("first")
    path = Path(bench.site.attempt(first).launch)
    path.write_text(encode(replace(decode(path.read_text()), nodes=1, learners_per_node=4)))
    bench.report(first, 100.0, remaining=360_000.0)
    bench.accept("second")
    bench.turn(tick_s=2)
    assert bench.halts(first) == [True]


def test_gpus_keep_their_batch_in_place() -> None:
    elastic = Elastic(1, 4, 32, 512, 64, 64)
    assert elastic.batch_without_restart(128, before=4, after=2) == 64
    assert elastic.batch_without_restart(64, before=4, after=1) is None, "16 are less than the least batch"


def test_minimum_time_between_changes_counts_from_change_in_place(site: Site) -> None:
    bench = Nodes(site, replace(POOL, min_between_s=300.0))
    first = bench.arrive("first")
    bench.report(first, 100.0, remaining=360_000.0)
    bench.accept("second")
    bench.turn(tick_s=301)
    bench.leave(first, 3, 4)
    bench.turn(tick_s=2)
    assert bench.learners(first) == [2]
    bench.accept("third")
    bench.turn(tick_s=100)
    (hold,) = [one["hold"] for one in last_inputs(bench)["jobs"] if one["name"] == first.id]
    assert hold.startswith("no change for another ") and hold.endswith(" s (min_between_s)")


def test_change_in_place_is_no_restart_cost(bench: Nodes) -> None:
    first, _ = first_shrinks(bench)
    bench.leave(first, 3, 4)
    bench.turn(tick_s=2)
    (job,) = [one for one in bench.site.platform.storage.store.elastic.jobs() if one.job.id == first.id]
    assert job.job.spent.resizes == 1, "so the new size is reported to the hub"
    bench.site.clock.tick(1)
    bench.report(first, 40.0)
    bench.turn(tick_s=61)
    noted = bench.size(first)
    assert noted is not None and noted.restart_s is None
    costs = {one["name"]: (one["restart_s"], one["restarting_s"]) for one in last_inputs(bench)["jobs"]}
    assert costs[first.id] == (60.0, 0.0)


def test_job_that_shrank_in_place_does_not_wait_for_a_restart(bench: Nodes) -> None:
    first, _ = first_shrinks(bench)
    bench.leave(first, 3, 4)
    bench.turn(tick_s=2)
    bench.accept("third")
    bench.turn(tick_s=2)
    assert [one["restarting_s"] for one in last_inputs(bench)["jobs"] if one["name"] == first.id] == [0.0]


def test_reports_belong_to_the_size_that_the_attempt_had_when_they_were_made(bench: Nodes) -> None:
    first, _ = first_shrinks(bench)
    bench.site.clock.tick(1)
    bench.report(first, 90.0)  # while learners leave: belongs to no size
    bench.leave(first, 3, 4)
    bench.turn(tick_s=2)
    bench.site.clock.tick(20)
    bench.report(first, 40.0)
    bench.turn(tick_s=61)
    history = bench.scaler._histories[first.id]
    measured = {key[:3]: math.exp(total / count) for key, (count, total) in history.times._sums.items()}
    assert measured == pytest.approx({(4, 4, 16): 64 / 100, (2, 2, 16): 32 / 40})
