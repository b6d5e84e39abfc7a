"""Allocate the GPUs of one type to jobs so that the sum of their values is as large as possible.

Dynamic programming finds the exact optimum (arXiv 2006.13878), even if values drop at node boundaries, stay constant or
are missing for some sizes. :mod:`ffdl_batch.elastic.job_values` computes the values. This module must not depend on
what they mean, when a job last changed its size, or what a change costs. Pure.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ffdl_batch.elastic.job_values import Floats, Mask
from ffdl_batch.host.fast_dataclass import dataclass

Sizes = npt.NDArray[np.int64]
Choices = tuple[Sizes, Floats]
"""Numbers of GPUs in ascending order, and their values."""

STRIDE = 16
"""Distance between the rows that are kept for backtracking. Rows between them are recomputed near the path."""
PRECISION = 1e-9
"""Precision of prices, as a fraction of the largest difference between two values of a job. Rounding errors are far
smaller."""


class InfeasibleAllocation(ValueError):
    """There are too few GPUs for the smallest permitted number of every job."""


@dataclass(frozen=True, slots=True)
class Allocation:
    """The number of GPUs of each job, and the sum of the values."""

    gpus: tuple[int, ...]
    value: float


def allocate(values: Sequence[Floats], gpus: int) -> Allocation:
    """Return the allocation of at most `gpus` GPUs with the largest sum of values.

    ``values[j][k]`` is the value of job j with k GPUs, -inf if k is not permitted. Among allocations of equal value,
    the one with the fewest GPUs is chosen, and of these the one that gives the fewest GPUs to the last job, then to the
    one before it, and so on. Raises InfeasibleAllocation.
    """
    table = stack_values(values, gpus)
    smallest_sizes(table, gpus)  # raises if they are too many
    possible = _possible_optima(table, gpus)
    smallest: Sizes = possible.argmax(axis=1)
    # Sizes are relative to the smallest size of each job, so that rows have no unreachable cells.
    sizes = np.arange(table.shape[1]) - smallest[:, None]
    choices = [(sizes[job, keep], table[job, keep]) for job, keep in enumerate(possible)]
    return _allocation(table, smallest + _largest_sum(choices, gpus - int(smallest.sum())))


def allocate_greedily(values: Sequence[Floats], gpus: int) -> Allocation:
    """Return the greedy allocation: repeatedly grow the job that gains most per GPU from its next size.

    Starts with the smallest permitted size of each job. A job keeps its size if the next one gains nothing, even if a
    later one would. The result is therefore optimal only if all values are concave. This is the baseline for
    :func:`allocate`. Raises InfeasibleAllocation.
    """
    table = stack_values(values, gpus)
    chosen = smallest_sizes(table, gpus)
    room = gpus - int(chosen.sum())
    waiting: list[tuple[float, int, int]] = []

    def enter_next_size(job: int) -> None:
        row, now = table[job], int(chosen[job])
        later = np.flatnonzero(row[now + 1 :] > -np.inf)
        if later.size and (gain := row[size := now + 1 + int(later[0])] - row[now]) > 0:
            heapq.heappush(waiting, (-gain / (size - now), job, size))

    for job in range(len(table)):
        enter_next_size(job)
    while waiting:
        _, job, size = heapq.heappop(waiting)
        if size - chosen[job] <= room:
            room -= size - int(chosen[job])
            chosen[job] = size
            enter_next_size(job)
    return _allocation(table, chosen)


def stack_values(values: Sequence[Floats], gpus: int) -> Floats:
    """Return the values as one table of jobs and numbers of GPUs, without the numbers above `gpus`."""
    width = min(gpus + 1, max(map(len, values), default=1))
    table = np.full((len(values), width), -np.inf)
    for row, given in zip(table, values, strict=True):
        row[: len(given)] = given[:width]
    return table


def smallest_sizes(table: Floats, gpus: int) -> Sizes:
    """Return the smallest permitted number of GPUs of each job. Raises InfeasibleAllocation."""
    permitted = table > -np.inf
    if not permitted.any(axis=1).all():
        job = int(permitted.any(axis=1).argmin())
        raise InfeasibleAllocation(f"values[{job}] permits no number of GPUs up to {gpus}")
    smallest: Sizes = permitted.argmax(axis=1)
    if (needed := int(smallest.sum())) > gpus:
        raise InfeasibleAllocation(f"the jobs need at least {needed} GPUs, but only {gpus} are available")
    return smallest


def _allocation(table: Floats, sizes: Sizes) -> Allocation:
    return Allocation(tuple(sizes.tolist()), math.fsum(table[np.arange(len(table)), sizes].tolist()))


def dual_prices(table: Floats, gpus: Sizes, precision: float = PRECISION) -> tuple[Floats, float]:
    """Return a price per GPU for each type, and an upper bound on the value of every allocation.

    ``table[j, t, k]`` is the value of job j with k GPUs of type t. Each job has one type. With any prices, the best net
    values of all jobs plus the price of all GPUs are an upper bound (Lagrangian dual). The ellipsoid method finds
    prices whose bound exceeds the lowest one by at most `precision`, as a fraction of the largest difference between
    two values of a job. With one type, this is a bisection.
    """
    jobs, types, width = table.shape
    sizes = np.arange(width)
    span = _span(table)
    prices = np.full(types, span / 2)
    shape = np.eye(types) * types * (span / 2) ** 2
    best, bound = prices, math.inf
    while True:
        if prices.min() >= 0:
            net = (table - prices[:, None] * sizes).reshape(jobs, types * width)
            choice = net.argmax(axis=1)
            slope = gpus - np.bincount(choice // width, weights=choice % width, minlength=types)
            value = float(net[np.arange(jobs), choice].sum() + prices @ gpus)
            if value < bound:
                best, bound = prices, value
        else:
            slope = np.where(np.arange(types) == prices.argmin(), -1.0, 0.0)
        move = shape @ slope
        reach = math.sqrt(max(float(slope @ move), 0.0))
        if not reach > precision * span:  # also if a value is not finite
            return best, bound
        move /= reach
        prices = prices - move / (types + 1)
        along = np.outer(move, move)
        shape = types**2 * (along / (types + 1) ** 2 + (shape - along) / max(types**2 - 1, 1))


def _span(table: Floats) -> float:
    """Return the largest difference between two values of one job. No GPU is worth more."""
    most = table.max(axis=(1, 2), initial=-np.inf)
    least = np.where(table > -np.inf, table, np.inf).min(axis=(1, 2), initial=np.inf)
    return float((most - least).max(initial=0))


def _possible_optima(table: Floats, gpus: int) -> Mask:
    """Return which sizes an optimal allocation can have, based on the reduced costs of the Lagrangian dual.

    With a price per GPU, a job with k GPUs loses `regret[k]` against its best size at that price. No allocation is
    worth more than the dual bound minus the regret of any of its sizes. So a size whose regret exceeds the distance
    between the bound and the value of a known allocation is in no optimal allocation.
    """
    prices, bound = dual_prices(table[:, None, :], np.array([gpus]))
    net = table - prices[0] * np.arange(table.shape[1])
    regret = net.max(axis=1, keepdims=True) - net
    permitted = regret < np.inf
    rounding = PRECISION * float(np.abs(np.where(permitted, table, 0.0)).max(axis=1, initial=0).sum())
    possible: Mask = permitted & (regret <= bound - _known_value(table, regret, gpus) + rounding)
    return possible


def _known_value(table: Floats, regret: Floats, gpus: int) -> float:
    """Return the value of a good allocation: sizes without regret, largest first, until the GPUs are used up."""
    # The price is imprecise, so sizes that are equally good at the exact price differ slightly.
    level = regret <= 2 * PRECISION * table.shape[1] * _span(table[:, None, :])
    low = level.argmax(axis=1)
    high = level.shape[1] - 1 - level[:, ::-1].argmax(axis=1)
    chosen = np.where(np.cumsum(high - low) <= gpus - low.sum(), high, low)
    room = gpus - int(chosen.sum())
    if room < 0:
        return -math.inf
    known = table[np.arange(len(table)), chosen]
    fitting = np.arange(table.shape[1]) <= chosen[:, None] + room
    return float(known.sum() + (np.where(fitting, table, -np.inf) - known[:, None]).max(initial=0))


def _largest_sum(choices: Sequence[Choices], gpus: int) -> Sizes:
    """Return the size of each job in the best sum with at most `gpus` GPUs. Each job's first size is 0."""
    row = np.zeros(1)
    kept = []
    for number, choice in enumerate(choices):
        if number % STRIDE == 0:
            kept.append(row)
        row = _extend(row, choice, gpus)
    left = int(row.argmax())
    chosen = np.zeros(len(choices), dtype=np.int64)
    for number in reversed(range(len(kept))):
        block = choices[number * STRIDE : (number + 1) * STRIDE]
        # The path cannot have been below this cell when the block began.
        lowest = max(0, left - sum(int(sizes[-1]) for sizes, _ in block))
        rows = [kept[number][lowest : left + 1]]
        for choice in block[:-1]:
            rows.append(_extend(rows[-1], choice, left - lowest))
        for job in reversed(range(len(block))):
            size = _size_at(rows[job], block[job], left - lowest)
            chosen[number * STRIDE + job] = size
            left -= size
    return chosen


def _extend(row: Floats, choice: Choices, gpus: int) -> Floats:
    """Return the best sums with one more job: cell k is the largest of ``row[k - size] + value`` over its sizes."""
    sizes, values = choice
    longer = np.full(min(gpus, len(row) - 1 + int(sizes[-1])) + 1, -np.inf)
    sums = np.empty(len(row))
    for size, value in zip(sizes.tolist(), values.tolist(), strict=True):
        count = min(len(row), len(longer) - size)
        if count <= 0:
            break
        part = longer[size : size + count]
        np.maximum(part, np.add(row[:count], value, out=sums[:count]), out=part)
    return longer


def _size_at(row: Floats, choice: Choices, cell: int) -> int:
    """Return the smallest size by which :func:`_extend` reached the value of the cell."""
    sizes, values = choice
    before = cell - sizes
    reachable = (before >= 0) & (before < len(row))
    sums = np.where(reachable, row[np.clip(before, 0, len(row) - 1)] + values, -np.inf)
    return int(sizes[sums.argmax()])
