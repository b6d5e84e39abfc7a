"""Puts off claimed jobs that wait for other jobs, for elements of their array, or for a scheduler.

A waiting job costs nothing while nothing happens. It is remembered with the states of what it waits for. Each step of
the deployer asks once for all of these states, and only jobs for which something changed are looked at again. The
memory may be lost: each job that is put off becomes due again after a pause.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ffdl_batch.domain.job.array import why_elements_wait
from ffdl_batch.domain.job.job import Change, Job, JobId
from ffdl_batch.domain.job_state import JobState, RequestedAction
from ffdl_batch.domain.scheduler_errors import InvalidRequest
from ffdl_batch.host.backoff import growing_pause
from ffdl_batch.ports.capabilities import SubmitsArrays
from ffdl_batch.services.backends.adapters import Adapters
from ffdl_batch.services.backends.submit_limits import LONGEST_PAUSE_S
from ffdl_batch.services.incidents.incident_recorder import refusal
from ffdl_batch.services.job_storage import JobStorage
from ffdl_batch.services.submission.job_dependencies import (
    Dependency,
    Outlook,
    Standing,
    begin_of,
    judge_dependency,
    own_trainings,
    read_dependency,
)
from ffdl_batch.store import LeasedJob, Store

FIRST_PAUSE_S = 2.0
LONGEST_DEPENDENCY_PAUSE_S = 10.0
NEVER_CODE = "C105"


@dataclass(slots=True)
class _Awaited:
    """A training as it was when somebody last looked at it for `waiters`."""

    state: JobState
    waiters: set[JobId] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class _Asked:
    """A leased job, what it depends on, and how that stands."""

    leased: LeasedJob
    dependency: Dependency
    standing: Standing


class Waiting:
    """Jobs that wait for other jobs. One per deployer."""

    def __init__(self, storage: JobStorage) -> None:
        self._storage = storage
        self._awaited: dict[JobId, _Awaited] = {}

    def wake(self) -> None:
        """Make the jobs due whose trainings moved since they were put off: one query, whatever waits."""
        if not self._awaited:
            return
        states = {job.id: job.state for job in self._storage.store.get_many(self._awaited)}
        moved = [training for training, seen in self._awaited.items() if states.get(training) is not seen.state]
        woken = {waiter for training in moved for waiter in self._awaited[training].waiters}
        if woken:
            self._storage.store.make_due(woken)
        for training in moved:
            del self._awaited[training]

    def sort_out(self, leased: Sequence[LeasedJob]) -> tuple[list[LeasedJob], int]:
        """Those of `leased` that wait for no training; the others are put off, or ended because what they wait for
        can never happen. Returns also how many were ended."""
        texts = [one.job.spec.batch.dependency for one in leased if _may_wait(one.job)]
        trainings = own_trainings(self._storage, texts)
        if not trainings:
            return list(leased), 0
        asked = self._judge(leased, trainings)
        ended = self._write(asked)
        self._put_off([one for one in asked if one.standing.outlook is Outlook.OPEN], trainings)
        held = {one.leased.job.id for one in asked}
        return [one for one in leased if one.job.id not in held], ended

    def _judge(self, leased: Sequence[LeasedJob], trainings: Mapping[str, Job]) -> list[_Asked]:
        """The jobs that may not be sent now."""
        read: list[tuple[LeasedJob, Dependency]] = []
        for one in leased:
            try:
                dependency = read_dependency(one.job.spec.batch.dependency, trainings)
            except InvalidRequest:  # accepted by an older release: planning it says the same, and ends the job
                continue
            if _may_wait(one.job) and dependency.conditions:
                read.append((one, dependency))
        begins = self._begins([dependency for _, dependency in read])
        now = self._storage.clock.now()
        asked = [_Asked(one, what, judge_dependency(what, trainings, begins, now)) for one, what in read]
        return [one for one in asked if one.standing.outlook is not Outlook.TRUE]

    def _begins(self, dependencies: Sequence[Dependency]) -> dict[str, float]:
        """When the trainings began whose begin matters; one query for all of them."""
        wanted = {one.training for what in dependencies for one in what.conditions if one.is_about_begin}
        histories = self._storage.store.histories(wanted) if wanted else {}
        found = {training: begin_of(history) for training, history in histories.items()}
        return {training: at for training, at in found.items() if at is not None}

    def _write(self, asked: Sequence[_Asked]) -> int:
        """Say on each job what it waits for, or why it ends; returns how many ended."""
        now = self._storage.clock.now()
        changes: list[tuple[Job, Change]] = []
        for one in asked:
            job, standing = one.leased.job, one.standing
            if standing.outlook is Outlook.NEVER:
                message = f"its dependency can never be satisfied: {standing.sentence}"
                steps = ((JobState.FAILED, now),)
                noted = (refusal(job, NEVER_CODE, message, now),)
                changes.append((job, Change(steps, message=message, error_code=NEVER_CODE, incidents=noted)))
            elif job.pending_reason != (reason := f"Dependency: {standing.sentence}"):
                changes.append((job, Change(columns={"pending_reason": reason})))
        written = self._storage.store.apply_many(changes)
        return sum(job.state is JobState.FAILED for job in written)

    def _put_off(self, waiting: Sequence[_Asked], trainings: Mapping[str, Job]) -> None:
        """Remember what was seen, then give the leases back: what moves from now on wakes them."""
        store = self._storage.store
        pauses: defaultdict[tuple[float, str], list[JobId]] = defaultdict(list)
        for one in waiting:
            job = one.leased.job
            for condition in one.dependency.conditions:
                training = trainings[condition.training]
                self._awaited.setdefault(training.id, _Awaited(training.state)).waiters.add(job.id)
            pauses[_pause(one), one.leased.lease_token].append(job.id)
        now = store.now() if waiting else 0.0
        for (pause, token), ids in pauses.items():
            store.put_off(ids, token, now + pause)


def _may_wait(job: Job) -> bool:
    """Return whether the job is at its first attempt: later attempts wait for nothing."""
    return job.state is JobState.PENDING and job.attempt == 0 and job.requested_action is RequestedAction.NONE


def _pause(one: _Asked) -> float:
    pause = growing_pause(one.leased.deploy_tries + 1, FIRST_PAUSE_S, LONGEST_DEPENDENCY_PAUSE_S)
    return pause if one.standing.again_s is None else min(pause, one.standing.again_s)


PAUSE_S = 120.0
"""How long an element is put off that waits for others of its array."""


@dataclass(slots=True)
class _Held:
    """The elements of an array that wait, in their order, and how many may go. `woken` were told to, and may have to be
    leased once more."""

    limit: int
    waiting: dict[JobId, None] = field(default_factory=dict)
    woken: set[JobId] = field(default_factory=set)


class Throttle:
    """Elements that wait because their array has a limit. One per deployer."""

    def __init__(self, store: Store, adapters: Adapters) -> None:
        self._store, self._adapters = store, adapters
        self._held: dict[str, _Held] = {}
        self._begins = True

    def wake(self) -> None:
        """Make as many elements due as there is room for: one query, whatever waits."""
        if self._begins:
            self._store.make_elements_due()
            self._begins = False
        if not self._held:
            return
        counts = self._store.count_handed_over(self._held)
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
            self._store.make_due(due)

    def sort_out(self, leased: Sequence[LeasedJob]) -> list[LeasedJob]:
        """Those of `leased` that may go; the others are put off."""
        arrays: defaultdict[str, list[LeasedJob]] = defaultdict(list)
        for one in leased:
            if one.job.spec.element is not None and _may_wait(one.job) and self._limit(one.job) is not None:
                arrays[one.job.spec.element.array].append(one)
        if not arrays:
            return list(leased)
        counts = self._store.count_handed_over(arrays)
        late = [one for array, waiting in arrays.items() for one in self._late(waiting, counts.get(array, 0))]
        self._put_off(late)
        held = {one.job.id for one in late}
        return [one for one in leased if one.job.id not in held]

    def _limit(self, job: Job) -> int | None:
        """How many elements of the job's array may be at its scheduler at once (None = all)."""
        assert job.spec.element is not None
        adapters = self._adapters
        if isinstance(adapters.get(job.backend), SubmitsArrays):
            return job.spec.element.limit
        limits = (job.spec.element.limit, adapters.facts(job.backend).elements_at_once)
        return min((limit for limit in limits if limit is not None), default=None)

    def _late(self, waiting: Sequence[LeasedJob], under_way: int) -> Sequence[LeasedJob]:
        """Those of one array that have to wait, when its scheduler has `under_way` of its elements."""
        job = waiting[0].job
        limit = self._limit(job)
        assert limit is not None and job.spec.element is not None  # sort_out has asked
        if not under_way and isinstance(self._adapters.get(job.backend), SubmitsArrays):
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
        store = self._store
        changes: list[tuple[Job, Change]] = []
        for one in late:
            reason = why_elements_wait(self._limit(one.job))
            if one.job.pending_reason != reason:
                changes.append((one.job, Change(columns={"pending_reason": reason})))
        if changes:
            store.apply_many(changes)
        store.put_off([one.job.id for one in late], late[0].lease_token, store.now() + PAUSE_S)


LEAST_PAUSE_S = 2.0
"""While one of them is tried."""


@dataclass(frozen=True, slots=True)
class Held:
    """A job that waits, for how long at most, and why."""

    job: Job
    pause_s: float
    reason: str


def hold_back(store: Store, adapters: Adapters, leased: Sequence[LeasedJob]) -> list[LeasedJob]:
    """Those of `leased` (of one claim) that may go; the others are put off."""
    held = choose_held(adapters, [one.job for one in leased])
    if held:
        _put_off(store, held, leased[0].lease_token)
    waiting = {one.job.id for one in held}
    return [one for one in leased if one.job.id not in waiting]


def choose_held(adapters: Adapters, jobs: Sequence[Job]) -> list[Held]:
    """Those of `jobs` that have to wait. Sends no request. The job that is tried is one whose submissions had an
    answer, if there is one."""
    held: list[Held] = []
    tried: set[tuple[str, ...]] = set()
    for job in sorted(jobs, key=adapters.submit_limits.count_unanswered):
        if job.requested_action is not RequestedAction.NONE:
            continue
        name, rooms = job.backend, adapters.submit_limits
        is_refused = job.state is JobState.PENDING and rooms.wait_s(job, alone=True) > 0
        if adapters.is_out(name) and not is_refused:
            waits_for: tuple[str, ...] = (name,)
            wait_s, reason = adapters.wait_s(name), adapters.lacks(name) or f"{name} does not answer; it is asked again"
            may_go = adapters.may_ask(name)
        elif job.state is JobState.PENDING and (reason := rooms.why_full(job)):
            waits_for, wait_s = rooms.waits_for(job), rooms.wait_s(job)
            may_go = wait_s == 0
        else:
            continue
        if may_go and waits_for not in tried:
            tried.add(waits_for)
        else:
            held.append(Held(job, min(max(wait_s, LEAST_PAUSE_S), LONGEST_PAUSE_S), reason))
    return held


def _put_off(store: Store, held: Sequence[Held], lease_token: str) -> None:
    untold = [(one.job, Change(columns={"pending_reason": one.reason})) for one in held
              if one.job.pending_reason != one.reason]  # fmt: skip
    if untold:
        store.apply_many(untold, lease_token=lease_token)
    now = store.now()
    for pause_s in sorted({one.pause_s for one in held}):
        store.put_off([one.job.id for one in held if one.pause_s == pause_s], lease_token, now + pause_s)
