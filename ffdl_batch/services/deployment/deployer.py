"""Brings accepted jobs to their scheduler: each attempt is executed at most once, whatever fails in between.

The order of steps guarantees that: lease the row; write DEPLOYING with the attempt's token; commit; mark on disk that
the scheduler is about to be asked; submit. A row that is found in DEPLOYING is first searched by its token (`find`). If
the scheduler has the attempt, the job adopts it. It is submitted again only if nothing was found and no earlier request
can arrive any more. The claim in the attempt's directory covers the rest: a request that arrives too late executes
nothing. Rows are written for many jobs at once, before and after submission, and each is guarded by its own revision
and lease.

An attempt that a head controller began looks the same: it has a mark and a token to search for.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from ffdl_batch.config.images import UnknownImage
from ffdl_batch.domain.job.job import Job
from ffdl_batch.domain.job_state import JobState, RequestedAction
from ffdl_batch.domain.outcome.controller_events import GoesOn
from ffdl_batch.domain.outcome.observation import NativeId
from ffdl_batch.domain.scheduler_errors import InvalidRequest
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.services.backends.adapters import Adapters
from ffdl_batch.services.backends.node_exclusion import NodeExclusion
from ffdl_batch.services.deployment.admission import Admission
from ffdl_batch.services.deployment.array_submission import ArraySubmission
from ffdl_batch.services.deployment.attempt_planning import plan_attempt, plan_template
from ffdl_batch.services.deployment.delivery import Delivery, Member, Reached
from ffdl_batch.services.deployment.elastic_pools import ElasticPools
from ffdl_batch.services.deployment.element_plans import gather, plan_together
from ffdl_batch.services.deployment.result_writer import Decided, InFlight, Outcomes
from ffdl_batch.services.deployment.step_lease import Delay, StepLease
from ffdl_batch.services.deployment.submission_results import (
    adopt,
    ended,
    ended_as_requested,
    may_land_s,
    retire_earlier,
    take_back,
    why_looked_for,
)
from ffdl_batch.services.deployment.waiting_jobs import Throttle, Waiting, hold_back
from ffdl_batch.services.job_files.attempt_directory import begun_at, materialize, materialize_template
from ffdl_batch.services.job_files.control_cell import write_control
from ffdl_batch.services.job_files.element_directory import make_first_attempt
from ffdl_batch.services.job_storage import JobStorage
from ffdl_batch.services.leader_lease import Leases
from ffdl_batch.services.outcome.attempt_records import claim_owner, read_final
from ffdl_batch.services.secrets.job_secrets import CODE as SECRET_CODE
from ffdl_batch.services.secrets.job_secrets import SecretMissing

log = logging.getLogger(__name__)

BATCH = 64
"""The maximum number of jobs in one step."""
ELEMENTS = 936
"""Further elements of arrays in one step, so that native arrays of a thousand tasks can be submitted."""
WORKERS = 8
"""Concurrent submissions. Slurm accepts about twice as many per second from four callers as from one; the other workers
prepare attempts meanwhile."""
LOOK_AGAIN_S = 2.0
"""Pause before the scheduler is searched again for an attempt."""
SUBMIT_S = 120.0
"""How long one submission may take, including all time-outs of a slow scheduler."""
HANDOVER_S = 10.0
"""How long an attempt that a head has begun is left to that head."""


@dataclass(frozen=True, slots=True)
class _Step:
    """The parts of one step, for the jobs of one claim."""

    lease: StepLease
    delivery: Delivery
    arrays: ArraySubmission


class Deployer:
    """Leases PENDING and DEPLOYING jobs and brings each one step further.

    Steps may run side by side, but only one of them claims jobs. The next one begins when the jobs of this one are
    answered or being submitted, except those behind other elements of their array. So jobs are submitted in their
    order, but none waits for the answer about another one.
    """

    def __init__(  # noqa: PLR0913 - the parts of the platform that it uses
        self,
        storage: JobStorage,
        adapters: Adapters,
        node_exclusion: NodeExclusion,
        leases: Leases,
        admission: Admission,
        pools: ElasticPools,
        *,
        reached: Reached = lambda _step: None,
    ) -> None:
        self._storage, self._adapters, self._node_exclusion, self._leases = storage, adapters, node_exclusion, leases
        self._reached = reached
        self._waiting = Waiting(storage)
        self._admission, self._pools = admission, pools
        self._throttle = Throttle(storage.store, adapters)
        self._lock = threading.Lock()
        self._tokens: set[str] = set()
        """The lease tokens of the running steps."""

    def end_lost_claims(self) -> None:
        """End the leases of steps that failed, so that their jobs are claimed again. No step may be claiming jobs."""
        with self._lock:
            held = frozenset(self._tokens)
        self._storage.store.end_claims_of(self._leases.owner, besides=held)

    def step(self, begin_next: Callable[[], bool] = lambda: False) -> int:
        """Handle up to BATCH jobs that can be submitted, and ELEMENTS more if they are elements of arrays. Return how
        many made progress.

        `begin_next` is called when the step only waits for answers of schedulers. It may begin the next step in another
        thread, and returns whether it did. If it did not, it is called again.
        """
        self._waiting.wake()
        self._throttle.wake()
        while True:
            leased = self._storage.store.claim_deployable(
                self._leases.owner, limit=BATCH, lease_s=self._leases.seconds, elements=ELEMENTS
            )
            if not leased:
                return 0
            self._reached("claimed")
            lease = StepLease(self._storage.store, leased[0].lease_token)
            try:
                ready, done = self._waiting.sort_out(lease, leased)
                ready = self._pools.sort_out(lease, ready)
                ready = hold_back(lease, self._adapters, self._throttle.sort_out(lease, ready))
                ready, refused = self._admission.sort_out(lease, ready)
                done += refused
            except BaseException:
                lease.release(one.job for one in leased)
                raise
            if ready:
                return done + self._deploy(lease, [one.job for one in ready], begin_next)
            if done or len(leased) < BATCH:
                return done
            # All of them wait. Jobs behind them that need not wait must not be delayed by them.

    def _deploy(self, lease: StepLease, jobs: Sequence[Job], begin_next: Callable[[], bool]) -> int:
        """Bring each of the leased `jobs` one step further: workers act, and this thread writes their decisions."""
        begins_at = self._storage.clock.monotonic()
        try:
            begun, found = self._begin(lease, jobs)
            in_flight = InFlight(self._storage, lease, [*begun, *found])
            delivery = Delivery(
                self._storage,
                self._adapters,
                lease,
                self._leases.seconds,
                self._submit_lease_s,
                in_flight,
                self._reached,
            )
            step = _Step(lease, delivery, ArraySubmission(delivery))
            late = step.arrays.look_for(found)
        except BaseException:
            lease.release(jobs)
            raise
        outcomes = Outcomes(
            lease,
            in_flight,
            lambda: self._reached("queued"),
            lambda dropped: take_back(self._storage, self._adapters, dropped),
        )
        with self._lock:
            self._tokens.add(lease.token)
        try:
            with ThreadPoolExecutor(max_workers=WORKERS, thread_name_prefix="deploy") as pool:

                def send_arrays() -> bool:
                    groups = step.arrays.groups()
                    for members in groups:
                        outcomes.expect(pool.submit(step.arrays.send, members))
                    return bool(groups)

                def stalled() -> None:
                    """Let neither arrays nor the next step wait for the answers that this one waits for."""
                    if not send_arrays() and not in_flight.is_followed:
                        in_flight.is_followed = begin_next()

                shared, alone = gather(self._storage, self._adapters, begun)
                for elements in shared:
                    outcomes.expect(pool.submit(self._together, step, elements, begins_at))
                for job in alone:
                    outcomes.expect(pool.submit(self._one, step, job, begins_at))
                for job in found:
                    if job.id not in late:
                        outcomes.expect(pool.submit(self._one, step, job, None))
                changed = outcomes.write(stalled)
                send_arrays()
                return changed + outcomes.write(stalled)
        finally:
            step.arrays.disband()
            with self._lock:
                self._tokens.discard(lease.token)

    def _begin(self, lease: StepLease, jobs: Sequence[Job]) -> tuple[list[Job], list[Job]]:
        """Begin all attempts that can begin, in one transaction.

        Return the current rows of their jobs, and the other jobs as they were found. Jobs that another process has
        changed meanwhile are in neither list.
        """
        ready = [
            job
            for job in jobs
            if job.state is JobState.PENDING and job.requested_action is RequestedAction.NONE and self._may_ask(job)
        ]
        store, clock = self._storage.store, self._storage.clock
        begun = store.begin_attempts(ready, lease.token, clock.now(), self._submit_lease_s)
        lease.put_off([Delay(job, 0.0) for job in ready if job.id not in begun])
        beginning = {job.id for job in ready}
        return list(begun.values()), [job for job in jobs if job.id not in beginning]

    @property
    def _submit_lease_s(self) -> float:
        """How long a lease must last when the scheduler is asked."""
        return self._leases.seconds + SUBMIT_S

    def _may_ask(self, job: Job) -> bool:
        return self._adapters.may_ask(job.backend)

    def _one(self, step: _Step, job: Job, begun_at_s: float | None) -> Sequence[Decided]:
        """Bring one job one step further. `begun_at_s` is when this step began its attempt (monotonic); None if the
        attempt had begun before."""
        return step.delivery.attend([job], lambda: self._advance(step, job, begun_at_s))

    def _together(self, step: _Step, jobs: Sequence[Job], begun_at_s: float) -> Sequence[Decided]:
        """Plan elements of an array together, or each by itself if they do not permit that."""
        alone: list[Job] = []

        def plan() -> Sequence[Decided]:
            if not self._may_ask(jobs[0]):
                step.lease.put_off([Delay(job, LOOK_AGAIN_S) for job in jobs])
                return ()
            self._reached("deploying")
            members = plan_together(self._storage, self._adapters, self._node_exclusion, jobs)
            if members is None:
                alone.extend(jobs)
                return ()
            self._reached("planned together")
            for member in members:
                step.arrays.await_others(member)
            return ()

        step.delivery.attend(jobs, plan)
        return [one for job in alone for one in self._one(step, job, begun_at_s)]

    def _advance(self, step: _Step, job: Job, begun_at_s: float | None) -> Sequence[Decided]:
        """Decide about a job. Return nothing if the job was put off, or waits for other elements of its array."""
        is_requested = job.requested_action is not RequestedAction.NONE
        if not self._may_ask(job) and not is_requested:
            return self._put_off(step, job, LOOK_AGAIN_S)
        if job.state is JobState.PENDING:  # it could not begin, for a reason that may have passed
            if is_requested:
                return [(job, ended_as_requested(self._storage.clock, job))]
            return self._put_off(step, job, 0.0)
        if begun_at_s is None:
            return self._recover(step, job)
        self._reached("deploying")
        if begun_at(self._storage.root.job(job.id).attempt(job.attempt)) is not None:
            return self._recover(step, job)  # a head that was slower than this step has begun it, too
        return self._submit(step, job, begun_at_s)

    def _put_off(self, step: _Step, job: Job, pause_s: float, reason: str = "") -> Sequence[Decided]:
        step.lease.put_off([Delay(job, pause_s, reason)])
        return ()

    def _recover(self, step: _Step, job: Job) -> Sequence[Decided]:
        """Decide about a job that was found in DEPLOYING: it is not known how far its submission got."""
        attempt = self._storage.root.job(job.id).attempt(job.attempt)
        asked_at = begun_at(attempt)
        if asked_at is None:
            return self._submit_or_end(step, job)
        if job.requested_action is not RequestedAction.NONE:
            write_control(self._storage.root, job, requested_action=job.requested_action)
        found = step.arrays.found(job)
        if found is None:
            with self._adapters.asking(job.backend) as adapter:
                found = adapter.find(job.token, attempt)
        self._reached("looked")
        owner = claim_owner(attempt)
        if owner:
            found |= {NativeId.parse(owner)}  # it executes the attempt, even if the scheduler has forgotten it
        if found:
            return [(job, adopt(self._storage, self._adapters, self._node_exclusion, job, found, asked_at))]
        passed_s = self._storage.file_time(attempt.submit) - asked_at
        at_least_s = HANDOVER_S if self._was_handed_over(job) else 0.0
        left_s = may_land_s(self._storage.clock, self._adapters, job, passed_s, at_least_s)
        if left_s > 0:
            why = why_looked_for(self._adapters, job, at_least_s)
            return self._put_off(step, job, min(left_s, LOOK_AGAIN_S), why)
        return self._submit_or_end(step, job)

    def _was_handed_over(self, job: Job) -> bool:
        """Whether the head of the attempt before began this one."""
        if job.attempt == 1:
            return False
        final = read_final(self._storage.root.job(job.id).attempt(job.attempt - 1))
        return final is not None and final.goes_on is GoesOn.SUCCESSOR

    def _submit_or_end(self, step: _Step, job: Job) -> Sequence[Decided]:
        if job.requested_action is RequestedAction.NONE:
            return self._submit(step, job)
        return [(job, ended_as_requested(self._storage.clock, job))]

    def _submit(self, step: _Step, job: Job, begun_at_s: float | None = None) -> Sequence[Decided]:
        """Plan the attempt, write its files, and submit it, or let it wait for other elements of its array."""
        make_first_attempt(self._storage.root, job)
        try:
            plan = plan_attempt(self._storage, self._adapters, self._node_exclusion, job)
        except InvalidRequest as error:
            return self._fail(job, "S101", error)
        except UnknownImage as error:
            return self._fail(job, error.code, error)
        try:
            materialize(self._storage.root, job, plan)
            self._reached("written")
            materialize_template(
                self._storage.root, job, plan_template(self._storage, self._adapters, self._node_exclusion, job, plan)
            )
            self._reached("template")
        except SecretMissing as error:
            return self._fail(job, SECRET_CODE, error)
        if job.attempt > 1:
            retire_earlier(self._storage, self._adapters, job)
            self._reached("fenced")
        member = Member(job, plan)
        if step.arrays.takes(member):
            step.arrays.await_others(member)
            return ()
        return step.delivery.send_one(member, begun_at_s)

    def _fail(self, job: Job, code: str, error: Exception) -> Sequence[Decided]:
        return [(job, ended(self._storage.clock, job, JobState.FAILED, code, str(error)))]
