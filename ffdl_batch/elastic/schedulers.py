"""Schedulers of a simulated pool: FIFO, and the elastic policy with measured speeds.

For each model, the elastic scheduler gets the number of steps with each batch, and the batches that fit into a GPU. It
measures the speeds of running jobs, and uses them for later jobs of the same model.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from ffdl_batch.elastic.job_values import Floats
from ffdl_batch.elastic.policy import PoolJob, Rules, Target, decide
from ffdl_batch.elastic.simulator import Arrival, LiveJob, Model
from ffdl_batch.elastic.step_times import StepTimes
from ffdl_batch.elastic.throughput_model import Measurement
from ffdl_batch.host.fast_dataclass import dataclass

GROWTH = 4
"""Maximum GPUs of a job, as a multiple of the largest measured number. Predictions far beyond it are unreliable."""

Batches = Callable[[Arrival, Model], Sequence[int]]
"""Returns the batches that a job may have."""


def free_batches(_arrival: Arrival, model: Model) -> Sequence[int]:
    """Return all batches whose number of steps is known."""
    return sorted(model.iterations)


def submitted_batch(arrival: Arrival, _model: Model) -> Sequence[int]:
    """Return the submitted batch."""
    return [arrival.batch]


def smallest_batch(_arrival: Arrival, model: Model) -> Sequence[int]:
    """Return the smallest batch."""
    return [min(model.iterations)]


def largest_batch(_arrival: Arrival, model: Model) -> Sequence[int]:
    """Return the largest batch."""
    return [max(model.iterations)]


def random_batch(arrival: Arrival, model: Model) -> Sequence[int]:
    """Return a random batch, always the same one for the same job."""
    return [random.Random(arrival.job).choice(sorted(model.iterations))]  # noqa: S311 - no secret


class Fifo:
    """Runs jobs as submitted, in the order of submission."""

    def __init__(self, gpus: int) -> None:
        self._gpus = gpus

    def decide(self, jobs: Sequence[LiveJob]) -> list[Target]:
        """Start the next jobs as long as all of their GPUs are free."""
        free = self._gpus - sum(job.gpus for job in jobs)
        targets = []
        for job in jobs:
            wanted = job.arrival.gpus
            if job.gpus or wanted <= free:
                targets.append(Target(wanted, job.arrival.batch))
                free -= 0 if job.gpus else wanted
            else:
                targets.append(Target(0, 0))
                free = 0
        return targets


@dataclass(frozen=True, slots=True)
class Pool:
    """Properties of the pool that a scheduler knows."""

    gpus: int = 64
    node_gpus: int = 4
    restart_s: float = 30.0
    """Cost of a change."""
    most_for_job: int = 64
    """Maximum number of GPUs of one job."""


@dataclass(frozen=True, slots=True, eq=False)
class _Choices:
    """The possible sizes of a model: rows are batches, columns are numbers of GPUs from 0."""

    batches: tuple[int, ...]
    gpus: npt.NDArray[np.int64]
    nodes: npt.NDArray[np.int64]
    local: npt.NDArray[np.int64]
    passes: npt.NDArray[np.int64]
    permitted: npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class _Whole:
    """The duration of a whole job with its best permitted batch, for each number of GPUs."""

    seconds: Floats
    batch: npt.NDArray[np.int64]
    by_batch: Floats


class Elastic:
    """Allocates GPUs with :mod:`ffdl_batch.elastic.policy`, based on measured speeds."""

    def __init__(self, models: Mapping[str, Model], pool: Pool, rules: Rules, batches: Batches = free_batches) -> None:
        self._models, self._pool, self._rules, self._batches = models, pool, rules, batches
        self._choices = {name: _list_choices(model, pool) for name, model in models.items()}
        self._measured = {name: StepTimes() for name in models}
        self._whole: dict[tuple[str, tuple[int, ...]], _Whole] = {}

    def decide(self, jobs: Sequence[LiveJob]) -> list[Target]:
        """Add the measurements of the last interval, and return the size of each job."""
        for job in jobs:
            if job.measured_step_s is not None:
                self._measure(job, job.measured_step_s)
        return decide([self._view(job) for job in jobs], self._pool.gpus, self._rules)

    def _measure(self, job: LiveJob, step_s: float) -> None:
        choices, model = self._choices[job.arrival.model], job.arrival.model
        row = choices.batches.index(job.batch)
        local, passes = int(choices.local[row, job.gpus]), int(choices.passes[row, job.gpus])
        nodes = int(choices.nodes[job.gpus])
        self._measured[model].add(Measurement(nodes, job.gpus, local, step_s, passes=passes))
        if self._measured[model].changed:
            self._whole = {key: whole for key, whole in self._whole.items() if key[0] != model}

    def _view(self, job: LiveJob) -> PoolJob:
        whole = self._predict(job.arrival)
        remaining = whole.seconds * job.left
        remaining[self._most(job, remaining) + 1 :] = math.inf
        present = math.inf
        if job.gpus:
            row = self._choices[job.arrival.model].batches.index(job.batch)
            present = float(whole.by_batch[row, job.gpus]) * job.left
        return PoolJob(
            job.arrival.job,
            remaining,
            whole.batch,
            self._pool.restart_s,
            gpus=job.gpus,
            present_batch=job.batch,
            present_remaining_s=present,
            restarting_s=job.restarting_s,
            tenant=job.arrival.tenant,
        )

    def _most(self, job: LiveJob, remaining: Floats) -> int:
        measured = self._measured[job.arrival.model].most_gpus
        smallest = int(np.isfinite(remaining).argmax())
        return max(smallest, GROWTH * measured if measured else job.arrival.gpus)

    def _predict(self, arrival: Arrival) -> _Whole:
        model, choices = self._models[arrival.model], self._choices[arrival.model]
        permitted = tuple(self._batches(arrival, model))
        if not self._measured[arrival.model].most_gpus and arrival.batch in permitted:
            permitted = (arrival.batch,)  # without measurements, no batch is known to be better
        key = (arrival.model, permitted)
        if key not in self._whole:
            by_batch = self._step_times(arrival.model) * np.array(
                [[model.iterations[batch]] for batch in choices.batches]
            )
            mine = np.where(np.isin(choices.batches, permitted)[:, None], by_batch, math.inf)
            best = mine.argmin(axis=0)
            self._whole[key] = _Whole(mine.min(axis=0), np.array(choices.batches)[best], by_batch)
        return self._whole[key]

    def _step_times(self, model: str) -> Floats:
        """Return the predicted seconds of a step; inf for sizes that are not permitted."""
        choices = self._choices[model]
        step_s = np.full(choices.permitted.shape, math.inf)
        asked = choices.permitted
        nodes, gpus = np.broadcast_to(choices.nodes, asked.shape), np.broadcast_to(choices.gpus, asked.shape)
        predicted = self._measured[model].predict(
            nodes[asked], gpus[asked], choices.local[asked], choices.passes[asked]
        )
        step_s[asked] = predicted.step_s
        return step_s


def _list_choices(model: Model, pool: Pool) -> _Choices:
    batches = tuple(sorted(model.iterations))
    gpus = np.arange(min(pool.gpus, pool.most_for_job) + 1)
    with np.errstate(divide="ignore"):
        share = np.ceil(np.array(batches)[:, None] / gpus)
    permitted = (share >= model.smallest_local) & (gpus > 0)
    share = np.where(permitted, share, 1)
    passes = np.ceil(share / model.largest_local).astype(np.int64)
    local = np.ceil(share / passes).astype(np.int64)
    return _Choices(batches, gpus, -(-gpus // pool.node_gpus), local, passes, permitted)
