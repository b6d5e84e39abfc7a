"""The best allocation by another way: all sums, cell by cell, without any of the optimiser's code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ffdl_batch.elastic.job_values import Floats

Optimum = tuple[float, int, tuple[int, ...]]
"""The value, minus the number of GPUs, and minus the size of each job, the last job first: the largest is the best."""


def best_allocation(values: Sequence[Floats], gpus: int) -> Optimum | None:
    """Return the best allocation, None if there is none."""
    cells: dict[int, Optimum] = {0: (0.0, 0, ())}
    for row in values:
        longer: dict[int, Optimum] = {}
        for used, (value, _, sizes) in cells.items():
            for size, more in enumerate(row.tolist()):
                if more > float("-inf") and used + size <= gpus:
                    found = (value + more, -used - size, (-size, *sizes))
                    longer[used + size] = max(found, longer.get(used + size, found))
        cells = longer
    return max(cells.values(), default=None)


def best_typed_value(values: Mapping[str, Sequence[Floats]], gpus: Mapping[str, int]) -> float | None:
    """Return the largest value with several types, None if there is no allocation."""
    names = tuple(gpus)
    cells: dict[tuple[int, ...], float] = {(0,) * len(names): 0.0}
    for job in range(len(values[names[0]])):
        longer: dict[tuple[int, ...], float] = {}
        for used, value in cells.items():
            for kind, name in enumerate(names):
                for size, more in enumerate(values[name][job].tolist()):
                    now = (*used[:kind], used[kind] + size, *used[kind + 1 :])
                    if more > float("-inf") and now[kind] <= gpus[name]:
                        longer[now] = max(value + more, longer.get(now, float("-inf")))
        cells = longer
    return max(cells.values(), default=None)
