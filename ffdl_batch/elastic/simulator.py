"""Simulate a pool of GPUs: jobs arrive, a scheduler allocates GPUs to them, and they progress at their true speeds.

The simulator knows the true speeds. A scheduler gets only what is measured while jobs run. Progress is the sum over the
steps of 1 / iterations(batch). A job is done when its progress reaches its work, usually 1. After a change, including
the first start, a job holds its GPUs without progress for the restart cost. A scheduler decides at fixed intervals.
Pure.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from ffdl_batch.elastic.policy import Target
from ffdl_batch.host.fast_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Arrival:
    """A job that is submitted, with its requested size."""

    job: str
    submitted_s: float
    model: str
    gpus: int
    batch: int
    tenant: str = ""
    work: float = 1.0
    """Length of the job, as a multiple of the number of steps of its model."""


@dataclass(frozen=True, slots=True)
class Model:
    """What is known about a model before its jobs run."""

    iterations: Mapping[int, int]
    """Steps of a whole job with each batch."""
    smallest_local: int
    """Minimum number of samples per GPU and pass."""
    largest_local: int


class Truth(Protocol):
    """The true step times."""

    def step_s(self, model: str, gpus: int, batch: int) -> float:
        """Return the seconds of a step; inf if the job cannot run at this size."""


@dataclass(slots=True)
class LiveJob:
    """A job that was submitted and has not ended."""

    arrival: Arrival
    left: float
    """Remaining work."""
    gpus: int = 0
    batch: int = 0
    restarting_s: float = 0.0
    """Remaining seconds of a restart."""
    measured_step_s: float | None = None
    """Measured in the last interval, if the job made progress."""


class Scheduler(Protocol):
    """Decides the sizes of jobs."""

    def decide(self, jobs: Sequence[LiveJob]) -> list[Target]:
        """Return the size of each job in the order of `jobs`, which is the order of submission."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A simulated pool."""

    gpus: int = 64
    interval_s: float = 60.0
    restart_s: float = 30.0
    noise: float = 0.1
    """Measured speeds are the true ones times a random factor between 1 - noise and 1 + noise."""
    failures_per_gpu_hour: float = 0.0
    """A failed job restarts from its last checkpoint."""
    checkpoint_s: float = 600.0
    """Time between checkpoints. A change also writes one."""
    until_s: float = math.inf
    """When the simulation ends, even if jobs are still running."""
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Change:
    """The GPUs that a job has from this time on. 0 = it waits or has ended."""

    time_s: float
    job: str
    gpus: int
    batch: int


@dataclass(frozen=True, slots=True)
class Run:
    """The result of a simulation."""

    changes: tuple[Change, ...]
    completed_s: Mapping[str, float]
    """When each job ended."""
    failures: int


def first_decision_s(submitted_s: float, interval_s: float) -> float:
    """Return when the first decision after a submission is made."""
    return math.ceil(submitted_s / interval_s) * interval_s


def simulate(
    arrivals: Sequence[Arrival],
    models: Mapping[str, Model],
    truth: Truth,
    scheduler: Scheduler,
    setting: Setting,
    watch: Callable[[float, Sequence[LiveJob]], None] = lambda _now, _jobs: None,
) -> Run:
    """Simulate until all jobs have ended or the time is over. `watch` is called after each decision."""
    world = _World(models, truth, setting)
    waiting = sorted(arrivals, key=lambda one: one.submitted_s)[::-1]
    now = 0.0
    while waiting or world.live:
        if not world.live:
            now = max(now, first_decision_s(waiting[-1].submitted_s, setting.interval_s))
        if now >= setting.until_s:
            break
        while waiting and waiting[-1].submitted_s <= now:
            world.live.append(LiveJob(waiting[-1], waiting.pop().work))
        world.apply(now, scheduler.decide(world.live))
        watch(now, world.live)
        world.advance(now, min(setting.interval_s, setting.until_s - now))
        now += setting.interval_s
    return Run(tuple(world.changes), world.completed, world.failures)


class _World:
    def __init__(self, models: Mapping[str, Model], truth: Truth, setting: Setting) -> None:
        self.live: list[LiveJob] = []
        self.changes: list[Change] = []
        self.completed: dict[str, float] = {}
        self.failures = 0
        self._models, self._truth, self._setting = models, truth, setting
        self._random = random.Random(setting.seed)  # noqa: S311 - no secret
        self._since_checkpoint: dict[str, float] = {}

    def apply(self, now: float, targets: Sequence[Target]) -> None:
        """Set the sizes of the jobs. Raises ValueError if they exceed the pool."""
        if (total := sum(target.gpus for target in targets)) > self._setting.gpus:
            raise ValueError(f"{total} GPUs were allocated, but the pool has {self._setting.gpus}")
        for job, target in zip(self.live, targets, strict=True):
            if (job.gpus, job.batch) != (target.gpus, target.batch):
                job.gpus, job.batch = target.gpus, target.batch
                job.restarting_s = self._setting.restart_s if target.gpus else 0.0
                self._since_checkpoint[job.arrival.job] = 0.0
                self.changes.append(Change(now, job.arrival.job, target.gpus, target.batch))

    def advance(self, now: float, interval: float) -> None:
        """Let the jobs run for an interval."""
        for job in list(self.live):
            job.measured_step_s = None
            if not job.gpus:
                continue
            step_s = self._truth.step_s(job.arrival.model, job.gpus, job.batch)
            speed = 1 / (step_s * self._models[job.arrival.model].iterations[job.batch])
            runs_s = max(0.0, interval - job.restarting_s)
            if job.left <= speed * runs_s:
                end = now + job.restarting_s + job.left / speed
                self.completed[job.arrival.job] = end
                self.changes.append(Change(end, job.arrival.job, 0, 0))
                self.live.remove(job)
                continue
            job.left -= speed * runs_s
            job.restarting_s = max(0.0, job.restarting_s - interval)
            if runs_s:
                job.measured_step_s = step_s / self._factor()
            self._fail(job, speed, runs_s)

    def _factor(self) -> float:
        return self._random.uniform(1 - self._setting.noise, 1 + self._setting.noise)

    def _fail(self, job: LiveJob, speed: float, runs_s: float) -> None:
        since = self._since_checkpoint[job.arrival.job] + runs_s
        self._since_checkpoint[job.arrival.job] = since % self._setting.checkpoint_s
        rate = self._setting.failures_per_gpu_hour * job.gpus / 3600
        if rate and self._random.random() < -math.expm1(-rate * runs_s):
            self.failures += 1
            job.left = min(job.arrival.work, job.left + speed * (since % self._setting.checkpoint_s))
            job.restarting_s = self._setting.restart_s
            self._since_checkpoint[job.arrival.job] = 0.0
