"""The scaler of a pool: which jobs it admits and changes, what survives a crash, and who wins against the owner."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import field, replace
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from ffdl_batch.attempt.reader import open_regular
from ffdl_batch.config.settings import ElasticPool
from ffdl_batch.domain.job.job import Job
from ffdl_batch.domain.job.views import Resume
from ffdl_batch.domain.job_state import JobState, RequestedAction
from ffdl_batch.domain.launch.launch_file import Pod, encode
from ffdl_batch.domain.metrics.records import FLOAT, INT, Measure, MetricRecord, encode_record
from ffdl_batch.domain.outcome.continuation import Checkpoint, Spent
from ffdl_batch.domain.outcome.controller_events import Outcome
from ffdl_batch.domain.outcome.observation import EndCause
from ffdl_batch.domain.scheduler_errors import InvalidRequest, SchedulerUnreachable
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.runtimes.launch_request import LaunchPlan, LaunchRequest
from ffdl_batch.services.deployment.deployer import Deployer
from ffdl_batch.services.elastic.pool_queries import (
    explain_size,
    pause_pool,
    replay_decisions,
    resume_pool,
    show_pools,
)
from ffdl_batch.services.elastic.scaler import Scaler
from ffdl_batch.services.job_control.resume import resume_job
from ffdl_batch.services.job_control.stop import cancel_job, halt_job
from ffdl_batch.services.outcome.attempt_records import read_launch
from ffdl_batch.services.refusals import Refused
from ffdl_batch.store import JobSize, SizeState, StoredDecision
from tests.unit.services.chains import end, running
from tests.unit.services.conftest import MANIFEST, Site

POOL = ElasticPool(gpus=4, backend="fake", min_between_s=0.0, objective="fair")
ELASTIC = "{min_learners: 1, max_learners: 4, batch: {min: 16, max: 256, per_gpu_max: 64, start: 64}}"


class Killed(BaseException):
    """What a daemon is that is killed at a step."""


@dataclass
class Bench:
    """A site with a pool of 4 GPUs; its scaler and its deployer."""

    site: Site
    pool: ElasticPool = POOL
    scaler: Scaler = field(init=False)
    deployer: Deployer = field(init=False)

    def __post_init__(self) -> None:
        self.restart()

    def restart(self, reached: Callable[[str], None] = lambda _step: None, owner: str = "test") -> None:
        """Begin with new services, as a daemon that was killed does."""
        self.site.platform.storage.store.end_leases_of("test")
        self.site.set_settings(elastic={"default": self.pool})
        platform = self.site.platform if owner == "test" else replace(self.site.platform, owner=owner)
        made = platform.scaler(reached)
        assert made is not None
        self.scaler, self.deployer = made, platform.deployer()

    def accept(self, key: str, learners: int = 4, batch: str = "") -> Job:
        return self.site.accept(key, f"{MANIFEST}learners: {learners}\nbatch: {{elastic: {ELASTIC}{batch}}}\n")

    def turn(self, tick_s: float = 0.0) -> None:
        """Let the deployer make one step, the scaler, and the deployer again."""
        self.site.clock.tick(tick_s)
        self.deployer.step()
        self.scaler.step()
        self.deployer.step()

    def turns_killed_at(self, step: str, after: Callable[[int], None]) -> bool:
        """Make six turns with a new daemon each, one of which is killed at `step`. Call `after` with the number of each
        turn. Return whether the step was reached."""

        def die(reached: str) -> None:
            if reached == step:
                raise Killed

        killed = False
        for turn in range(6):
            self.restart(die if not killed else lambda _: None)
            try:
                self.turn(tick_s=2)
            except Killed:
                killed = True
                self.restart()
                self.turn(tick_s=2)
            after(turn)
        return killed

    def arrive(self, key: str, learners: int = 4, batch: str = "") -> Job:
        """A job that the scaler has admitted, and that trains."""
        job = self.accept(key, learners, batch)
        self.turn(tick_s=2)
        self.start(job)
        return self.site.job(job.id)

    def start(self, job: Job) -> None:
        running(self.site, self.site.job(job.id))

    def report(self, job: Job, speed: float, remaining: float | None = None, hint: int | None = None) -> None:
        """Its first learner reports."""
        job = self.site.job(job.id)
        values = {"throughput": Measure(FLOAT, repr(speed))}
        values |= {} if remaining is None else {"remaining": Measure(FLOAT, repr(remaining))}
        values |= {} if hint is None else {"scale": Measure(INT, str(hint))}
        path = Path(self.site.attempt(job).learner_metrics(1))
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as file:
            file.write(
                encode_record(MetricRecord(job.id, int(self.site.clock.now() * 1000), 1, "", "ffdl", {}, values))
            )

    def checkpoints(self, job: Job, *, confirmed: bool = True) -> Job:
        """Its attempt ends, because it was asked to."""
        job = self.site.job(job.id)
        assert job.requested_action is RequestedAction.HALT
        checkpoint = Checkpoint(asked=True, answered=True, confirmed=confirmed)
        self.site.head(job).ends(Outcome.HALTED, interruption="halt", checkpoint=checkpoint)
        return end(self.site, job, EndCause.SUCCESS)

    def completes(self, job: Job) -> None:
        head = self.site.head(job)
        head.stores()
        head.ends(Outcome.COMPLETED, exit_code=0)
        assert end(self.site, job, EndCause.SUCCESS).state is JobState.COMPLETED

    def learners(self, *jobs: Job) -> list[int]:
        return [self.site.job(job.id).effective_spec.resources.learners for job in jobs]

    def size(self, job: Job) -> JobSize | None:
        return self.site.platform.storage.store.elastic.sizes([job.id]).get(job.id)

    def halts(self, *jobs: Job) -> list[bool]:
        return [self.site.job(job.id).requested_action is RequestedAction.HALT for job in jobs]


@pytest.fixture
def bench(site: Site) -> Bench:
    return Bench(site)


def first_shrinks_for_second(bench: Bench) -> tuple[Job, Job]:
    """The first job has all GPUs and is asked to end, because a second one has come."""
    first = bench.arrive("first")
    bench.report(first, 100.0, remaining=360_000.0)
    second = bench.accept("second")
    bench.turn(tick_s=2)
    assert bench.halts(first) == [True]
    return first, second


def last_inputs(bench: Bench) -> Any:
    """The inputs of the last decision."""
    *_, last = bench.site.platform.storage.store.elastic.decisions("default")
    return json.loads(last.inputs)


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


def test_scaler_without_lease_changes_nothing(bench: Bench) -> None:
    store = bench.site.platform.storage.store
    first = bench.arrive("first")
    bench.report(first, 100.0, remaining=360_000.0)
    bench.scaler._leases["default"].take()
    bench.accept("second")
    bench.deployer.step()
    stale = bench.scaler
    bench.site.clock.tick(31)  # the lease has expired, and another daemon has it
    assert store.acquire_lease("scaler default", "other", 3600) is not None
    stale._leases["default"]._renewed_at = bench.site.clock.monotonic()  # it has not noticed
    stale.step()
    assert bench.halts(first) == [False]
    bench.site.clock.tick(31)
    stale.step()
    assert bench.halts(first) == [False], "it does not hold the lease"


def test_paused_pool_admits_jobs_as_submitted_and_changes_none(bench: Bench) -> None:
    store = bench.site.platform.storage.store
    first = bench.arrive("first")
    bench.report(first, 100.0, remaining=360_000.0)
    store.elastic.pause("default", bench.site.clock.now())
    second = bench.accept("second")
    bench.turn(tick_s=61)
    assert bench.site.job(second.id).state is JobState.QUEUED
    assert (bench.learners(first, second), bench.halts(first)) == ([4, 4], [False])
    store.elastic.resume("default")
    bench.start(second)
    bench.turn(tick_s=61)
    assert any(bench.halts(first, second)), "8 learners do not fit into 4 GPUs"


def test_paused_pool_finishes_change_that_has_begun(bench: Bench) -> None:
    first, _ = first_shrinks_for_second(bench)
    bench.site.platform.storage.store.elastic.pause("default", bench.site.clock.now())
    bench.checkpoints(first)
    bench.turn(tick_s=2)
    assert bench.site.job(first.id).state is JobState.QUEUED


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


def test_attempt_keeps_its_size_for_minimum_time(site: Site) -> None:
    bench = Bench(site, replace(POOL, min_between_s=300.0))
    first = bench.arrive("first")
    bench.report(first, 100.0, remaining=360_000.0)
    bench.accept("second")
    bench.turn(tick_s=61)
    assert bench.halts(first) == [False]
    bench.turn(tick_s=300)
    assert bench.halts(first) == [True]


def test_decision_is_due_after_interval_or_when_a_job_comes_or_ends(site: Site) -> None:
    bench = Bench(site, replace(POOL, interval_s=100.0))
    first = bench.arrive("first")
    store = site.platform.storage.store

    def decisions() -> int:
        return len(list(store.elastic.decisions("default")))

    bench.turn(tick_s=50)
    assert decisions() == 1
    bench.turn(tick_s=51)
    assert decisions() == 2
    bench.completes(site.job(first.id))
    second = bench.accept("second")
    bench.turn(tick_s=2)
    assert decisions() == 3 and site.job(second.id).state is JobState.QUEUED


def test_running_jobs_shrink_in_pool_that_is_too_small_for_them(bench: Bench) -> None:
    jobs = [bench.arrive("first"), bench.arrive("other", batch=", partition: other")]
    assert [job.state for job in jobs] == [JobState.PROCESSING] * 2
    bench.pool = replace(POOL, gpus=2, min_between_s=1e4)
    bench.restart()
    bench.report(jobs[0], 100.0, remaining=1e6, hint=0)
    bench.turn(tick_s=61)
    assert bench.halts(jobs[0]) == [True], "neither its hint nor its age count"


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
    assert [one["hold"][:39] for one in decision["jobs"]] == ["a halt would lose its checkpoints with ", ""]


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


def test_daemon_without_numpy_runs_jobs_as_submitted(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ffdl_batch.services.deployment.elastic_pools.missing_modules", lambda: ("scipy",))
    site.set_settings(elastic={"default": POOL})
    assert site.platform.scaler() is None
    job = site.accept("k", f"{MANIFEST}learners: 4\nbatch: {{elastic: {ELASTIC}}}\n")
    site.deploy()
    assert site.job(job.id).state is JobState.QUEUED


def test_status_shows_sizes_wanted_ones_and_reasons(bench: Bench) -> None:
    platform = bench.site.platform
    first, second = first_shrinks_for_second(bench)
    (pool,) = show_pools(platform.storage, platform.elastic_pools, bench.site.caller)
    assert (pool.name, pool.gpus, pool.paused_at, pool.problem) == ("default", 4, None, "")
    assert pool.decided_at is not None and pool.next_at == pool.decided_at + 60
    shown = {one.id: one for one in pool.jobs}
    assert (shown[first.id].gpus, shown[first.id].wanted_gpus) == (4, 2)
    assert shown[first.id].reason == "being halted, to continue with 2 learners"
    assert shown[second.id].gpus == 2
    other = replace(bench.site.caller, uid=bench.site.caller.uid + 1)
    assert show_pools(platform.storage, platform.elastic_pools, other)[0].jobs == ()


def test_explanation_has_sizes_that_last_decision_compared(bench: Bench) -> None:
    platform = bench.site.platform
    first, _ = first_shrinks_for_second(bench)
    found = explain_size(platform.storage, platform.elastic_pools, bench.site.caller, first.id)
    assert (found.gpus, found.wanted_gpus, found.restart_s, found.pool_gpus, found.pool_jobs) == (4, 2, 60.0, 4, 2)
    assert [one.gpus for one in found.options] == [1, 2, 3, 4]
    assert found.remaining_s == pytest.approx(3600, rel=0.01)
    plain = bench.site.accept("plain")
    with pytest.raises(Refused, match="belongs to no pool"):
        explain_size(platform.storage, platform.elastic_pools, bench.site.caller, plain.id)


@pytest.mark.parametrize("inputs", ["", '{"gpus": 4}', "[]", '{"gpus": 4, "jobs": [{"name": "x"}]}', '{"gpus": '])
def test_damaged_or_older_last_decision_counts_as_none(bench: Bench, inputs: str) -> None:
    platform = bench.site.platform
    first, _ = first_shrinks_for_second(bench)
    lease = bench.scaler._leases["default"].named
    stored = StoredDecision("default", bench.site.clock.now() + 1, inputs, "[[4, 64]]")
    assert platform.storage.store.elastic.add_decision(lease, stored)
    (pool,) = show_pools(platform.storage, platform.elastic_pools, bench.site.caller)
    assert (pool.decided_at, pool.next_at, len(pool.jobs)) == (None, None, 2)
    with pytest.raises(Refused, match="did not compare"):
        explain_size(platform.storage, platform.elastic_pools, bench.site.caller, first.id)


def test_replay_repeats_recorded_decisions_and_finds_another_policy(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    platform = bench.site.platform
    first_shrinks_for_second(bench)

    def replayed() -> list[tuple[str, ...]]:
        found = replay_decisions(platform.storage, platform.elastic_pools, bench.site.caller, None)
        return [one.differences for one in found]

    assert replayed() == [(), ()]
    monkeypatch.setattr("ffdl_batch.elastic.policy.RANK_EXPONENT", 9.0)
    assert replayed() == [(), ()], "the objective fair has no rank"
    monkeypatch.setattr("ffdl_batch.elastic.policy.LEAST_SPEED", 1e300)
    differences = replayed()
    assert all(differences) and "and now gets 0 with batch 0" in differences[0][0]
    with pytest.raises(Refused, match="unknown pool 'other'; configured pools: default"):
        replay_decisions(platform.storage, platform.elastic_pools, bench.site.caller, "other")


def test_pool_that_is_resumed_is_decided_about_at_once(bench: Bench) -> None:
    platform = bench.site.platform
    job = bench.accept("k")
    bench.deployer.step()
    pause_pool(platform.storage, platform.elastic_pools, "default")
    bench.turn()
    assert bench.site.job(job.id).state is JobState.QUEUED
    (pool,) = show_pools(platform.storage, platform.elastic_pools, bench.site.caller)
    assert (pool.paused_at, pool.next_at) == (bench.site.clock.now(), None)
    resume_pool(platform.storage, platform.elastic_pools, "default")
    bench.turn(tick_s=2)
    assert len(list(platform.storage.store.elastic.decisions("default"))) == 1


def test_daemon_imports_numpy_only_for_a_scaler() -> None:
    code = "import sys, ffdl_batch.daemon.loops, ffdl_batch.daemon.server; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
