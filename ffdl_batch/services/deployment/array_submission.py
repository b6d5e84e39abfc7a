"""Elements of arrays that are ready at the same time, sent as native arrays where the backend has such.

The order is as safe as with one job: every element's row is DEPLOYING under its own token and committed, its files are
written, and its mark says as which task of which native array it is about to be submitted; then one submission for all
of them. Whoever finds an element in DEPLOYING looks for it under both names. What cannot go together goes alone.

An array whose owner limits how many of its elements run at once is one native array at a time: its own limit holds for
its own tasks alone.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from ffdl_batch.domain.job.array import chunk_name, mark_of, why_elements_wait
from ffdl_batch.domain.job.job import Change, Job, JobId
from ffdl_batch.domain.job_state import JobState, RequestedAction
from ffdl_batch.domain.outcome.observation import NativeId
from ffdl_batch.domain.scheduler_errors import (
    AccountingUnreachable,
    ArraysRefused,
    InvalidRequest,
    NotNow,
    NotTaken,
    RefusedBySite,
    SchedulerError,
    SchedulerUnreachable,
    SubmissionUncertain,
    TooMany,
)
from ffdl_batch.ports.capabilities import SubmitsArrays
from ffdl_batch.runtimes.launch_request import ArrayPlan, Chunk, LaunchPlan
from ffdl_batch.services.backends.adapters import Adapters
from ffdl_batch.services.backends.node_exclusion import NodeExclusion
from ffdl_batch.services.deployment.result_writer import Decided
from ffdl_batch.services.deployment.submission_results import (
    has_none,
    may_land_s,
    note,
    queued,
    refused,
    refused_repeatedly,
    turned_away,
    waits,
    why_looked_for,
    why_not_now,
)
from ffdl_batch.services.job_files.attempt_directory import (
    begun_at,
    empty_chunk,
    make_chunk,
    mark_begun,
    materialize_chunk,
    unmark_begun,
)
from ffdl_batch.services.job_storage import JobStorage
from ffdl_batch.services.os_errors import explain
from ffdl_batch.services.outcome.attempt_records import claim_owner
from ffdl_batch.store import StoreError

log = logging.getLogger(__name__)

MARKERS = 8
"""Marks written at the same time: each of them waits for the disk."""
PAUSE_S = 2.0
LONGEST_PAUSE_S = 30.0
"""Between two looks for jobs that only an accounting may know which does not answer."""
FULL_PAUSE_S = 15.0
"""Before the next try where the scheduler has no room for more jobs of this owner."""

Alone = Callable[[Job, LaunchPlan], Sequence[Decided]]
"""Sends one job by itself; returns nothing where it was put off."""


@dataclass(frozen=True, slots=True)
class Member:
    """An element whose files are written."""

    job: Job
    plan: LaunchPlan


@dataclass(slots=True)
class ArraySubmission:
    """The elements of one claim."""

    storage: JobStorage
    adapters: Adapters
    node_exclusion: NodeExclusion
    token: str
    lease_s: float
    """How long their leases must last when the scheduler is asked."""
    reached: Callable[[str], None]
    alone: Alone
    sending: Callable[[Sequence[Job]], AbstractContextManager[None]]
    """Notes that the scheduler is asked."""
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _members: list[Member] = field(default_factory=list)
    _found: dict[JobId, frozenset[NativeId]] = field(default_factory=dict)

    # ------------------------------------------------------------------------------------ before they are sent

    def look_for(self, jobs: Iterable[Job]) -> set[JobId]:
        """Ask each scheduler once for those among `jobs` that it may have. Returns those that were put off: it did not
        answer, or it has none of them and a request for them may still land."""
        late: set[JobId] = set()
        asked: dict[str, list[Job]] = {}
        for job in jobs:
            if job.state is JobState.DEPLOYING and self.adapters.may_ask(job.backend):
                asked.setdefault(job.backend, []).append(job)
        for backend, deploying in asked.items():
            adapter = self.adapters.get(backend)
            places = {job.token: self.storage.root.job(job.id).attempt(job.attempt) for job in deploying}
            asked_at = {job.id: begun_at(places[job.token]) for job in deploying}
            begun = [job for job in deploying if asked_at[job.id] is not None]
            if not begun or not isinstance(adapter, SubmitsArrays):
                continue
            try:
                with self.adapters.asking(backend):
                    found = adapter.find_many({job.token: places[job.token] for job in begun})
            except AccountingUnreachable as error:
                late.update(self._await_accounting(begun, error))
                found, begun = error.found, [job for job in begun if job.token in error.found]
            except NotNow as error:
                log.info("%d jobs are looked for one by one: %s", len(begun), error)
                continue
            except SchedulerUnreachable as error:
                self._unreachable(begun, error)
                late.update(job.id for job in begun)
                continue
            self._found.update({job.id: found[job.token] for job in begun})
            elements = [job for job in begun if self._is_element(job)]
            missing = [job for job in elements if not found[job.token] and job.requested_action is RequestedAction.NONE]
            missing = [job for job in missing if not claim_owner(places[job.token])]
            late.update(self._wait_for(missing, asked_at))
        return late

    def _await_accounting(self, jobs: Sequence[Job], error: AccountingUnreachable) -> set[JobId]:
        """Put off those of `jobs` that only the accounting may know, until it is asked again. A request is told their
        controllers first, by who looks for each of them."""
        unknown = [job for job in jobs if job.token not in error.found and job.requested_action is RequestedAction.NONE]
        self._put_off(unknown, max(PAUSE_S, min(error.again_in_s, LONGEST_PAUSE_S)), str(error))
        return {job.id for job in unknown}

    def _wait_for(self, missing: Sequence[Job], asked_at: Mapping[JobId, float | None]) -> set[JobId]:
        """Put off those of `missing` for which a request may still land."""
        if not missing:
            return set()
        now = self.storage.file_time(self.storage.root.array(_array_of(missing[0])).path)
        waiting = [
            job
            for job in missing
            if may_land_s(self.storage.clock, self.adapters, job, now - (asked_at[job.id] or 0.0)) > 0
        ]
        if waiting:
            self._put_off(waiting, PAUSE_S, why_looked_for(self.adapters, waiting[0]))
        return {job.id for job in waiting}

    def found(self, job: Job) -> frozenset[NativeId] | None:
        """What :meth:`look_for` found of the job; None where it did not look."""
        return self._found.get(job.id)

    def takes(self, job: Job, plan: LaunchPlan) -> bool:
        """Whether the job may be sent with others."""
        adapter = self.adapters.get(job.backend)
        return bool(plan.array_script) and self._is_element(job) and isinstance(adapter, SubmitsArrays)

    def await_others(self, job: Job, plan: LaunchPlan) -> None:
        """The job is ready; it is sent with the others, or put off with them."""
        with self._lock:
            self._members.append(Member(job, plan))

    def groups(self) -> list[list[Member]]:
        """Those that go together, by index: elements of one array of which the scheduler is told the same."""
        groups: dict[tuple[str, str], list[Member]] = {}
        with self._lock:
            members, self._members = self._members, []
        for member in sorted(members, key=lambda one: one.plan.array_index):
            groups.setdefault((_array_of(member.job), member.plan.array_script), []).append(member)
        return list(groups.values())

    def disband(self) -> None:
        """Give back the leases of those that were not sent."""
        members = [member.job for group in self.groups() for member in group]
        if members:
            self.storage.store.put_off([job.id for job in members], self.token, self.storage.store.now())

    # --------------------------------------------------------------------------------------------- sending

    def send(self, members: Sequence[Member]) -> Sequence[Decided]:
        """Send one group; what is to be written of its jobs. Those that were put off are left out."""
        jobs = [member.job for member in members]
        try:
            return self._send(members)
        except StoreError:
            self._put_off(jobs, 0.0)
            raise
        except Exception as error:
            log.exception("%d elements of %s cannot be prepared", len(jobs), _array_of(jobs[0]))
            said = explain(error, self.storage.root.path) if isinstance(error, OSError) else None
            why = said or f"{type(error).__name__} in the daemon: {error}"
            self._put_off(jobs, FULL_PAUSE_S, f"they cannot be prepared, and it is tried again: {why}")
            return ()
        except BaseException:
            self._put_off(jobs, 0.0)
            raise

    def _send(self, members: Sequence[Member]) -> Sequence[Decided]:
        array, limit = _array_of(members[0].job), limit_of(members[0].job)
        if limit is not None:
            under_way = self.storage.store.count_handed_over([array]).get(array, 0)
            if under_way:
                return self._send_alone(members, limit, under_way)
        decided: list[Decided] = []
        rest = list(members)
        size = self.adapters.facts(members[0].job.backend).max_array_size
        while rest:
            part = rest[: max(1, size)]
            try:
                sent = self._send_together(part) if len(part) > 1 else self.alone(part[0].job, part[0].plan)
            except TooMany as error:
                log.info("%d elements of %s are too many now: %s", len(part), array, error)
                size = len(part) // 2
                continue
            except ArraysRefused as error:
                log.warning("elements of %s are sent one by one: %s", array, error)
                return [*decided, *(one for member in rest for one in self.alone(member.job, member.plan))]
            decided += sent
            rest = rest[len(part) :]
            why_full = self.adapters.submit_limits.why_full(members[0].job)
            if why_full:
                return [*decided, *((one.job, waits(self.storage.clock, why_full)) for one in rest)]
            if not sent or limit is not None:
                break
        why = "the scheduler has no room for more jobs now" if limit is None else why_elements_wait(limit)
        self._put_off([member.job for member in rest], FULL_PAUSE_S, why)
        return decided

    def _send_alone(self, members: Sequence[Member], limit: int, under_way: int) -> Sequence[Decided]:
        """As many as the array's limit leaves room for, each by itself: the scheduler has some of its elements already,
        and counts each native array for itself."""
        room = max(0, limit - under_way)
        self._put_off([member.job for member in members[room:]], FULL_PAUSE_S, why_elements_wait(limit))
        return [one for member in members[:room] for one in self.alone(member.job, member.plan)]

    def _send_together(self, members: Sequence[Member]) -> Sequence[Decided]:
        """Submit `members` as one native array. Raises TooMany and ArraysRefused; nothing is submitted then."""
        held = self.storage.store.renew_many([member.job.id for member in members], self.token, self.lease_s)
        members = [member for member in members if member.job.id in held]
        plan = self._plan(members) if len(members) > 1 else None
        if plan is None:
            return [one for member in members for one in self.alone(member.job, member.plan)]
        materialize_chunk(plan)
        self.reached("chunk written")
        self._mark(members, plan)
        self.reached("chunk marked")
        return self._submit(members, plan)

    def _plan(self, members: Sequence[Member]) -> ArrayPlan | None:
        first = members[0].job
        adapter = self.adapters.get(first.backend)
        assert isinstance(adapter, SubmitsArrays)  # `takes` has asked
        number, directory = make_chunk(self.storage.root, _array_of(first))
        limit = limit_of(first)
        chunk = Chunk(
            token=chunk_name(_array_of(first), number),
            directory=directory,
            max_array_size=self.adapters.facts(first.backend).max_array_size,
            limit=limit if limit is not None and limit < len(members) else None,
        )
        return adapter.plan_array(chunk, [member.plan for member in members])

    def _mark(self, members: Sequence[Member], plan: ArrayPlan) -> None:
        def mark(member: Member) -> None:
            task = mark_of(plan.chunk.token, plan.tasks[member.plan.token])
            mark_begun(member.plan.attempt_dir, by=self.token, task=task)

        with ThreadPoolExecutor(MARKERS, thread_name_prefix="mark") as pool:
            list(pool.map(mark, members))

    def _submit(self, members: Sequence[Member], plan: ArrayPlan) -> Sequence[Decided]:
        backend = members[0].job.backend
        adapter = self.adapters.get(backend)
        assert isinstance(adapter, SubmitsArrays)  # `takes` has asked
        jobs = [member.job for member in members]
        try:
            with self.adapters.asking(backend), self.sending(jobs):
                natives = adapter.submit_array(plan)
        except (TooMany, ArraysRefused):
            self._unmark(members, plan)
            raise
        except NotTaken as error:
            why = turned_away(self.adapters, jobs, error)
            if not why:
                return self._refused(members, refused_repeatedly(error))
            self._unmark(members, plan)
            return [(job, waits(self.storage.clock, why)) for job in jobs]
        except InvalidRequest as error:
            return self._refused(members, error)
        except SubmissionUncertain as error:
            return self._uncertain(jobs, error)
        except SchedulerUnreachable as error:
            self._unmark(members, plan)
            self._unreachable(jobs, error)
            return ()
        self.reached("chunk submitted")
        self.adapters.submit_limits.taken(jobs[0])
        now = self.storage.clock.now()
        return [
            (
                m.job,
                queued(self.storage, m.job, natives[m.plan.token], m.plan, now),
            )
            for m in members
        ]

    def _refused(self, members: Sequence[Member], error: InvalidRequest) -> Sequence[Decided]:
        """End the members that the scheduler refused. If the refusal is uncertain, first ask whether it has a job of
        theirs."""
        jobs = [member.job for member in members]
        attempts = {member.job.token: member.plan.attempt_dir for member in members}
        if isinstance(error, RefusedBySite) and not has_none(self.adapters, jobs[0].backend, attempts):
            return self._uncertain(jobs, error)
        return [(job, refused(self.storage.clock, job, error)) for job in jobs]

    def _uncertain(self, jobs: Sequence[Job], error: SchedulerError) -> Sequence[Decided]:
        """Note that the scheduler may have the members, so that they are looked for first."""
        log.warning("%d elements of %s: %s", len(jobs), _array_of(jobs[0]), error)
        change = Change(columns={"uncertain_since": self.storage.clock.now(), "pending_reason": str(error)})
        note(self.storage.store, jobs, change, self.token)
        self._put_off(jobs, PAUSE_S)
        return ()

    def _unmark(self, members: Sequence[Member], plan: ArrayPlan) -> None:
        for member in members:
            unmark_begun(member.plan.attempt_dir, by=self.token)
        empty_chunk(plan.chunk.directory)

    def _unreachable(self, jobs: Sequence[Job], error: SchedulerUnreachable) -> None:
        log.warning("%d jobs are put off: %s", len(jobs), error)
        self._put_off(jobs, self.adapters.pause_s(jobs[0], error), why_not_now(error))

    def _put_off(self, jobs: Collection[Job], pause_s: float, reason: str = "") -> None:
        """Give the leases back; `reason` is said on those jobs that do not say it yet."""
        store = self.storage.store
        if reason:
            note(store, jobs, Change(columns={"pending_reason": reason}), self.token)
        if jobs:
            store.put_off([job.id for job in jobs], self.token, store.now() + pause_s)

    @staticmethod
    def _is_element(job: Job) -> bool:
        return job.spec.element is not None and job.attempt == 1


def _array_of(job: Job) -> str:
    assert job.spec.element is not None
    return job.spec.element.array


def limit_of(job: Job) -> int | None:
    """How many elements of the job's array its owner lets run at once (None = all)."""
    return job.spec.element.limit if job.spec.element is not None else None
