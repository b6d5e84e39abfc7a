"""Simulate a pool of GPUs: jobs arrive, a scheduler gives them GPUs, and they progress at their true speeds.

The simulator knows the true speeds; a scheduler sees only what is measured while jobs run. Progress is the sum over the
steps of 1 / iterations(batch), and a job is done when that reaches its work, usually 1. A change, the first start
included, holds the GPUs of a job for the restart cost without progress. A scheduler decides at fixed intervals. Pure.
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
    """A job that is submitted, with the size that its owner asked for."""

    job: str
    submitted_s: float
    model: str
    gpus: int
    batch: int
    tenant: str = ""
    work: float = 1.0
    """How much longer it is than a job with the steps that are known of its kind."""


@dataclass(frozen=True, slots=True)
class Model:
    """What is known of a kind of job before it runs."""

    iterations: Mapping[int, int]
    """Steps of a whole job with each batch."""
    smallest_local: int
    """Samples of one GPU and pass."""
    largest_local: int


class Truth(Protocol):
    """The real step times."""

    def step_s(self, model: str, gpus: int, batch: int) -> float:
        """Return the seconds of a step, inf if the job cannot run so."""


@dataclass(slots=True)
class LiveJob:
    """A job that was submitted and has not ended."""

    arrival: Arrival
    left: float
    """What is still to do of its work."""
    gpus: int = 0
    batch: int = 0
    restarting_s: float = 0.0
    """What is left of a restart."""
    measured_step_s: float | None = None
    """In the last interval, if the job made progress."""


class Scheduler(Protocol):
    """Decides about sizes."""

    def decide(self, jobs: Sequence[LiveJob]) -> list[Target]:
        """Return the size of each job, in the order of the jobs, which is that of their submission."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A simulated pool."""

    gpus: int = 64
    interval_s: float = 60.0
    restart_s: float = 30.0
    noise: float = 0.1
    """Measured speeds are the true ones times a random factor between 1 - noise and 1 + noise."""
    failures_per_gpu_hour: float = 0.0
    """A failed job starts again from its last checkpoint."""
    checkpoint_s: float = 600.0
    """Time between checkpoints. A change makes one too."""
    until_s: float = math.inf
    """When the simulation ends, even if jobs still run."""
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Change:
    """From this time on, a job has so many GPUs. 0 = it waits or has ended."""

    time_s: float
    job: str
    gpus: int
    batch: int


@dataclass(frozen=True, slots=True)
class Run:
    """What happened."""

    changes: tuple[Change, ...]
    completed_s: Mapping[str, float]
    """When each job ended."""
    failures: int


def simulate(
    arrivals: Sequence[Arrival],
    models: Mapping[str, Model],
    truth: Truth,
    scheduler: Scheduler,
    setting: Setting,
    watch: Callable[[float, Sequence[LiveJob]], None] = lambda _now, _jobs: None,
) -> Run:
    """Return what happens until all jobs have ended. `watch` is called after each decision."""
    world = _World(models, truth, setting)
    waiting = sorted(arrivals, key=lambda one: one.submitted_s)[::-1]
    now = 0.0
    while (waiting or world.live) and now < setting.until_s:
        if not world.live:
            now = max(now, math.ceil(waiting[-1].submitted_s / setting.interval_s) * setting.interval_s)
        while waiting and waiting[-1].submitted_s <= now:
            world.live.append(LiveJob(waiting[-1], waiting.pop().work))
        world.apply(now, scheduler.decide(world.live))
        watch(now, world.live)
        world.advance(now)
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
        """Give the jobs their sizes. Raises ValueError if they are more than the pool has."""
        if (total := sum(target.gpus for target in targets)) > self._setting.gpus:
            raise ValueError(f"{total} GPUs were given away, and the pool has {self._setting.gpus}")
        for job, target in zip(self.live, targets, strict=True):
            if (job.gpus, job.batch) != (target.gpus, target.batch):
                job.gpus, job.batch = target.gpus, target.batch
                job.restarting_s = self._setting.restart_s if target.gpus else 0.0
                self._since_checkpoint[job.arrival.job] = 0.0
                self.changes.append(Change(now, job.arrival.job, target.gpus, target.batch))

    def advance(self, now: float) -> None:
        """Let the jobs run for one interval."""
        interval = self._setting.interval_s
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
