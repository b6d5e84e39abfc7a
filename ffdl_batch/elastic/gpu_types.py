"""Allocate GPUs of several types to jobs that use one type each.

The prices of the Lagrangian dual show which type suits which job. Each type in turn then gets its exact optimum, and
jobs can move there from another type. The result is not always optimal, so it comes with an upper bound. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from ffdl_batch.elastic.job_values import Floats, Mask
from ffdl_batch.elastic.optimiser import InfeasibleAllocation, Sizes, allocate, dual_prices, stack_values
from ffdl_batch.host.fast_dataclass import dataclass

PRECISION = 1e-4
"""Precision of prices, as a fraction of the largest difference between two values of a job. The gap is rarely as
small."""
ROUNDS = 4
"""Maximum number of improvement rounds."""


@dataclass(frozen=True, slots=True)
class TypedAllocation:
    """The GPUs of each job and their type, the sum of the values, and an upper bound on the sum of any allocation."""

    types: tuple[str | None, ...]
    """None if the job has no GPUs."""
    gpus: tuple[int, ...]
    value: float
    upper_bound: float

    @property
    def gap(self) -> float:
        """The maximum by which the sum of the best allocation is larger."""
        return self.upper_bound - self.value


def allocate_types(values: Mapping[str, Sequence[Floats]], gpus: Mapping[str, int]) -> TypedAllocation:
    """Return a good allocation of GPUs of several types; each job has GPUs of one type.

    ``values[name][j][k]`` is the value of job j with k GPUs of this type, -inf if that is not permitted. A job's value
    without GPUs is the largest that any type has for it. Raises InfeasibleAllocation if no allocation gives every job
    what it needs, or if this heuristic does not find one.
    """
    names = tuple(gpus)
    counts = np.array([gpus[name] for name in names], dtype=np.int64)
    table, needy = _one_table([stack_values(values[name], gpus[name]) for name in names])
    prices, bound = dual_prices(table, counts, PRECISION)
    plan = _Plan(table, counts)
    plan.begin(prices)
    best = plan
    for _ in range(ROUNDS):
        plan = plan.copy()
        plan.improve(prices)
        plan.improve(np.zeros_like(prices))
        if plan.value() <= best.value():
            break
        best = plan
    if (needy & (best.sizes == 0)).any():
        raise InfeasibleAllocation("no allocation was found that gives each job the GPUs that it needs")
    return TypedAllocation(
        types=tuple(names[kind] if size else None for kind, size in zip(best.types, best.sizes, strict=True)),
        gpus=tuple(best.sizes.tolist()),
        value=best.value(),
        upper_bound=bound,
    )


def _one_table(tables: Sequence[Floats]) -> tuple[Floats, Mask]:
    """Return the values of jobs, types and numbers of GPUs as one array, and which jobs must have GPUs.

    These jobs get a value without GPUs that is so low that no gain of other jobs outweighs it.
    """
    width = max(table.shape[1] for table in tables)
    joined = np.stack(
        [np.pad(table, ((0, 0), (0, width - table.shape[1])), constant_values=-np.inf) for table in tables], axis=1
    )
    waiting = joined[:, :, 0].max(axis=1)
    needy: Mask = waiting == -np.inf
    most = joined.max(axis=(1, 2))
    least = np.where(joined > -np.inf, joined, np.inf).min(axis=(1, 2))
    if (hopeless := np.flatnonzero(most == -np.inf)).size:
        raise InfeasibleAllocation(f"no type permits a number of GPUs for job {hopeless[0]}, counted from 0")
    joined[:, :, 0] = np.where(needy, least - float((most - least).sum()) - 1.0, waiting)[:, None]
    return joined, needy


class _Plan:
    """A mutable allocation: the type and the number of GPUs of each job. A job without GPUs can have any type."""

    def __init__(self, table: Floats, gpus: Sizes) -> None:
        self.table, self.gpus = table, gpus
        self.types = np.zeros(len(table), dtype=np.int64)
        self.sizes = np.zeros(len(table), dtype=np.int64)

    def copy(self) -> _Plan:
        copy = _Plan(self.table, self.gpus)
        copy.types, copy.sizes = self.types.copy(), self.sizes.copy()
        return copy

    def values(self) -> Floats:
        chosen: Floats = self.table[np.arange(len(self.table)), self.types, self.sizes]
        return chosen

    def value(self) -> float:
        return math.fsum(self.values().tolist())

    def begin(self, prices: Floats) -> None:
        """Allocate the types in turn. A job waits for a later type if it gains more from it at its price."""
        net = (self.table - prices[:, None] * np.arange(self.table.shape[2])).max(axis=2)
        for kind in range(len(self.gpus)):
            rows = self.table[:, kind].copy()
            rows[:, 0] = np.maximum(rows[:, 0], net[:, kind + 1 :].max(axis=1, initial=-np.inf))
            rows[self.sizes > 0, 1:] = -np.inf
            self._fill(kind, rows)

    def improve(self, prices: Floats) -> None:
        """Allocate each type again. A job leaves another type if it gains more than the price of what it has there."""
        for kind in range(len(self.gpus)):
            rows = self.table[:, kind].copy()
            kept = np.maximum(self.values() - prices[self.types] * self.sizes, rows[:, 0])
            rows[:, 0] = np.where(self.types == kind, rows[:, 0], kept)
            self._fill(kind, rows)

    def _fill(self, kind: int, rows: Floats) -> None:
        chosen = np.array(allocate(list(rows), int(self.gpus[kind])).gpus, dtype=np.int64)
        moved = (chosen > 0) | (self.types == kind)
        self.types[moved] = kind
        self.sizes[moved] = chosen[moved]
