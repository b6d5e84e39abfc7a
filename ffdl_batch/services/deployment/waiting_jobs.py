"""Puts off claimed jobs that wait for other jobs, for elements of their array, or for a scheduler.

A waiting job costs nothing until something changes. It is remembered with the states of the jobs that it waits for.
Each step of the deployer reads all of these states with one query, and checks only jobs for which a state changed. The
memory may be lost, because each job that is put off becomes due again after a pause.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import field

from ffdl_batch.domain.job.array import why_elements_wait
from ffdl_batch.domain.job.job import Change, Job, JobId
from ffdl_batch.domain.job_state import JobState, RequestedAction
from ffdl_batch.domain.scheduler_errors import InvalidRequest
from ffdl_batch.host.backoff import growing_pause
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.ports.capabilities import SubmitsArrays
from ffdl_batch.services.backends.adapters import Adapters
from ffdl_batch.services.backends.submit_limits import LONGEST_PAUSE_S
from ffdl_batch.services.deployment.step_lease import Delay, StepLease
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
    """The state of a job when it was last read for `waiters`."""

    state: JobState
    waiters: set[JobId] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class _Asked:
    """A leased job, its dependency, and the state of that."""

    leased: LeasedJob
    dependency: Dependency
    standing: Standing


class Waiting:
    """Puts off jobs that wait for other jobs. One per deployer."""

    def __init__(self, storage: JobStorage) -> None:
        self._storage = storage
        self._awaited: dict[JobId, _Awaited] = {}

    def wake(self) -> None:
        """Make jobs due if the jobs that they wait for have changed. One query for any number of jobs."""
        if not self._awaited:
            return
        states = {job.id: job.state for job in self._storage.store.get_many(self._awaited)}
        moved = [training for training, seen in self._awaited.items() if states.get(training) is not seen.state]
        woken = {waiter for training in moved for waiter in self._awaited[training].waiters}
        if woken:
            self._storage.store.make_due(woken)
        for training in moved:
            del self._awaited[training]

    def sort_out(self, lease: StepLease, leased: Sequence[LeasedJob]) -> tuple[list[LeasedJob], int]:
        """Return those of `leased` whose dependencies are satisfied, and how many jobs ended.

        Jobs end if their dependencies can never be satisfied. The others are put off.
        """
        texts = [one.job.spec.batch.dependency for one in leased if _may_wait(one.job)]
        trainings = own_trainings(self._storage, texts)
        if not trainings:
            return list(leased), 0
        asked = self._judge(leased, trainings)
        ended = self._end([one for one in asked if one.standing.outlook is Outlook.NEVER])
        self._put_off(lease, [one for one in asked if one.standing.outlook is Outlook.OPEN], trainings)
        held = {one.leased.job.id for one in asked}
        return [one for one in leased if one.job.id not in held], ended

    def _judge(self, leased: Sequence[LeasedJob], trainings: Mapping[str, Job]) -> list[_Asked]:
        """Return the jobs that must not be submitted now."""
        read: list[tuple[LeasedJob, Dependency]] = []
        for one in leased:
            try:
                dependency = read_dependency(one.job.spec.batch.dependency, trainings)
            except InvalidRequest:  # planning it raises the same error and ends the job
                continue
            if _may_wait(one.job) and dependency.conditions:
                read.append((one, dependency))
        begins = self._begins([dependency for _, dependency in read])
        now = self._storage.clock.now()
        asked = [_Asked(one, what, judge_dependency(what, trainings, begins, now)) for one, what in read]
        return [one for one in asked if one.standing.outlook is not Outlook.TRUE]

    def _begins(self, dependencies: Sequence[Dependency]) -> dict[str, float]:
        """Return the start times that the dependencies need. One query."""
        wanted = {one.training for what in dependencies for one in what.conditions if one.is_about_begin}
        histories = self._storage.store.histories(wanted) if wanted else {}
        found = {training: begin_of(history) for training, history in histories.items()}
        return {training: at for training, at in found.items() if at is not None}

    def _end(self, hopeless: Sequence[_Asked]) -> int:
        """End jobs whose dependencies can never be satisfied. Return how many ended."""
        now = self._storage.clock.now()
        changes: list[tuple[Job, Change]] = []
        for one in hopeless:
            job, message = one.leased.job, f"its dependency can never be satisfied: {one.standing.sentence}"
            incidents = (refusal(job, NEVER_CODE, message, now),)
            steps = ((JobState.FAILED, now),)
            changes.append((job, Change(steps, message=message, error_code=NEVER_CODE, incidents=incidents)))
        return len(self._storage.store.apply_many(changes))

    def _put_off(self, lease: StepLease, waiting: Sequence[_Asked], trainings: Mapping[str, Job]) -> None:
        """Remember the states that were read, then release the jobs, so that every later change wakes them."""
        for one in waiting:
            for condition in one.dependency.conditions:
                training = trainings[condition.training]
                self._awaited.setdefault(training.id, _Awaited(training.state)).waiters.add(one.leased.job.id)
        lease.put_off([_delay(one.leased.job, _pause(one), f"Dependency: {one.standing.sentence}") for one in waiting])


def _may_wait(job: Job) -> bool:
    """Return whether the job is at its first attempt. Later attempts do not wait."""
    return job.state is JobState.PENDING and job.attempt == 0 and job.requested_action is RequestedAction.NONE


def _pause(one: _Asked) -> float:
    pause = growing_pause(one.leased.deploy_tries + 1, FIRST_PAUSE_S, LONGEST_DEPENDENCY_PAUSE_S)
    return pause if one.standing.again_s is None else min(pause, one.standing.again_s)


def _delay(job: Job, pause_s: float, reason: str) -> Delay:
    """Return the delay of a job that was just claimed. A reason that it shows already is not written again."""
    return Delay(job, pause_s, "" if job.pending_reason == reason else reason)


PAUSE_S = 120.0
"""Pause of an element that waits for others of its array."""


@dataclass(slots=True)
class _Held:
    """The waiting elements of an array."""

    limit: int
    waiting: dict[JobId, None] = field(default_factory=dict)
    """The elements that wait, in their order."""
    woken: set[JobId] = field(default_factory=set)
    """The elements that were made due, but have not been claimed yet."""


class Throttle:
    """Puts off elements that wait because of the limit of their array. One per deployer."""

    def __init__(self, store: Store, adapters: Adapters) -> None:
        self._store, self._adapters = store, adapters
        self._held: dict[str, _Held] = {}
        self._begins = True

    def wake(self) -> None:
        """Make as many elements due as the limits allow. One query for any number of arrays."""
        if self._begins:
            self._store.make_elements_due()
            self._begins = False
        if not self._held:
            return
        counts = self._store.count_handed_over(self._held)
        due: list[JobId] = []
        for array, held in list(self._held.items()):
            free = held.limit - counts.get(array, 0)
            going = list(held.waiting)[: max(0, free)]
            due += going
            for job_id in going:
                del held.waiting[job_id]
            held.woken.update(going)
            if not held.waiting:
                del self._held[array]
        if due:
            self._store.make_due(due)

    def sort_out(self, lease: StepLease, leased: Sequence[LeasedJob]) -> list[LeasedJob]:
        """Return those of `leased` that may be submitted. The others are put off."""
        arrays: defaultdict[str, list[LeasedJob]] = defaultdict(list)
        for one in leased:
            if one.job.spec.element is not None and _may_wait(one.job) and self._limit(one.job) is not None:
                arrays[one.job.spec.element.array].append(one)
        if not arrays:
            return list(leased)
        counts = self._store.count_handed_over(arrays, besides=lease.token)
        late = [one for array, waiting in arrays.items() for one in self._late(waiting, counts.get(array, 0))]
        lease.put_off([_delay(one.job, PAUSE_S, why_elements_wait(self._limit(one.job))) for one in late])
        held = {one.job.id for one in late}
        return [one for one in leased if one.job.id not in held]

    def _limit(self, job: Job) -> int | None:
        """Return how many elements of the job's array the scheduler may have at once (None: all)."""
        assert job.spec.element is not None
        adapters = self._adapters
        if isinstance(adapters.get(job.backend), SubmitsArrays):
            return job.spec.element.limit
        limits = (job.spec.element.limit, adapters.facts(job.backend).elements_at_once)
        return min((limit for limit in limits if limit is not None), default=None)

    def _late(self, waiting: Sequence[LeasedJob], under_way: int) -> Sequence[LeasedJob]:
        """Return the elements of one array that must wait while its scheduler has `under_way` of its elements."""
        job = waiting[0].job
        limit = self._limit(job)
        assert limit is not None and job.spec.element is not None  # sort_out has checked it
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
        """Return the elements that may be next. While other elements wait, new elements do not use capacity that became
        free after :meth:`wake`. Elements that were woken, or have waited for PAUSE_S, may always be next."""
        if held.waiting.keys() <= {one.job.id for one in waiting}:
            return waiting
        return [one for one in waiting if one.job.id in held.woken or one.job.id in held.waiting]


LEAST_PAUSE_S = 2.0
"""The shortest pause of jobs that wait while another one is tried."""


def hold_back(lease: StepLease, adapters: Adapters, leased: Sequence[LeasedJob]) -> list[LeasedJob]:
    """Return those of `leased` that may be submitted. The others are put off, because their scheduler does not answer
    or refuses them."""
    held = _choose_held(adapters, [one.job for one in leased])
    lease.put_off(held)
    waiting = {one.job.id for one in held}
    return [one for one in leased if one.job.id not in waiting]


def _choose_held(adapters: Adapters, jobs: Sequence[Job]) -> list[Delay]:
    """Return the delays of those of `jobs` that must wait. Calls no scheduler.

    Of jobs that wait for the same cause, one is tried: preferably a job whose submissions were answered.
    """
    held: list[Delay] = []
    tried: set[tuple[str, ...]] = set()
    for job in sorted(jobs, key=adapters.submit_limits.count_unanswered):
        if job.requested_action is not RequestedAction.NONE:
            continue
        name, limits = job.backend, adapters.submit_limits
        is_refused = job.state is JobState.PENDING and limits.wait_s(job, alone=True) > 0
        if adapters.is_out(name) and not is_refused:
            waits_for: tuple[str, ...] = (name,)
            wait_s, reason = adapters.wait_s(name), adapters.lacks(name) or f"{name} does not answer; it is asked again"
            may_go = adapters.may_ask(name)
        elif job.state is JobState.PENDING and (reason := limits.why_full(job)):
            waits_for, wait_s = limits.waits_for(job), limits.wait_s(job)
            may_go = wait_s == 0
        else:
            continue
        if may_go and waits_for not in tried:
            tried.add(waits_for)
        else:
            held.append(_delay(job, min(max(wait_s, LEAST_PAUSE_S), LONGEST_PAUSE_S), reason))
    return held
