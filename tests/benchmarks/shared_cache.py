"""Simulate one cache of several users under three rules: plain LRU, today's parts of users, and the fair lottery.

All three read the same requests. LRU and the lottery keep one copy for all; in the parts of users, each user has a copy
of their own. "Equal parts" is what a user would have from a private LRU cache of an N-th of the bytes. The lottery
runs in the same class as the service.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Protocol

from ffdl_batch.staging.cache.eviction_policy import Held, Need, choose_victims
from ffdl_batch.staging.shared_cache.fair_cache import FairCache
from tests.benchmarks.figures import Figure
from tests.benchmarks.knobs import Knobs

NAME = "shared-cache"
GB = 10**9
LIMIT = 1000 * GB
USERS, WINDOWS, READS = 8, 60, 160
"""`READS` of all users together in one window."""
WARM = 10
"""Windows that do not count."""
SEED = 7
TENANTS = ("tenant-0", "tenant-1")


@dataclass(frozen=True, slots=True)
class Read:
    """A job reads a data set. With an empty `user`, a window ends."""

    user: str
    item: str = ""
    size: int = 0


class Cache(Protocol):
    """A rule that is simulated."""

    def read(self, read: Read) -> bool:
        """Return whether it was a hit."""

    def end_window(self) -> None:
        """End a window."""


class Lru:
    """Remove what was not used for longest, whoever uses it."""

    def __init__(self, limit: int) -> None:
        self._limit, self._held = limit, OrderedDict[str, int]()

    def read(self, read: Read) -> bool:
        if read.item in self._held:
            self._held.move_to_end(read.item)
            return True
        if read.size <= self._limit:
            while sum(self._held.values()) + read.size > self._limit:
                self._held.popitem(last=False)
            self._held[read.item] = read.size
        return False

    def end_window(self) -> None:
        """Do nothing."""


class Parts:
    """Today's cache: a copy for each user, and max-min fair removal."""

    def __init__(self, limit: int) -> None:
        self._limit, self._held, self._clock = limit, dict[tuple[str, str], Held](), 0.0

    def read(self, read: Read) -> bool:
        self._clock += 1
        key = (read.user, read.item)
        hit = key in self._held
        if not hit:
            choice = choose_victims(list(self._held.values()), Need(self._limit, read.user, read.size))
            if not choice.enough:
                return False
            for victim in choice.victims:
                del self._held[victim.tenant, victim.key]
        self._held[key] = Held(read.user, read.item, read.size, self._clock)
        return hit

    def end_window(self) -> None:
        """Do nothing."""


class Fair:
    """The lottery."""

    def __init__(self, limit: int) -> None:
        self.cache = FairCache(limit, Random(SEED))

    def read(self, read: Read) -> bool:
        if self.cache.ask(read.user, read.item, read.size):
            return True
        victims = self.cache.victims(read.item, read.size)
        if victims is not None:
            for victim in victims:
                self.cache.drop(victim)
            self.cache.hold(read.item, read.size)
            self.cache.charge_fill(read.user, read.item, read.size)
        return False

    def end_window(self) -> None:
        self.cache.end_window()


class EqualParts:
    """A private LRU cache for each user."""

    def __init__(self, limit: int, users: int = USERS) -> None:
        self._part, self._caches = limit // users, dict[str, Lru]()

    def read(self, read: Read) -> bool:
        return self._caches.setdefault(read.user, Lru(self._part)).read(read)

    def end_window(self) -> None:
        """Do nothing."""


RULES: Sequence[tuple[str, Callable[[int], Cache]]] = (
    ("ffdl, shared", Fair), ("ffdl, parts of users", Parts), ("LRU", Lru), ("equal parts", EqualParts),
)  # fmt: skip


def generated(random: Random) -> Iterator[Read]:
    """Each user reads six sets of their own and six that all share, all equally often."""
    sizes = {f"all/{n}": random.randint(10, 120) * GB for n in range(6)}
    sizes |= {f"user-{u}/{n}": random.randint(10, 120) * GB for u in range(USERS) for n in range(6)}
    for _ in range(WINDOWS):
        for _ in range(READS):
            user = f"user-{random.randrange(USERS)}"
            item = f"{random.choice((user, 'all'))}/{random.randrange(6)}"
            yield Read(user, item, sizes[item])
        yield Read("")


def skewed(random: Random) -> Iterator[Read]:
    """Popular sets are read much more often (Zipf, 1.2), users are busy to different degrees, and half of the reads are
    of sets that all share."""
    sizes = {f"all/{n}": random.randint(10, 200) * GB for n in range(20)}
    sizes |= {f"user-{u}/{n}": random.randint(10, 200) * GB for u in range(USERS) for n in range(20)}
    zipf = [1 / (n + 1) ** 1.2 for n in range(20)]
    busy = [1 / (u + 1) for u in range(USERS)]
    for _ in range(WINDOWS):
        for _ in range(READS):
            user = f"user-{random.choices(range(USERS), busy)[0]}"
            item = f"{random.choice((user, 'all'))}/{random.choices(range(20), zipf)[0]}"
            yield Read(user, item, sizes[item])
        yield Read("")


def flooded(random: Random) -> Iterator[Read]:
    """As generated, and user 0 reads five new sets after each read of another user."""
    number = 0
    for read in generated(random):
        if read.user != "user-0":
            yield read
        for _ in range(5 if read.user else 0):
            number += 1
            yield Read("user-0", f"flood/{number}", 50 * GB)


def same_data(random: Random) -> Iterator[Read]:
    """Two tenants read the same 24 sets, all equally often; the cache cannot hold all of them."""
    sizes = [random.randint(10, 120) * GB for _ in range(24)]
    for _ in range(WINDOWS):
        for _ in range(READS):
            item = random.randrange(len(sizes))
            yield Read(random.choice(TENANTS), f"all/{item}", sizes[item])
        yield Read("")


WORKLOADS = (("generated", generated), ("skewed", skewed), ("flood of user 0", flooded))


def measure_shared_cache(_knobs: Knobs) -> list[Figure]:
    """Return, for each workload and rule, the hit rate by bytes of each user, and bytes from the store. Of the lottery
    also the least that a user gets in relation to equal parts, and the bytes that each user was charged for."""
    figures: list[Figure] = []
    for workload, make in WORKLOADS:
        reads = list(make(Random(SEED)))
        rates: dict[str, dict[str, float]] = {}
        for rule, cache_of in RULES:
            cache = cache_of(LIMIT)
            hits, wanted = _run(cache, reads)
            rates[rule] = {user: hits[user] / wanted[user] for user in sorted(wanted)}
            missed = (wanted.total() - hits.total()) / 1e12
            users = [rate for user, rate in rates[rule].items() if not (make is flooded and user == "user-0")]
            figures += [
                Figure(NAME, f"{workload}: hits by bytes, of each user", rule, "%", [100 * rate for rate in users]),
                Figure(NAME, f"{workload}: read from the store", rule, "TB", [missed]),
            ]
            if isinstance(cache, Fair):
                kept = [cache.cache.kept[user] / WINDOWS / 1e9 for user in sorted(wanted)]
                figures.append(Figure(NAME, f"{workload}: kept bytes charged, per user", rule, "GB", kept))
        for rule, mine in rates.items():
            ratios = [mine[user] / alone for user, alone in rates["equal parts"].items() if alone]
            if rule != "equal parts" and ratios:
                figures.append(Figure(NAME, f"{workload}: hits, compared with equal parts", rule, "x", ratios))
    return figures


def measure_same_data(_knobs: Knobs) -> list[Figure]:
    """Return, for two tenants who train on the same data, hits by bytes of each, and bytes from the store."""
    reads = list(same_data(Random(SEED)))
    figures = []
    for rule, cache_of in RULES:
        cache = EqualParts(LIMIT, len(TENANTS)) if cache_of is EqualParts else cache_of(LIMIT)
        hits, wanted = _run(cache, reads)
        rates = [100 * hits[tenant] / wanted[tenant] for tenant in TENANTS]
        figures += [
            Figure("same-data", "hits by bytes, of each tenant", rule, "%", rates),
            Figure("same-data", "read by the tenants", rule, "TB", [wanted.total() / 1e12]),
            Figure("same-data", "of it from the store", rule, "TB", [(wanted.total() - hits.total()) / 1e12]),
        ]
    return figures


def _run(cache: Cache, reads: Sequence[Read]) -> tuple[Counter[str], Counter[str]]:
    """Return bytes of hits and of all reads by user, after the first windows."""
    hits, wanted, window = Counter[str](), Counter[str](), 0
    for read in reads:
        if not read.user:
            cache.end_window()
            window += 1
            continue
        hit = cache.read(read)
        if window >= WARM:
            wanted[read.user] += read.size
            hits[read.user] += read.size if hit else 0
    return hits, wanted
