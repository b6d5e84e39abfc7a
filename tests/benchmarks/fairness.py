"""How long jobs of regular tenants wait while greedy ones submit thousands, and how equally the greedy ones are served.

The rules are those of hub and daemons (:mod:`ffdl_batch.site.hub.fair_window`, `turn_pauses`). Time, the daemons and
the scheduler are simulated: the scheduler answers to SERVERS submissions at once, each in SERVICE_S. Beside it: one
queue for all jobs in the order of their acceptance, as a daemon for all users would have it.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from ffdl_batch.services.deployment.admission import turn_pauses
from ffdl_batch.services.deployment.deployer import BATCH
from ffdl_batch.site.hub.fair_window import FairWindow
from tests.benchmarks.figures import Figure
from tests.benchmarks.knobs import Knobs

GREEDY, GREEDY_JOBS = 10, 900
REGULAR, REGULAR_JOBS = 40, 10
SPREAD_S = 30.0
"""The jobs of regular tenants are accepted at random times within this many seconds."""
SERVERS, SERVICE_S = 8, 0.04
SEED = 1
AIM = ">= 0.95"


@dataclass(slots=True)
class Tenant:
    """A tenant with one daemon. `due` are the waiting jobs: when they are tried again, and when they were accepted."""

    number: int
    weight: float
    due: list[tuple[float, int, float]] = field(default_factory=list)
    running: int = 0
    done: list[tuple[float, float]] = field(default_factory=list)
    """When each job was accepted, and when the scheduler answered."""


class World:
    """The events of the simulation, in the order of their times."""

    def __init__(self) -> None:
        self.now = 0.0
        self._count = itertools.count()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._queue: deque[Callable[[], None]] = deque()
        self._busy = 0

    def at(self, when: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._events, (when, next(self._count), act))

    def run(self) -> None:
        while self._events:
            self.now, _, act = heapq.heappop(self._events)
            act()

    def submit(self, answered: Callable[[], None]) -> None:
        """Call sbatch, which waits in the scheduler's queue."""
        self._queue.append(answered)
        self._serve()

    def _serve(self) -> None:
        while self._busy < SERVERS and self._queue:
            self._busy += 1
            answered = self._queue.popleft()
            self.at(self.now + SERVICE_S, partial(self._end, answered))

    def _end(self, answered: Callable[[], None]) -> None:
        self._busy -= 1
        answered()
        self._serve()


def accept_all(world: World, tenants: Sequence[Tenant], accept: Callable[[Tenant], None]) -> None:
    """Let greedy tenants submit all their jobs at the beginning, and regular ones at random times."""
    chance = random.Random(SEED)
    for _ in range(GREEDY_JOBS):
        for tenant in tenants[:GREEDY]:
            world.at(0.0, partial(accept, tenant))
    for tenant in tenants[GREEDY:]:
        for _ in range(REGULAR_JOBS):
            world.at(chance.uniform(0.0, SPREAD_S), partial(accept, tenant))


def make_tenants() -> list[Tenant]:
    """Half of the greedy tenants have the weight 2."""
    return [Tenant(number, 2.0 if number < GREEDY and number % 2 else 1.0) for number in range(GREEDY + REGULAR)]


def through_one_queue() -> list[Tenant]:
    """All jobs in the order of their acceptance."""
    world, tenants = World(), make_tenants()

    def accept(tenant: Tenant) -> None:
        accepted_at = world.now
        world.submit(lambda: tenant.done.append((accepted_at, world.now)))

    accept_all(world, tenants, accept)
    world.run()
    return tenants


def through_fair_window() -> list[Tenant]:
    """Jobs as the hub grants them."""
    world, tenants = World(), make_tenants()
    window, numbers = FairWindow(clock=lambda: world.now), itertools.count()

    def accept(tenant: Tenant) -> None:
        heapq.heappush(tenant.due, (world.now, next(numbers), world.now))
        world.at(world.now, lambda: step(tenant))

    def step(tenant: Tenant) -> None:
        if tenant.running:  # the next step begins when the jobs of this one are answered
            return
        claimed: list[tuple[float, int, float]] = []
        while tenant.due and tenant.due[0][0] <= world.now and len(claimed) < BATCH:
            claimed.append(heapq.heappop(tenant.due))
        if not claimed:
            if tenant.due:
                world.at(tenant.due[0][0], lambda: step(tenant))
            return
        group, ids = f"tenant {tenant.number}", [str(number) for _, number, _ in claimed]
        room = window.room(group, tenant.weight, tenant.number, len(ids))
        window.grant(group, tenant.number, ids[:room])
        pauses = turn_pauses(ids[room:], room)
        for _, number, accepted_at in claimed[room:]:
            heapq.heappush(tenant.due, (world.now + pauses[str(number)], number, accepted_at))
        tenant.running = room
        for job, (_, _, accepted_at) in zip(ids[:room], claimed[:room], strict=True):
            world.submit(partial(answered, tenant, job, accepted_at))
        if not room:
            world.at(tenant.due[0][0], lambda: step(tenant))

    def answered(tenant: Tenant, job: str, accepted_at: float) -> None:
        window.note_handed(tenant.number, [job])
        tenant.done.append((accepted_at, world.now))
        tenant.running -= 1
        if not tenant.running:
            step(tenant)

    accept_all(world, tenants, accept)
    world.run()
    return tenants


def jain_index(values: Sequence[float]) -> float:
    """1 if all values are equal, 1/n if one has everything (Jain, Chiu and Hawe 1984)."""
    return sum(values) ** 2 / (len(values) * sum(value * value for value in values))


def judged(tenants: Sequence[Tenant]) -> tuple[list[float], float]:
    """Return the waits of regular tenants' jobs in seconds, and the Jain index of greedy tenants' rates by weight."""
    assert sum(len(one.done) for one in tenants) == GREEDY * GREEDY_JOBS + REGULAR * REGULAR_JOBS
    greedy, regular = tenants[:GREEDY], tenants[GREEDY:]
    waits = [answered - accepted for one in regular for accepted, answered in one.done]
    until = min(one.done[-1][1] for one in greedy)  # all of them have jobs until then
    return waits, jain_index([sum(answered <= until for _, answered in one.done) / one.weight for one in greedy])


def measure_fairness(_: Knobs) -> list[Figure]:
    """Return the waits of regular tenants' jobs, and the fairness between greedy ones."""
    figures = []
    for who, run in (("ffdl", through_fair_window), ("one queue", through_one_queue)):
        tenants = run()
        waits, index = judged(tenants)
        last = max(one.done[-1][1] for one in tenants)
        figures += [
            Figure("fairness", "a job of a regular tenant, from acceptance to the scheduler", who, "s", waits, "<= 2"),
            Figure("fairness", "Jain index of greedy tenants' rates by weight", who, "", [index], AIM),
            Figure("fairness", "all jobs handed over", who, "s", [last]),
        ]
    return figures
