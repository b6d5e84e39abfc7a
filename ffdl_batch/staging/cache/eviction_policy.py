"""Decide what is removed from a full cache: max-min fair between tenants. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

from ffdl_batch.host.fast_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Held:
    """What a tenant has in the cache. `free`: no process uses it, so it may be removed."""

    tenant: str
    key: str
    bytes: int
    used_at: float
    free: bool = True


@dataclass(frozen=True, slots=True)
class Need:
    """Capacity that a tenant asks for in a cache of `limit_bytes`. With "" and 0, only the limit is kept."""

    limit_bytes: int
    tenant: str = ""
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class Choice:
    """What is removed. `enough`: there is enough capacity then."""

    victims: tuple[Held, ...]
    enough: bool


def choose_victims(usage: Sequence[Held], need: Need) -> Choice:
    """Return what to remove: only free entries, and none if there is enough capacity.

    The tenant that holds most loses entries first, the least recently used one before the others. A tenant below an
    equal share loses nothing to others.
    """
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
    """Return the next tenant that loses an entry. The asking tenant loses entries before any tenant that holds less."""
    for tenant, size in sorted(holds.items(), key=lambda pair: (-pair[1], pair[0])):
        if tenant == asking:
            return tenant if free[tenant] else None
        if size > share and free[tenant]:
            return tenant
    return None


def _needed(taken: list[Held], size_bytes: int) -> tuple[Held, ...]:
    """Return the entries without those that can stay, because a later one freed enough for them."""
    kept: list[Held] = []
    for held in sorted(taken, key=lambda held: -held.used_at):
        if held.bytes <= size_bytes:
            size_bytes -= held.bytes
        else:
            kept.append(held)
    return tuple(reversed(kept))
