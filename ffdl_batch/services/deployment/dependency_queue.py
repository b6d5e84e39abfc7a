"""Jobs that wait for trainings, at no cost while nothing happens.

A waiting job is put off, and remembered with the states of what it waits for. Each step of the deployer asks once
how all those trainings are; only jobs whose trainings moved are looked at again. The memory may be lost: a job that is
put off is due again after LONGEST_PAUSE_S at most.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ffdl_batch.domain.job.job import Change, Job, JobId
from ffdl_batch.domain.job_state import JobState, Wish
from ffdl_batch.host.backoff import growing_pause
from ffdl_batch.ports.scheduler import InvalidRequest
from ffdl_batch.services.incidents.incident_recorder import refusal
from ffdl_batch.services.platform import Platform
from ffdl_batch.services.submission.job_dependencies import (
    Dependency,
    Outlook,
    Standing,
    begin_of,
    judge_dependency,
    own_trainings,
    read_dependency,
)
from ffdl_batch.store import LeasedJob

FIRST_PAUSE_S = 2.0
LONGEST_PAUSE_S = 10.0
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
    """One per deployer."""

    def __init__(self, platform: Platform) -> None:
        self._platform = platform
        self._awaited: dict[JobId, _Awaited] = {}

    def wake(self) -> None:
        """Make the jobs due whose trainings moved since they were put off: one query, whatever waits."""
        if not self._awaited:
            return
        states = {job.id: job.state for job in self._platform.store.get_many(self._awaited)}
        moved = [training for training, seen in self._awaited.items() if states.get(training) is not seen.state]
        woken = {waiter for training in moved for waiter in self._awaited[training].waiters}
        if woken:
            self._platform.store.make_due(woken)
        for training in moved:
            del self._awaited[training]

    def sort_out(self, leased: Sequence[LeasedJob]) -> tuple[list[LeasedJob], int]:
        """Those of `leased` that wait for no training; the others are put off, or ended because what they wait for
        can never happen. Returns also how many were ended."""
        texts = [one.job.spec.batch.dependency for one in leased if _may_wait(one.job)]
        trainings = own_trainings(self._platform, texts)
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
        now = self._platform.clock.now()
        asked = [_Asked(one, what, judge_dependency(what, trainings, begins, now)) for one, what in read]
        return [one for one in asked if one.standing.outlook is not Outlook.TRUE]

    def _begins(self, dependencies: Sequence[Dependency]) -> dict[str, float]:
        """When the trainings began whose begin matters; one query for all of them."""
        wanted = {one.training for what in dependencies for one in what.conditions if one.is_about_begin}
        histories = self._platform.store.histories(wanted) if wanted else {}
        found = {training: begin_of(history) for training, history in histories.items()}
        return {training: at for training, at in found.items() if at is not None}

    def _write(self, asked: Sequence[_Asked]) -> int:
        """Say on each job what it waits for, or why it ends; returns how many ended."""
        now = self._platform.clock.now()
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
        written = self._platform.store.apply_many(changes)
        return sum(job.state is JobState.FAILED for job in written)

    def _put_off(self, waiting: Sequence[_Asked], trainings: Mapping[str, Job]) -> None:
        """Remember what was seen, then give the leases back: what moves from now on wakes them."""
        store = self._platform.store
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
    """Later attempts wait for nothing: what the first one waited for has happened."""
    return job.state is JobState.PENDING and job.attempt == 0 and job.wish is Wish.NONE


def _pause(one: _Asked) -> float:
    pause = growing_pause(one.leased.deploy_tries + 1, FIRST_PAUSE_S, LONGEST_PAUSE_S)
    return pause if one.standing.again_s is None else min(pause, one.standing.again_s)
