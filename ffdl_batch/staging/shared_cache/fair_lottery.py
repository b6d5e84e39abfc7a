"""Choose what a shared cache holds: a lottery over its possible contents that is proportionally fair. Pure.

The rule is that of ROBUS (Kunjir, Fain, Munagala, Babu, SIGMOD 2017): maximise the sum of the logarithms of what
tenants get in expectation. ``docs/shared-cache-rule.md`` has the proof of what follows from it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from random import Random

from ffdl_batch.host.fast_dataclass import dataclass

Demands = Mapping[str, Mapping[str, float]]
"""Tenant -> item -> value of the item for the tenant, 0 or more."""
Content = frozenset[str]

TOLERANCE = 0.005
ROUNDS = 80
STEPS = 300
"""Maximum steps of Cover's algorithm after each new content."""
NODES = 4000
"""Maximum nodes of a search for the best content. If they are not enough, the gap grows accordingly."""
LEAST_CHANCE = 1e-4


@dataclass(frozen=True, slots=True)
class Lottery:
    """Contents of the cache and their chances, which sum to 1."""

    contents: tuple[Content, ...] = ()
    chances: tuple[float, ...] = ()
    gap: float = 0.0
    """The guarantees hold up to a factor of 1 + gap. Computed from an upper bound, so never too small."""

    def draw(self, random: Random) -> Content:
        """Return the content of one window."""
        return random.choices(self.contents, self.chances)[0] if self.contents else frozenset()

    def value(self, demand: Mapping[str, float]) -> float:
        """Return what a tenant with this demand gets in expectation."""
        return sum(
            chance * _value(content, demand) for content, chance in zip(self.contents, self.chances, strict=True)
        )


def fair_lottery(demands: Demands, sizes: Mapping[str, int], limit: int) -> Lottery:
    """Return the proportionally fair lottery over contents of at most `limit` bytes.

    New contents come from a knapsack whose weights are the gradient; Cover's algorithm for log-optimal portfolios
    distributes the chances. Ends when no content could raise the objective by more than the tolerance.
    """
    tenants = [
        useful
        for demand in demands.values()
        if (useful := {i: v for i, v in demand.items() if v > 0 and sizes[i] <= limit})
    ]
    if not tenants:
        return Lottery()
    contents = list(dict.fromkeys(best_content(demand, sizes, limit)[0] for demand in tenants))
    table = [[_value(content, demand) for demand in tenants] for content in contents]
    chances = [1 / len(contents)] * len(contents)
    gap = float("inf")
    for turn in range(ROUNDS):
        chances = _balance(table, chances)
        likely = [n for n, chance in enumerate(chances) if chance >= LEAST_CHANCE]
        whole = sum(chances[n] for n in likely)
        contents, table, chances = (
            [contents[n] for n in likely],
            [table[n] for n in likely],
            [chances[n] / whole for n in likely],
        )
        gap, found = _gap(chances, table, tenants, sizes, limit)
        if gap <= TOLERANCE or turn == ROUNDS - 1:
            break
        if found not in contents:
            share = 1 / (len(contents) + 1)
            chances = [chance * (1 - share) for chance in chances] + [share]
            contents.append(found)
            table.append([_value(found, demand) for demand in tenants])
    return Lottery(tuple(contents), tuple(chances), max(0.0, gap))


def shares(lottery: Lottery, demands: Demands) -> dict[str, dict[str, float]]:
    """Return item -> tenant -> the part of the item's bytes that the tenant is charged for. Parts of an item sum to 1.

    A tenant's part is in proportion to what the item contributes to what the tenant gets. So what others need as much
    costs less, and each tenant is charged the same in total, measured in these contributions.
    """
    weights: dict[str, dict[str, float]] = defaultdict(dict)
    for tenant, demand in demands.items():
        whole = lottery.value(demand)
        for item, value in demand.items():
            if value > 0 and whole > 0:
                weights[item][tenant] = value / whole
    return {
        item: {tenant: weight / sum(mine.values()) for tenant, weight in mine.items()} for item, mine in weights.items()
    }


def best_content(weights: Mapping[str, float], sizes: Mapping[str, int], limit: int) -> tuple[Content, float]:
    """Return the content with the highest total weight that was found, and an upper bound for all contents."""
    items = sorted(
        (item for item, weight in weights.items() if weight > 0 and sizes[item] <= limit),
        key=lambda item: (-weights[item] / sizes[item], item),
    )
    filled = list(accumulate((sizes[item] for item in items), initial=0))
    worth = list(accumulate((weights[item] for item in items), initial=0.0))

    def bound(start: int, room: int) -> float:
        end = bisect_right(filled, filled[start] + room) - 1
        rest = room - (filled[end] - filled[start])
        part = rest * weights[items[end]] / sizes[items[end]] if end < len(items) else 0.0
        return worth[end] - worth[start] + part

    best, chosen = _greedy(items, weights, sizes, limit)
    slack = 1 + TOLERANCE / 10
    stack: list[tuple[int, int, float, tuple[object, ...]]] = [(0, limit, 0.0, ())]
    for _ in range(NODES):
        if not stack:
            return frozenset(chosen), best * slack
        start, room, value, taken = stack.pop()
        if value > best:
            best, chosen = value, list(_unwound(taken))
        if start == len(items) or value + bound(start, room) <= best * slack:
            continue
        item = items[start]
        stack.append((start + 1, room, value, taken))
        if sizes[item] <= room:
            stack.append((start + 1, room - sizes[item], value + weights[item], (item, taken)))
    return frozenset(chosen), max(best * slack, bound(0, limit))


def _greedy(
    items: Sequence[str], weights: Mapping[str, float], sizes: Mapping[str, int], limit: int
) -> tuple[float, list[str]]:
    chosen, room = [], limit
    for item in items:
        if sizes[item] <= room:
            chosen.append(item)
            room -= sizes[item]
    return sum(weights[item] for item in chosen), chosen


def _unwound(taken: tuple[object, ...]) -> Iterator[str]:
    while taken:
        item, taken = taken  # type: ignore[assignment]
        yield str(item)


def _balance(table: Sequence[Sequence[float]], chances: list[float]) -> list[float]:
    """Return better chances for the contents: each is multiplied by its part of the gradient, which keeps the sum."""
    count = len(table[0])
    for _ in range(STEPS):
        whole = [sum(chance * row[n] for chance, row in zip(chances, table, strict=True)) for n in range(count)]
        gains = [sum(value / whole[n] for n, value in enumerate(row)) / count for row in table]
        chances = [chance * gain for chance, gain in zip(chances, gains, strict=True)]
        if max(gains) <= 1 + TOLERANCE / 4:
            break
    return chances


def _gap(
    chances: Sequence[float],
    table: Sequence[Sequence[float]],
    tenants: Sequence[Mapping[str, float]],
    sizes: Mapping[str, int],
    limit: int,
) -> tuple[float, Content]:
    """Return how much more than the number of tenants a content can be worth, relative to it, and such a content."""
    weights: dict[str, float] = defaultdict(float)
    for n, demand in enumerate(tenants):
        whole = sum(chance * row[n] for chance, row in zip(chances, table, strict=True))
        for item, value in demand.items():
            weights[item] += value / whole
    found, most = best_content(weights, sizes, limit)
    return most / len(tenants) - 1, found


def _value(content: Content, demand: Mapping[str, float]) -> float:
    return sum(value for item, value in demand.items() if item in content)
