"""A pool of GPUs with its scaler and its deployer, and jobs that train, report and end in it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import field, replace
from pathlib import Path
from typing import Any

from ffdl_batch.config.settings import ElasticPool
from ffdl_batch.domain.job.job import Job
from ffdl_batch.domain.job_state import JobState, RequestedAction
from ffdl_batch.domain.metrics.records import FLOAT, INT, Measure, MetricRecord, encode_record
from ffdl_batch.domain.outcome.continuation import Checkpoint
from ffdl_batch.domain.outcome.controller_events import EventKind, Outcome
from ffdl_batch.domain.outcome.observation import EndCause
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.services.deployment.deployer import Deployer
from ffdl_batch.services.elastic.scaler import Scaler
from ffdl_batch.store import JobSize
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


ANY_BATCH = ELASTIC.replace("{min", "{in_place: true, min")
IN_PLACE = ANY_BATCH.replace("per_gpu_max: 64", "per_gpu_max: 16")
"""16 for each GPU, which is faster than less."""


class Nodes(Bench):
    """A pool whose jobs have a node for each learner, and can shrink in place."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.site.scheduler.spreads = True

    def accept(self, key: str, learners: int = 4, batch: str = IN_PLACE) -> Job:
        return self.site.accept(key, f"{MANIFEST}learners: {learners}\nbatch: {{elastic: {batch}}}\n")

    def arrive(self, key: str, learners: int = 4, batch: str = IN_PLACE) -> Job:
        return super().arrive(key, learners, batch)

    def start(self, job: Job) -> None:
        job = self.site.job(job.id)
        head = self.site.head(job)
        for rank in range(1, job.effective_spec.resources.learners):
            head.says(f"node-{rank}", EventKind.STARTED, host=f"n{rank + 1}")
            head.says(f"node-{rank}", EventKind.LEARNER_STARTED, learner_id=rank + 1)
        super().start(job)

    def leave(self, job: Job, *learners: int) -> None:
        """The controllers of these learners see that their nodes are to be released."""
        head = self.site.head(job)
        for learner in learners:
            source = f"node-{learner - 1}"
            head.says(source, EventKind.LEARNER_ENDED, learner_id=learner, exit_code=143, ended_by="released")
            head.says(source, EventKind.STORED, learner_id=learner)
            head.says(source, EventKind.ENDED)

    def staying(self, job: Job) -> object:
        """How many learners stay, as the controllers read it."""
        return json.loads(Path(self.site.attempt(job).control).read_text())["learners"]

    def completes(self, job: Job) -> None:
        job = self.site.job(job.id)
        head = self.site.head(job)
        for rank in range(1, job.effective_spec.resources.learners):
            head.says(f"node-{rank}", EventKind.LEARNER_ENDED, learner_id=rank + 1, exit_code=0)
            head.says(f"node-{rank}", EventKind.STORED, learner_id=rank + 1)
        super().completes(job)


def first_shrinks(bench: Nodes) -> tuple[Job, Job]:
    """The first job has all nodes. Learners leave it, because a second job has arrived."""
    first = bench.arrive("first")
    bench.report(first, 100.0, remaining=360_000.0)
    second = bench.accept("second")
    bench.turn(tick_s=2)
    return first, second
