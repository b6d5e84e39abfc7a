"""Submits elements of arrays that are ready at the same time as native arrays, if the backend has them.

The order of steps is as safe as for one job. Every element's row is DEPLOYING with its own token and committed. The
table of the native array has the tasks and the files of its elements, and its mark is written. Then one call submits
all of them. An element that is found in DEPLOYING gets its directory and its own mark from the table, and is searched
under both names. Elements that were planned by themselves have their directories and marks before the call. Elements
that cannot be submitted together are submitted alone.

If the owner limits how many elements of an array run at once, only one native array of it is submitted at a time,
because the limit of a native array applies only to its own tasks.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import field, replace
from functools import partial

from ffdl_batch.attempt.element_files import encode_table
from ffdl_batch.domain.job.array import chunk_name, mark_of, why_elements_wait
from ffdl_batch.domain.job.job import Job, JobId, Token
from ffdl_batch.domain.job_state import JobState, RequestedAction
from ffdl_batch.domain.outcome.observation import NativeId
from ffdl_batch.domain.scheduler_errors import (
    AccountingUnreachable,
    ArraysRefused,
    NotNow,
    RefusedBySite,
    SchedulerUnreachable,
    TooMany,
)
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.ports.capabilities import SubmitsArrays
from ffdl_batch.ports.scheduler import Scheduler
from ffdl_batch.runtimes.launch_request import ArrayPlan, Chunk, PlannedFile
from ffdl_batch.services.deployment.delivery import Delivery, Member
from ffdl_batch.services.deployment.result_writer import Decided
from ffdl_batch.services.deployment.step_lease import Delay
from ffdl_batch.services.deployment.submission_results import may_land_s, waits, why_looked_for
from ffdl_batch.services.job_files.attempt_directory import (
    begun_at,
    empty_chunk,
    make_chunk,
    mark_begun,
    materialize_chunk,
    unmark_begun,
)
from ffdl_batch.services.job_files.element_directory import make_directories
from ffdl_batch.services.outcome.attempt_records import claim_owner

log = logging.getLogger(__name__)

MARKERS = 8
"""How many marks are written at the same time. Each waits for the disk."""
PAUSE_S, LONGEST_PAUSE_S = 2.0, 30.0
"""Pause before the scheduler is searched again for elements, and the longest one while accounting does not answer."""
FULL_PAUSE_S = 15.0
"""Pause before the next try if the scheduler accepts no more jobs of this owner."""


@dataclass(slots=True)
class ArraySubmission:
    """Submits the elements of one step of the deployer."""

    delivery: Delivery
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _members: list[Member] = field(default_factory=list)
    _found: dict[JobId, frozenset[NativeId]] = field(default_factory=dict)

    # ------------------------------------------------------------------------------------ before they are submitted

    def look_for(self, jobs: Iterable[Job]) -> set[JobId]:
        """Search each scheduler once for those of `jobs` that it may have.

        Return the jobs that were put off: the scheduler did not answer, or it has no such job and a request may still
        arrive.
        """
        late: set[JobId] = set()
        asked: dict[str, list[Job]] = {}
        adapters, root = self.delivery.adapters, self.delivery.storage.root
        jobs = list(jobs)
        make_directories(root, [job for job in jobs if job.state is JobState.DEPLOYING])
        for job in jobs:
            if job.state is JobState.DEPLOYING and adapters.may_ask(job.backend):
                asked.setdefault(job.backend, []).append(job)
        for backend, deploying in asked.items():
            adapter = adapters.get(backend)
            places = {job.token: root.job(job.id).attempt(job.attempt) for job in deploying}
            asked_at = {job.id: begun_at(places[job.token]) for job in deploying}
            begun = [job for job in deploying if asked_at[job.id] is not None]
            if not begun or not isinstance(adapter, SubmitsArrays):
                continue
            try:
                with adapters.asking(backend):
                    found = adapter.find_many({job.token: places[job.token] for job in begun})
            except AccountingUnreachable as error:
                late.update(self._await_accounting(begun, error))
                found, begun = error.found, [job for job in begun if job.token in error.found]
            except NotNow as error:
                log.info("%d jobs are searched one by one: %s", len(begun), error)
                continue
            except SchedulerUnreachable as error:
                self.delivery.put_off_unreachable(begun, error)
                late.update(job.id for job in begun)
                continue
            self._found.update({job.id: found[job.token] for job in begun})
            elements = [job for job in begun if _is_element(job)]
            missing = [job for job in elements if not found[job.token] and job.requested_action is RequestedAction.NONE]
            missing = [job for job in missing if not claim_owner(places[job.token])]
            late.update(self._wait_for(missing, asked_at))
        return late

    def _await_accounting(self, jobs: Sequence[Job], error: AccountingUnreachable) -> set[JobId]:
        """Put off those of `jobs` that only accounting may know, unless they have a request, which their controllers
        must get first."""
        unknown = [job for job in jobs if job.token not in error.found and job.requested_action is RequestedAction.NONE]
        self._put_off(unknown, max(PAUSE_S, min(error.again_in_s, LONGEST_PAUSE_S)), str(error))
        return {job.id for job in unknown}

    def _wait_for(self, missing: Sequence[Job], asked_at: Mapping[JobId, float | None]) -> set[JobId]:
        """Put off those of `missing` for which a request may still arrive."""
        if not missing:
            return set()
        storage, adapters = self.delivery.storage, self.delivery.adapters
        now = storage.file_time(storage.root.array(_array_of(missing[0])).path)
        waiting = [
            job for job in missing if may_land_s(storage.clock, adapters, job, now - (asked_at[job.id] or 0.0)) > 0
        ]
        if waiting:
            self._put_off(waiting, PAUSE_S, why_looked_for(adapters, waiting[0]))
        return {job.id for job in waiting}

    def found(self, job: Job) -> frozenset[NativeId] | None:
        """Return what :meth:`look_for` found of the job; None if it did not search for the job."""
        return self._found.get(job.id)

    def takes(self, member: Member) -> bool:
        """Whether the job may be submitted together with others."""
        adapter = self.delivery.adapters.get(member.job.backend)
        return bool(member.plan.array_script) and _is_element(member.job) and isinstance(adapter, SubmitsArrays)

    def await_others(self, member: Member) -> None:
        """Add a job that is ready. It is submitted or put off with the others."""
        with self._lock:
            self._members.append(member)

    def groups(self) -> list[list[Member]]:
        """Return the groups that are submitted together, by index: elements of one array with the same script."""
        groups: dict[tuple[str, str], list[Member]] = {}
        with self._lock:
            members, self._members = self._members, []
        for member in sorted(members, key=lambda one: one.plan.array_index):
            groups.setdefault((_array_of(member.job), member.plan.array_script), []).append(member)
        return list(groups.values())

    def disband(self) -> None:
        """Release the jobs that were not submitted. They are due at once."""
        self._put_off([member.job for group in self.groups() for member in group], 0.0)

    # ------------------------------------------------------------------------------------------------- submission

    def send(self, members: Sequence[Member]) -> Sequence[Decided]:
        """Submit one group. Return the decisions, without those jobs that were put off."""
        return self.delivery.attend([member.job for member in members], partial(self._send, members))

    def _send(self, members: Sequence[Member]) -> Sequence[Decided]:
        job, adapters = members[0].job, self.delivery.adapters
        array, limit = _array_of(job), _limit_of(job)
        if limit is not None:
            token = self.delivery.lease.token
            under_way = self.delivery.storage.store.count_handed_over([array], besides=token).get(array, 0)
            if under_way:
                return self._send_within_limit(members, limit, under_way)
        decided: list[Decided] = []
        rest = list(members)
        size = adapters.facts(job.backend).max_array_size
        while rest:
            part = rest[: max(1, size)]
            try:
                sent = self.delivery.attend([one.job for one in part], partial(self._send_together, part))
            except TooMany as error:
                log.info("%d elements of %s are too many now: %s", len(part), array, error)
                size = len(part) // 2
                continue
            except ArraysRefused as error:
                log.warning("elements of %s are submitted one by one: %s", array, error)
                return [*decided, *self._send_one_by_one(rest)]
            decided += sent
            rest = rest[len(part) :]
            why_full = adapters.submit_limits.why_full(job)
            if why_full:
                return [*decided, *((one.job, waits(self.delivery.storage.clock, why_full)) for one in rest)]
            if not sent or limit is not None:
                break
        why = "the scheduler has no room for more jobs now" if limit is None else why_elements_wait(limit)
        self._put_off([member.job for member in rest], FULL_PAUSE_S, why)
        return decided

    def _send_within_limit(self, members: Sequence[Member], limit: int, under_way: int) -> Sequence[Decided]:
        """Submit as many elements as the array's limit allows, one by one. The scheduler has some of its elements
        already, and applies the limit to each native array separately."""
        free = max(0, limit - under_way)
        self._put_off([member.job for member in members[free:]], FULL_PAUSE_S, why_elements_wait(limit))
        return self._send_one_by_one(members[:free])

    def _send_one_by_one(self, members: Sequence[Member]) -> Sequence[Decided]:
        attend, send_one = self.delivery.attend, self.delivery.send_one
        return [one for member in members for one in attend([member.job], partial(send_one, member))]

    def _send_together(self, members: Sequence[Member]) -> Sequence[Decided]:
        """Submit `members` as one native array. Raises TooMany and ArraysRefused; nothing is submitted then."""
        lease = self.delivery.lease
        if len(members) > 1:
            held = lease.store.renew_many([one.job.id for one in members], lease.token, self.delivery.submit_lease_s)
            members = [member for member in members if member.job.id in held]
        plan = self._plan(members) if len(members) > 1 else None
        if plan is None:
            return self._send_one_by_one(members)
        materialize_chunk(plan)
        self.delivery.reached("chunk written")
        self._mark([member for member in members if member.table is None], plan)
        mark_begun(plan.chunk.directory, by=lease.token)
        self.delivery.reached("chunk marked")
        return self._submit(members, plan)

    def _plan(self, members: Sequence[Member]) -> ArrayPlan | None:
        first = members[0].job
        adapters = self.delivery.adapters
        adapter = adapters.get(first.backend)
        assert isinstance(adapter, SubmitsArrays)  # `takes` has checked it
        number, directory = make_chunk(self.delivery.storage.root, _array_of(first))
        limit = _limit_of(first)
        chunk = Chunk(
            token=chunk_name(_array_of(first), number),
            directory=directory,
            max_array_size=adapters.facts(first.backend).max_array_size,
            limit=limit if limit is not None and limit < len(members) else None,
        )
        plan = adapter.plan_array(chunk, [member.plan for member in members])
        shared = [member for member in members if member.table is not None]
        if plan is None or not shared:
            return plan
        table = shared[0].table  # elements of an array are planned together once a step
        assert table is not None
        text = encode_table(table.only([member.job.id for member in shared]))
        return replace(plan, files=(PlannedFile("elements.json", text), *plan.files))

    def _mark(self, members: Sequence[Member], plan: ArrayPlan) -> None:
        def mark(member: Member) -> None:
            task = mark_of(plan.chunk.token, plan.tasks[member.plan.token])
            mark_begun(member.plan.attempt_dir, by=self.delivery.lease.token, task=task)

        with ThreadPoolExecutor(MARKERS, thread_name_prefix="mark") as pool:
            list(pool.map(mark, members))

    def _submit(self, members: Sequence[Member], plan: ArrayPlan) -> Sequence[Decided]:
        def ask(adapter: Scheduler) -> Mapping[Token, NativeId]:
            assert isinstance(adapter, SubmitsArrays)  # `takes` has checked it
            try:
                with self.delivery.in_flight.sending([member.job for member in members]):
                    return adapter.submit_array(plan)
            except RefusedBySite:  # the scheduler is searched for all of them, by their marks
                make_directories(self.delivery.storage.root, [member.job for member in members])
                raise

        def unmark() -> None:
            for member in members:
                unmark_begun(member.plan.attempt_dir, by=self.delivery.lease.token)
            empty_chunk(plan.chunk.directory)

        return self.delivery.deliver(members, ask, unmark, lambda: self.delivery.reached("chunk submitted"))

    def _put_off(self, jobs: Sequence[Job], pause_s: float, reason: str = "") -> None:
        self.delivery.lease.put_off([Delay(job, pause_s, reason) for job in jobs])


def _is_element(job: Job) -> bool:
    return job.spec.element is not None and job.attempt == 1


def _array_of(job: Job) -> str:
    assert job.spec.element is not None
    return job.spec.element.array


def _limit_of(job: Job) -> int | None:
    """Return how many elements of the job's array may run at once (None: all)."""
    return job.spec.element.limit if job.spec.element is not None else None
