"""Submits attempts to schedulers and decides what their answers, or failures, change of the jobs.

A single attempt and a native array are submitted in the same way. The mark on disk that the scheduler is about to be
asked is removed only if the scheduler certainly has not accepted the attempt.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from ffdl_batch.attempt.element_files import ElementTable, write_element
from ffdl_batch.domain.job.job import Change, Job, Token
from ffdl_batch.domain.outcome.observation import NativeId
from ffdl_batch.domain.scheduler_errors import (
    ArraysRefused,
    InvalidRequest,
    NotTaken,
    RefusedBySite,
    SchedulerError,
    SchedulerUnreachable,
    SubmissionUncertain,
    TooMany,
)
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.ports.scheduler import Scheduler
from ffdl_batch.runtimes.launch_request import LaunchPlan
from ffdl_batch.services.backends.adapters import Adapters
from ffdl_batch.services.deployment.result_writer import Decided, InFlight
from ffdl_batch.services.deployment.step_lease import Delay, StepLease
from ffdl_batch.services.deployment.submission_results import (
    has_none,
    queued,
    refused,
    refused_repeatedly,
    turned_away,
    waits,
    why_not_now,
)
from ffdl_batch.services.job_files.attempt_directory import mark_begun, unmark_begun
from ffdl_batch.services.job_storage import JobStorage
from ffdl_batch.services.os_errors import explain
from ffdl_batch.store import StoreError

log = logging.getLogger(__name__)

FAULT_PAUSE_S = 8.0
"""Pause after a failure that is not the scheduler's."""
UNCERTAIN_PAUSE_S = 1.0
"""Pause before the scheduler is searched for an attempt that it may have accepted."""

Reached = Callable[[str], None]
"""Called with the name of each step; tests make it fail or kill the process there."""


@dataclass(frozen=True, slots=True)
class Member:
    """A job whose attempt is planned and whose files are written, or are in `table`."""

    job: Job
    plan: LaunchPlan
    table: ElementTable | None = None
    """Set for an element whose directory is made when its task starts."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """Submits the attempts of one step of the deployer. Safe in every thread.

    All methods that return decisions return none for jobs that they have put off.
    """

    storage: JobStorage
    adapters: Adapters
    lease: StepLease
    lease_s: float
    """How long a new lease lasts."""
    submit_lease_s: float
    """How long a lease must last when the scheduler is asked."""
    in_flight: InFlight
    reached: Reached

    def attend(self, jobs: Sequence[Job], act: Callable[[], Sequence[Decided]]) -> Sequence[Decided]:
        """Return what `act` decides about leased jobs. If it fails, put the jobs off and show why.

        TooMany and ArraysRefused are raised to the caller, which submits the jobs in another way.
        """
        try:
            return act()
        except (TooMany, ArraysRefused):
            raise
        except SchedulerUnreachable as error:
            self.put_off_unreachable(jobs, error)
        except StoreError:
            self.lease.release(jobs)
            raise
        except OSError as error:
            why = explain(error, self.storage.root.path) or error
            log.error("cannot prepare %s: %s", _named(jobs), why)
            self._put_off_fault(jobs, f"its directory cannot be prepared, and it is tried again: {why}")
        except Exception as error:
            log.exception("cannot prepare %s", _named(jobs))
            what = f"{type(error).__name__} in the daemon: {error}"
            self._put_off_fault(jobs, f"it cannot be prepared, and it is tried again: {what}")
        except BaseException:
            self.lease.release(jobs)
            raise
        return ()

    def put_off_unreachable(self, jobs: Sequence[Job], error: SchedulerUnreachable) -> None:
        """Put off jobs about which the scheduler could not be asked."""
        pause_s, why = self.adapters.pause_s(jobs[0], error), why_not_now(error)
        is_new = self.lease.put_off([Delay(job, pause_s, why) for job in jobs])
        log.log(logging.WARNING if is_new else logging.DEBUG, "put off %s: %s", _named(jobs), error)

    def _put_off_fault(self, jobs: Sequence[Job], reason: str) -> None:
        self.lease.put_off([Delay(job, FAULT_PAUSE_S, reason) for job in jobs])

    def send_one(self, member: Member, leased_at: float | None = None) -> Sequence[Decided]:
        """Submit one attempt. `leased_at` is when the start of the attempt renewed its lease (monotonic)."""
        job, plan = member.job, member.plan
        if not self._renew(job, leased_at):
            return ()
        if member.table is not None and job.spec.element is not None:
            write_element(self.storage.root, job.spec.element.array, member.table, job.id)

        def ask(adapter: Scheduler) -> Mapping[Token, NativeId]:
            mark_begun(plan.attempt_dir, by=self.lease.token)
            self.reached("marked")
            with self.in_flight.sending([job]):
                return {plan.token: adapter.submit(plan)}

        return self.deliver([member], ask, lambda: self._unmark(member), lambda: self.reached("submitted"))

    def _renew(self, job: Job, leased_at: float | None) -> bool:
        """Make sure that the lease outlasts a submission. Return whether it is still held."""
        if leased_at is not None and self.storage.clock.monotonic() - leased_at < self.lease_s:
            return True  # enough is left of the lease for a submission, which saves a write
        return self.lease.store.renew(job.id, self.lease.token, self.submit_lease_s)

    def _unmark(self, member: Member) -> None:
        unmark_begun(member.plan.attempt_dir, by=self.lease.token)

    def deliver(
        self,
        members: Sequence[Member],
        ask: Callable[[Scheduler], Mapping[Token, NativeId]],
        unmark: Callable[[], None],
        submitted: Callable[[], None],
    ) -> Sequence[Decided]:
        """Submit `members` by `ask`, and decide what the answer changes of their jobs.

        `submitted` is called if the scheduler has accepted them, `unmark` if it certainly has accepted none. Raises
        SchedulerUnreachable, and for several members TooMany and ArraysRefused.
        """
        jobs = [member.job for member in members]
        try:
            with self.adapters.asking(jobs[0].backend) as adapter:
                natives = ask(adapter)
        except ArraysRefused:
            unmark()
            raise
        except NotTaken as error:
            if isinstance(error, TooMany) and len(members) > 1:
                unmark()
                raise
            why = turned_away(self.adapters, jobs, error)
            if not why:
                return self._refused(members, refused_repeatedly(error))
            unmark()
            return [(job, waits(self.storage.clock, why)) for job in jobs]
        except InvalidRequest as error:
            return self._refused(members, error)
        except SchedulerUnreachable:
            unmark()
            raise
        except SubmissionUncertain as error:
            return self._uncertain(jobs, error)
        submitted()
        self.adapters.submit_limits.taken(jobs[0])
        now = self.storage.clock.now()
        return [(one.job, queued(self.storage, one.job, natives[one.plan.token], one.plan, now)) for one in members]

    def _refused(self, members: Sequence[Member], error: InvalidRequest) -> Sequence[Decided]:
        """End the refused jobs. A job that excludes nodes that failed it is tried again with these nodes first.

        If the refusal is uncertain, first ask whether the scheduler has the attempts.
        """
        jobs = [member.job for member in members]
        attempts = {member.job.token: member.plan.attempt_dir for member in members}
        if isinstance(error, RefusedBySite) and not has_none(self.adapters, jobs[0].backend, attempts):
            return self._uncertain(jobs, error)
        for member in members:
            if member.job.overrides.exclude:
                self._retry_with_all_nodes(member, error)
        return [(job, refused(self.storage.clock, job, error)) for job in jobs if not job.overrides.exclude]

    def _retry_with_all_nodes(self, member: Member, error: InvalidRequest) -> None:
        job = member.job
        log.warning("job %s was refused without %s: %s", job.id, ", ".join(job.overrides.exclude), error)
        self._unmark(member)
        self.lease.note([job], Change(columns={"overrides": replace(job.overrides, exclude=())}))
        self.lease.put_off([Delay(job, 0.0)])

    def _uncertain(self, jobs: Sequence[Job], error: SchedulerError) -> Sequence[Decided]:
        """Note that the scheduler may have the attempts, so that it is searched for them first."""
        log.warning("%s: %s", _named(jobs), error)
        change = Change(columns={"uncertain_since": self.storage.clock.now(), "pending_reason": str(error)})
        self.lease.note(jobs, change)
        self.lease.put_off([Delay(job, UNCERTAIN_PAUSE_S) for job in jobs])
        return ()


def _named(jobs: Sequence[Job]) -> str:
    return f"job {jobs[0].id}" if len(jobs) == 1 else f"{len(jobs)} jobs, {jobs[0].id} among them"
