"""Who has to make room in a full cache. Pure.

Another policy (a lottery that is fair in proportion, for one) is another class with the same method.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Held:
    """What a tenant has in the cache. `free`: nobody uses it, and who asks may remove it."""

    tenant: str
    key: str
    bytes: int
    used_at: float
    free: bool = True


@dataclass(frozen=True, slots=True)
class Need:
    """Room that a tenant asks for in a cache of so many bytes ("" and 0 = only that the limit is kept)."""

    limit_bytes: int
    tenant: str = ""
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class Choice:
    """What has to go; `enough`: then there is room."""

    victims: tuple[Held, ...]
    enough: bool


class Policy(Protocol):
    """Decides on eviction."""

    def victims(self, usage: Sequence[Held], need: Need) -> Choice:
        """What has to go so that there is room. Only what is free; nothing where it fits anyway."""


class MaxMinFair:
    """Who holds most gives first, what was not used for longest; nobody below an equal share gives to another."""

    def victims(self, usage: Sequence[Held], need: Need) -> Choice:
        holds: Counter[str] = Counter()
        for held in usage:
            holds[held.tenant] += held.bytes
        if need.bytes:
            holds[need.tenant] += need.bytes
        free: defaultdict[str, list[Held]] = defaultdict(list)
        for held in sorted(usage, key=lambda held: (-held.used_at, held.key)):
            if held.free:
                free[held.tenant].append(held)
        share = need.limit_bytes / max(1, sum(1 for size in holds.values() if size))
        taken: list[Held] = []
        if need.bytes > need.limit_bytes:
            return Choice((), False)
        while holds.total() > need.limit_bytes:
            giver = _giver(holds, free, share, need.tenant)
            if giver is None:
                return Choice(tuple(taken), False)
            held = free[giver].pop()
            holds[giver] -= held.bytes
            taken.append(held)
        return Choice(_needed(taken, need.limit_bytes - holds.total()), True)


def _giver(holds: Counter[str], free: defaultdict[str, list[Held]], share: float, asking: str) -> str | None:
    """The next tenant that gives; who asks gives before anybody who holds less."""
    for tenant, size in sorted(holds.items(), key=lambda pair: (-pair[1], pair[0])):
        if tenant == asking:
            return tenant if free[tenant] else None
        if size > share and free[tenant]:
            return tenant
    return None


def _needed(taken: list[Held], room: int) -> tuple[Held, ...]:
    """Without those that need not go, because a later one made room for them, too."""
    kept: list[Held] = []
    for held in sorted(taken, key=lambda held: -held.used_at):
        if held.bytes <= room:
            room -= held.bytes
        else:
            kept.append(held)
    return tuple(reversed(kept))
