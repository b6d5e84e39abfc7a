"""Elements of arrays of which only so many may be at a scheduler at the same time.

Either their owner says so (``%2``), or the backend, where each waiting job costs the machine something. Elements above
the number stay PENDING, are put off, and are remembered; each step of the deployer asks once how many elements those
arrays have at their schedulers, and lets as many go as there is room for. A backend with native arrays gets the first
of an array together: it counts them itself. The memory may be lost: all elements are due when a deployer begins, and
each of them after PAUSE_S at most.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from ffdl_batch.domain.job.array import why_elements_wait
from ffdl_batch.domain.job.job import Change, Job, JobId
from ffdl_batch.domain.job_state import JobState, Wish
from ffdl_batch.ports.capabilities import SubmitsArrays
from ffdl_batch.services.platform import Platform
from ffdl_batch.store import LeasedJob

PAUSE_S = 120.0


@dataclass(slots=True)
class _Held:
    """The elements of an array that wait, in their order, and how many may go. `woken` were told to, and may have to be
    leased once more."""

    limit: int
    waiting: dict[JobId, None] = field(default_factory=dict)
    woken: set[JobId] = field(default_factory=set)


class Throttle:
    """One per deployer."""

    def __init__(self, platform: Platform) -> None:
        self._platform = platform
        self._held: dict[str, _Held] = {}
        self._begins = True

    def wake(self) -> None:
        """Make as many elements due as there is room for: one query, whatever waits."""
        if self._begins:
            self._platform.store.make_elements_due()
            self._begins = False
        if not self._held:
            return
        counts = self._platform.store.count_handed_over(self._held)
        due: list[JobId] = []
        for array, held in list(self._held.items()):
            room = held.limit - counts.get(array, 0)
            going = list(held.waiting)[: max(0, room)]
            due += going
            for job_id in going:
                del held.waiting[job_id]
            held.woken.update(going)
            if not held.waiting:
                del self._held[array]
        if due:
            self._platform.store.make_due(due)

    def sort_out(self, leased: Sequence[LeasedJob]) -> list[LeasedJob]:
        """Those of `leased` that may go; the others are put off."""
        arrays: defaultdict[str, list[LeasedJob]] = defaultdict(list)
        for one in leased:
            if one.job.spec.element is not None and _may_wait(one.job) and self._limit(one.job) is not None:
                arrays[one.job.spec.element.array].append(one)
        if not arrays:
            return list(leased)
        counts = self._platform.store.count_handed_over(arrays)
        late = [one for array, waiting in arrays.items() for one in self._late(waiting, counts.get(array, 0))]
        self._put_off(late)
        held = {one.job.id for one in late}
        return [one for one in leased if one.job.id not in held]

    def _limit(self, job: Job) -> int | None:
        """How many elements of the job's array may be at its scheduler at once (None = all)."""
        assert job.spec.element is not None
        adapters = self._platform.adapters
        if isinstance(adapters.get(job.backend), SubmitsArrays):
            return job.spec.element.limit
        limits = (job.spec.element.limit, adapters.facts(job.backend).elements_at_once)
        return min((limit for limit in limits if limit is not None), default=None)

    def _late(self, waiting: Sequence[LeasedJob], under_way: int) -> Sequence[LeasedJob]:
        """Those of one array that have to wait, when its scheduler has `under_way` of its elements."""
        job = waiting[0].job
        limit = self._limit(job)
        assert limit is not None and job.spec.element is not None  # sort_out has asked
        if not under_way and isinstance(self._platform.adapters.get(job.backend), SubmitsArrays):
            return ()
        held = self._held.get(job.spec.element.array, _Held(limit))
        turn = self._in_turn(waiting, held)[: max(0, limit - under_way)]
        for one in turn:
            held.waiting.pop(one.job.id, None)
            held.woken.discard(one.job.id)
        going = {one.job.id for one in turn}
        late = [one for one in waiting if one.job.id not in going]
        if late:
            held.waiting.update(dict.fromkeys(one.job.id for one in late))
            self._held[job.spec.element.array] = held
        return late

    def _in_turn(self, waiting: Sequence[LeasedJob], held: _Held) -> Sequence[LeasedJob]:
        """Those whose turn it may be. Room that came since :meth:`wake` is not for elements that nobody has seen before
        while others wait; who was woken, or has waited for PAUSE_S, goes whoever else waits."""
        if held.waiting.keys() <= {one.job.id for one in waiting}:
            return waiting
        return [one for one in waiting if one.job.id in held.woken or one.job.id in held.waiting]

    def _put_off(self, late: Sequence[LeasedJob]) -> None:
        if not late:
            return
        store = self._platform.store
        changes: list[tuple[Job, Change]] = []
        for one in late:
            reason = why_elements_wait(self._limit(one.job))
            if one.job.pending_reason != reason:
                changes.append((one.job, Change(columns={"pending_reason": reason})))
        if changes:
            store.apply_many(changes)
        store.put_off([one.job.id for one in late], late[0].lease_token, store.now() + PAUSE_S)


def _may_wait(job: Job) -> bool:
    """Later attempts wait for nothing: their job was let go before."""
    return job.state is JobState.PENDING and job.attempt == 0 and job.wish is Wish.NONE
