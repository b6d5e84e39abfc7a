"""What a shared cache holds, keeps and charges, by windows. Pure: the service and the simulation do what it says.

At the end of each window the fair lottery decides which items have a right to stay in the next one. They are not
fetched ahead. Other items use what is left, and are removed first, the least recently used one before the others.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Mapping
from random import Random

from ffdl_batch.staging.shared_cache.fair_lottery import Content, Lottery, fair_lottery, shares

MEMORY = 0.5
"""Part of the demand that counts in the next window, too."""
LEAST_DEMAND = 1.0
MOST_ITEMS = 2000
"""Maximum items in a tenant's demand. A tenant that asks for more loses the smallest demands."""


class FairCache:
    """The state of one cache. Not safe for threads."""

    def __init__(self, limit: int, random: Random) -> None:
        self.limit, self._random = limit, random
        self.held: OrderedDict[str, int] = OrderedDict()
        """Item -> size, the least recently used first."""
        self.reserved: dict[str, int] = {}
        """Fill -> bytes that will be held when it ends."""
        self.lottery = Lottery()
        self.licensed: Content = frozenset()
        self.filled: defaultdict[str, float] = defaultdict(float)
        """Tenant -> bytes of fills that the tenant was charged for."""
        self.kept: defaultdict[str, float] = defaultdict(float)
        """Tenant -> bytes that were kept at the ends of windows, and for which the tenant was charged."""
        self._demands: dict[str, dict[str, float]] = {}
        self._sizes: dict[str, int] = {}
        self._shares: Mapping[str, Mapping[str, float]] = {}

    @property
    def bytes(self) -> int:
        """Return what is held or reserved."""
        return sum(self.held.values()) + sum(self.reserved.values())

    def ask(self, tenant: str, item: str, size: int) -> bool:
        """Record that the tenant reads the item. Return whether it is held."""
        demand = self._demands.setdefault(tenant, {})
        demand[item] = demand.get(item, 0.0) + size
        self._sizes[item] = size
        if len(demand) > 2 * MOST_ITEMS:
            self._demands[tenant] = _largest(demand)
        if item in self.held:
            self.held.move_to_end(item)
            return True
        return False

    def victims(self, item: str, size: int) -> list[str] | None:
        """Return what has to be removed for a fill; None if the item is not admitted. Changes nothing."""
        room = self.limit - self.bytes
        if size > self.limit:
            return None
        found = []
        for other, bytes_held in self.held.items():
            if room >= size:
                break
            if other not in self.licensed and other != item:
                found.append(other)
                room += bytes_held
        return found if room >= size else None

    def hold(self, item: str, size: int) -> None:
        """Record that the item is held."""
        self.held[item] = size
        self.held.move_to_end(item)

    def drop(self, item: str) -> None:
        """Record that the item is no longer held."""
        self.held.pop(item, None)

    def rename(self, item: str, known: str) -> None:
        """Record that an item turned out to be the same as another one, whose name is `known`."""
        for demand in self._demands.values():
            if item in demand:
                demand[known] = demand.get(known, 0.0) + demand.pop(item)
                self._sizes[known] = self._sizes[item]

    def charge_fill(self, tenant: str, item: str, size: int) -> None:
        """Charge a fill to the tenants that need the item, or to the one that asked if it was not known before."""
        for payer, part in (self._shares.get(item) or {tenant: 1.0}).items():
            self.filled[payer] += part * size

    def end_window(self) -> None:
        """Charge for what is held, and draw which items have a right to stay in the next window."""
        demands, sizes = self.demands()
        self.begin_window(demands, fair_lottery(demands, sizes, self.limit))

    def demands(self) -> tuple[dict[str, dict[str, float]], dict[str, int]]:
        """Return copies of the demand of each tenant, and of the sizes."""
        largest = {tenant: dict(_largest(demand)) for tenant, demand in self._demands.items()}
        return largest, dict(self._sizes)

    def begin_window(self, demands: Mapping[str, Mapping[str, float]], lottery: Lottery) -> None:
        """Begin a window with the lottery of these demands."""
        self.lottery, self._shares = lottery, shares(lottery, demands)
        for item, size in self.held.items():
            for payer, part in self._shares.get(item, {}).items():
                self.kept[payer] += part * size
        self.licensed = lottery.draw(self._random)
        self._demands = {
            tenant: left
            for tenant, demand in self._demands.items()
            if (left := {i: v * MEMORY for i, v in _largest(demand).items() if v * MEMORY >= LEAST_DEMAND})
        }
        named = {item for demand in self._demands.values() for item in demand}
        self._sizes = {item: size for item, size in self._sizes.items() if item in named}


def _largest(demand: dict[str, float]) -> dict[str, float]:
    if len(demand) <= MOST_ITEMS:
        return demand
    return dict(sorted(demand.items(), key=lambda pair: -pair[1])[:MOST_ITEMS])
