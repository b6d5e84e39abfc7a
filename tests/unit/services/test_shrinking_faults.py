"""Changes of size in place when something fails: the daemon, the scheduler, a node, a learner, or a clock."""

from __future__ import annotations

import errno
from dataclasses import replace

import pytest

from ffdl_batch.domain.job_state import JobState
from ffdl_batch.domain.outcome.controller_events import Event, EventKind, Outcome
from ffdl_batch.domain.outcome.observation import EndCause, NativeId
from ffdl_batch.domain.scheduler_errors import NotPermitted
from ffdl_batch.services.elastic import in_place
from ffdl_batch.services.elastic.in_place import LEAVE_S
from ffdl_batch.services.elastic.size_changes import LOOK_S, SHRINKING_S
from ffdl_batch.services.job_control.stop import halt_job
from ffdl_batch.services.monitoring.watcher import SETTLE_S
from ffdl_batch.store import SizeState
from tests.unit.services.chains import end
from tests.unit.services.conftest import Site
from tests.unit.services.pool_bench import Nodes, first_shrinks


@pytest.fixture
def bench(site: Site) -> Nodes:
    return Nodes(site)


def test_job_is_halted_if_scheduler_refuses_its_nodes(bench: Nodes) -> None:
    first, _ = first_shrinks(bench)
    bench.site.scheduler.refuse_shrink = "Invalid node name specified"
    bench.leave(first, 3, 4)
    bench.turn(tick_s=2)
    size = bench.size(first)
    assert bench.halts(first) == [True]
    assert size is not None and (size.state, size.learners) == (SizeState.HALTING, 2)
    bench.checkpoints(first)
    bench.turn(tick_s=2)
    assert (bench.site.job(first.id).state, bench.learners(first)) == (JobState.QUEUED, [2])


def test_nodes_are_given_back_when_scheduler_answers_again(bench: Nodes) -> None:
    first, _ = first_shrinks(bench)
    bench.leave(first, 3, 4)
    bench.site.scheduler.down = True
    bench.turn(tick_s=2)
    assert bench.learners(first) == [4]
    bench.site.scheduler.down = False
    bench.turn(tick_s=61)
    assert (bench.learners(first), bench.halts(first)) == ([2], [False])


def test_nodes_of_another_job_with_the_same_id_stay(bench: Nodes) -> None:
    first, _ = first_shrinks(bench)
    bench.leave(first, 3, 4)
    native = NativeId.parse(bench.site.job(first.id).native_id)
    bench.site.scheduler.seen[native] = replace(bench.site.scheduler.seen[native], name="training-000000000-1")
    bench.turn(tick_s=2)
    assert (bench.site.scheduler.shrunk, bench.learners(first)) == ([], [4])


def test_halt_by_owner_wins_over_change_in_place(bench: Nodes) -> None:
    first, _ = first_shrinks(bench)
    platform = bench.site.platform
    halt_job(platform.storage, platform.adapters, bench.site.caller, first.id)
    bench.leave(first, 3, 4)
    bench.turn(tick_s=2)
    assert bench.site.scheduler.shrunk == []
    bench.checkpoints(first)
    bench.turn(tick_s=2)
    assert (bench.site.job(first.id).state, bench.size(first)) == (JobState.HALTED, None)


def test_attempt_that_is_lost_while_it_shrinks_is_followed_by_one_with_a_size_of_the_pool(bench: Nodes) -> None:
    first, second = first_shrinks(bench)
    end(bench.site, bench.site.job(first.id), EndCause.NODE_FAIL)
    bench.turn(tick_s=61)
    assert [bench.site.job(job.id).state for job in (first, second)] == [JobState.QUEUED] * 2
    assert bench.site.job(first.id).attempt == 2
    assert bench.learners(first, second) == [2, 2]


def test_interrupted_attempt_after_change_in_place_is_followed_by_one_with_the_new_size(bench: Nodes) -> None:
    first, _ = first_shrinks(bench)
    bench.leave(first, 3, 4)
    bench.turn(tick_s=2)
    bench.site.head(first).ends(Outcome.FAILED, stored=False, error_code="S106", message="lost")
    end(bench.site, bench.site.job(first.id), EndCause.NODE_FAIL)
    bench.turn(tick_s=SETTLE_S + 61)
    assert bench.site.job(first.id).attempt == 2
    assert bench.learners(first) == [2]


def test_job_that_changes_before_it_shrinks_frees_no_gpus(bench: Nodes) -> None:
    first = bench.arrive("first")
    bench.report(first, 100.0, remaining=360_000.0)
    second = bench.accept("second")
    platform = bench.site.platform

    def halt(reached: str) -> None:
        if reached == "decided":
            halt_job(platform.storage, platform.adapters, bench.site.caller, first.id)

    bench.restart(halt)
    bench.turn(tick_s=2)
    assert (bench.site.job(second.id).state, bench.size(second)) == (JobState.PENDING, None)


def test_job_that_already_saves_for_its_end_does_not_shrink_in_place(bench: Nodes) -> None:
    first = bench.arrive("first")
    bench.report(first, 100.0, remaining=360_000.0)
    bench.site.head(first).says("node-3", EventKind.ASKED, reason="warned")
    bench.accept("second")
    bench.turn(tick_s=2)
    size = bench.size(first)
    assert bench.halts(first) == [True]
    assert size is not None and (size.state, size.learners) == (SizeState.HALTING, 2)


def test_job_is_halted_if_its_learners_do_not_leave(bench: Nodes) -> None:
    first, _ = first_shrinks(bench)
    bench.leave(first, 4)
    bench.turn()
    bench.turn(tick_s=LEAVE_S)
    assert bench.halts(first) == [False], "controllers may still be ending learner 3"
    bench.turn(tick_s=61)
    size = bench.size(first)
    assert (bench.halts(first), bench.site.scheduler.shrunk) == ([True], [])
    assert size is not None and (size.state, size.learners) == (SizeState.HALTING, 2)


def test_daemon_without_pools_finishes_change_in_place(bench: Nodes) -> None:
    first, _ = first_shrinks(bench)
    bench.site.set_settings(elastic={})
    platform = bench.site.platform
    assert platform.scaler() is None
    last = platform.last_size_changes()
    assert last is not None and last.step() == (0, SHRINKING_S)
    bench.leave(first, 3, 4)
    assert last.step()[0] == 1
    assert len(bench.site.scheduler.shrunk) == 1
    assert bench.learners(first) == [2]
    assert platform.storage.store.elastic.shrinking() == []


def test_nodes_of_learners_that_ended_by_themselves_are_not_given_back(bench: Nodes) -> None:
    first, _ = first_shrinks(bench)
    head = bench.site.head(first)
    for learner in (3, 4):
        head.says(f"node-{learner - 1}", EventKind.LEARNER_ENDED, learner_id=learner, exit_code=0)
        head.says(f"node-{learner - 1}", EventKind.STORED, learner_id=learner)
        head.says(f"node-{learner - 1}", EventKind.ENDED)
    bench.turn(tick_s=2)
    assert (bench.site.scheduler.shrunk, bench.learners(first)) == ([], [4])


def test_refusal_to_release_nodes_of_one_job_counts_for_that_job_only(bench: Nodes) -> None:
    first, second = first_shrinks(bench)
    bench.site.scheduler.refuse_shrink = "Invalid node name specified"
    bench.leave(first, 3, 4)
    bench.turn(tick_s=2)
    assert bench.halts(first) == [True]
    bench.start(second)
    changes, in_place = bench.scaler._changes("default"), bench.scaler._in_place
    found = [in_place.batch_with(changes, bench.site.job(job.id), 1) for job in (first, second)]
    assert found == [None, 16]


def test_nodes_stay_while_the_scheduler_does_not_run_the_job(bench: Nodes) -> None:
    """Slurm's NodeList of a waiting job would be a request for the next start."""
    first, _ = first_shrinks(bench)
    bench.leave(first, 3, 4)
    native = NativeId.parse(bench.site.job(first.id).native_id)
    bench.site.scheduler.wait(native, restarts=1)
    bench.turn(tick_s=2)
    assert (bench.site.scheduler.shrunk, bench.learners(first), bench.halts(first)) == ([], [4], [False])


def test_attempt_that_is_started_again_on_other_nodes_releases_none_by_its_earlier_run(bench: Nodes) -> None:
    first, _ = first_shrinks(bench)
    bench.leave(first, 3, 4)
    bench.site.clock.tick(100)
    head = bench.site.head(first)
    head.starts(restart=1)
    head.says("node-1", EventKind.STARTED, host="n7")
    bench.site.scheduler.run(NativeId.parse(head.job.native_id), nodes="n[0-2,7]", restarts=1)
    bench.turn(tick_s=2)
    assert bench.site.scheduler.shrunk == [], "its nodes 3 and 4 have not reported since"
    for learner in (3, 4):
        head.says(f"node-{learner - 1}", EventKind.STARTED, host=f"n{learner - 2}")
        head.says(f"node-{learner - 1}", EventKind.LEARNER_STARTED, learner_id=learner)
    bench.leave(first, 3, 4)
    bench.turn(tick_s=2)
    assert [nodes for _, nodes in bench.site.scheduler.shrunk] == [("n1", "n7")]


@pytest.mark.parametrize("step_s", [-3600.0, 3600.0])
def test_leaving_learners_have_their_time_also_if_the_clock_is_set(
    bench: Nodes, monkeypatch: pytest.MonkeyPatch, step_s: float
) -> None:
    first_shrinks(bench)
    (one,) = bench.site.platform.storage.store.elastic.shrinking()
    clock, changes = bench.site.clock, bench.scaler._changes("default")
    monkeypatch.setattr(clock, "now", lambda: clock.monotonic() + step_s)
    halted = []
    for _ in range(3):
        halted.append(bench.scaler._in_place.proceed(changes, one))
        clock.tick(LEAVE_S)
    assert halted == [False, False, True]


def test_files_of_job_that_cannot_be_read_stop_no_other_change(bench: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    first = bench.arrive("first")
    bench.report(first, 100.0, remaining=360_000.0)
    second = bench.accept("second")

    def fail(*_: object) -> list[Event]:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(in_place, "read_events", fail)
        bench.turn(tick_s=2)
    assert (bench.learners(first), bench.halts(first)) == ([4], [False])
    assert bench.site.job(second.id).state is JobState.PENDING
    bench.turn(tick_s=61)
    assert bench.learners(second) == [2]


def test_job_is_halted_if_ffdl_may_not_release_its_nodes(bench: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    first, _ = first_shrinks(bench)
    bench.leave(first, 3, 4)

    def refuse(*_: object) -> None:
        raise NotPermitted("you may not patch jobs.batch")

    monkeypatch.setattr(bench.site.scheduler, "shrink", refuse)
    bench.turn(tick_s=2)
    assert bench.halts(first) == [True]


def test_daemon_without_pools_deletes_sizes_of_ended_jobs(bench: Nodes) -> None:
    first, second = first_shrinks(bench)
    end(bench.site, bench.site.job(first.id), EndCause.NODE_FAIL)
    bench.site.set_settings(elastic={})
    platform = bench.site.platform
    bench.site.clock.tick(61)
    platform.deployer().step()
    assert (bench.site.job(first.id).state, bench.site.job(first.id).attempt) == (JobState.QUEUED, 2)
    for job in (first, second):
        bench.start(job)
        bench.completes(job)
    last = platform.last_size_changes()
    assert last is not None and last.step() == (0, LOOK_S)
    assert platform.last_size_changes() is None
