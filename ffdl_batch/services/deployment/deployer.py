"""Brings accepted jobs to their scheduler: at most one execution of each attempt, whatever dies in between.

The order is the safety: lease the row; write DEPLOYING with the attempt's token; commit; mark on disk that the
scheduler is about to be asked; ask. Whoever finds a row in DEPLOYING looks for the token first (`find`), adopts what
it finds, and submits again only when nothing was found and no request that was sent can still land. The claim in
the attempt's directory guards what this cannot: a request that lands late executes nothing. Rows are written for many
jobs at once, at the beginning and at the end, and each is guarded by its own revision and lease.

An attempt that a head controller began looks the same from here: a mark that says so, and a token to look for.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from ffdl_batch.config.images import UnknownImage
from ffdl_batch.domain.job.job import Change, Job
from ffdl_batch.domain.job_state import JobState, RequestedAction
from ffdl_batch.domain.outcome.controller_events import GoesOn
from ffdl_batch.domain.outcome.observation import NativeId
from ffdl_batch.domain.scheduler_errors import (
    InvalidRequest,
    NotTaken,
    RefusedBySite,
    SchedulerError,
    SchedulerUnreachable,
    SubmissionUncertain,
)
from ffdl_batch.runtimes.launch_request import LaunchPlan
from ffdl_batch.services.backends.adapters import Adapters
from ffdl_batch.services.backends.node_exclusion import NodeExclusion
from ffdl_batch.services.deployment.array_submission import ArraySubmission
from ffdl_batch.services.deployment.attempt_planning import plan_attempt, plan_template
from ffdl_batch.services.deployment.result_writer import Decided, InFlight, Outcomes, release_all
from ffdl_batch.services.deployment.submission_results import (
    adopt,
    ended,
    ended_as_requested,
    has_none,
    may_land_s,
    note,
    queued,
    refused,
    refused_repeatedly,
    retire_earlier,
    take_back,
    turned_away,
    waits,
    why_looked_for,
    why_not_now,
)
from ffdl_batch.services.deployment.waiting_jobs import Throttle, Waiting, hold_back
from ffdl_batch.services.job_files.attempt_directory import (
    begun_at,
    mark_begun,
    materialize,
    materialize_template,
    unmark_begun,
)
from ffdl_batch.services.job_files.control_cell import write_control
from ffdl_batch.services.job_storage import JobStorage
from ffdl_batch.services.leader_lease import Leases
from ffdl_batch.services.os_errors import explain
from ffdl_batch.services.outcome.attempt_records import claim_owner, read_evidence
from ffdl_batch.services.secrets.job_secrets import CODE as SECRET_CODE
from ffdl_batch.services.secrets.job_secrets import SecretMissing
from ffdl_batch.store import LeasedJob, StoreError, StoreUnavailable

log = logging.getLogger(__name__)

BATCH = 64
ELEMENTS = 936
"""Further elements of arrays in one step, so that a thousand go to a scheduler with its native arrays at once."""
WORKERS = 8
"""Submissions at once: Slurm takes about twice as many per second from four callers as from one; the others prepare."""
LOOK_AGAIN_S = 2.0
SUBMIT_S = 120.0
"""How long one submission may take, with all of a slow scheduler's time-outs."""
HANDOVER_S = 10.0
"""How long whoever was to start an attempt that a head had begun is left alone with it."""

Checkpoint = Callable[[str], None]
"""Called with the name of each step; tests make it fail or kill the process there."""


class Deployer:
    """Leases PENDING and DEPLOYING jobs and takes each one step further."""

    def __init__(
        self,
        storage: JobStorage,
        adapters: Adapters,
        node_exclusion: NodeExclusion,
        leases: Leases,
        reached: Checkpoint = lambda _step: None,
    ) -> None:
        self._storage, self._adapters, self._node_exclusion, self._leases = storage, adapters, node_exclusion, leases
        self._reached = reached
        self._waiting = Waiting(storage)
        self._throttle = Throttle(storage.store, adapters)
        self._flights = InFlight(storage)

    def step(self) -> int:
        """Deal with up to BATCH jobs that wait for no training, and with ELEMENTS more where arrays are among them;
        returns how many made progress."""
        self._waiting.wake()
        self._throttle.wake()
        while True:
            leased = self._storage.store.claim_deployable(
                self._leases.owner, limit=BATCH, lease_s=self._leases.seconds, elements=ELEMENTS
            )
            if not leased:
                return 0
            self._reached("claimed")
            try:
                ready, done = self._waiting.sort_out(leased)
                ready = hold_back(self._storage.store, self._adapters, self._throttle.sort_out(ready))
            except BaseException:
                release_all(self._storage.store, [one.job for one in leased], leased[0].lease_token)
                raise
            if ready:
                return done + self._deploy(ready)
            if done or len(leased) < BATCH:
                return done
            # All of them wait: jobs behind them that need not must not stand in their queue.

    def _deploy(self, leased: Sequence[LeasedJob]) -> int:
        """Take each of `leased` (of one claim) a step further: workers act, this thread writes what they decide."""
        token = leased[0].lease_token
        begins_at = self._storage.clock.monotonic()
        sending = self._flights.sending
        array_submission = ArraySubmission(
            self._storage,
            self._adapters,
            self._node_exclusion,
            token,
            self._submit_lease_s,
            self._reached,
            self._alone(token),
            sending,
        )
        try:
            begun, found = self._begin([one.job for one in leased], token)
            self._flights.begin(token, [*begun, *found])
            late = array_submission.look_for(found)
        except BaseException:
            release_all(self._storage.store, [one.job for one in leased], token)
            raise
        outcomes = Outcomes(
            self._storage.store,
            token,
            lambda: self._reached("queued"),
            lambda dropped: take_back(self._storage, self._adapters, dropped),
            self._flights.report,
            self._flights.latest,
        )
        try:
            with ThreadPoolExecutor(max_workers=WORKERS, thread_name_prefix="deploy") as pool:
                for job in begun:
                    outcomes.expect(pool.submit(self._one, job, token, begins_at, array_submission))
                for job in found:
                    if job.id not in late:
                        outcomes.expect(pool.submit(self._one, job, token, None, array_submission))
                changed = outcomes.write()
                for members in array_submission.groups():
                    outcomes.expect(pool.submit(array_submission.send, members))
                return changed + outcomes.write()
        finally:
            array_submission.disband()

    def _begin(self, jobs: Sequence[Job], token: str) -> tuple[list[Job], list[Job]]:
        """Begin the attempts that can begin, in one write; those jobs as they are now, and the jobs to be dealt with
        as they were found. What somebody else changed meanwhile is neither."""
        ready = [
            job
            for job in jobs
            if job.state is JobState.PENDING and job.requested_action is RequestedAction.NONE and self._may_ask(job)
        ]
        store, clock = self._storage.store, self._storage.clock
        begun = store.begin_attempts(ready, token, clock.now(), self._submit_lease_s)
        release_all(store, [job for job in ready if job.id not in begun], token, due=True)
        beginning = {job.id for job in ready}
        return list(begun.values()), [job for job in jobs if job.id not in beginning]

    def _may_ask(self, job: Job) -> bool:
        return self._adapters.may_ask(job.backend)

    def _one(
        self, job: Job, token: str, begun_here_at: float | None, array_submission: ArraySubmission
    ) -> Sequence[Decided]:
        """One job, one step; `begun_here_at`: when this step began its attempt (monotonic), None = it was found so.

        Return nothing for a job that is put off, or sent by `array_submission`. A failure that is not the job's puts it
        off, too.
        """

        def advance() -> Change | float | LaunchPlan:
            if not self._may_ask(job) and job.requested_action is RequestedAction.NONE:
                return LOOK_AGAIN_S
            return self._advance(job, token, begun_here_at, array_submission)

        outcome = self._attend(job, token, advance)
        if isinstance(outcome, LaunchPlan):
            array_submission.await_others(job, outcome)
            return ()
        return [outcome] if outcome is not None else ()

    def _alone(self, token: str) -> Callable[[Job, LaunchPlan], Sequence[Decided]]:
        """What sends one job by itself, whose files are written."""

        def send(job: Job, plan: LaunchPlan) -> Sequence[Decided]:
            outcome = self._attend(job, token, lambda: self._send(job, token, plan, None))
            return [outcome] if isinstance(outcome, tuple) else ()

        return send

    def _attend(
        self, job: Job, token: str, act: Callable[[], Change | float | LaunchPlan]
    ) -> Decided | LaunchPlan | None:
        """What `act` decided; None of a job that is put off, for as many seconds as `act` says or by what it met."""
        try:
            outcome = act()
        except SchedulerUnreachable as error:
            is_news = self._explain(job, token, why_not_now(error))
            log.log(logging.WARNING if is_news else logging.DEBUG, "job %s is put off: %s", job.id, error)
            outcome = self._adapters.pause_s(job, error)
        except OSError as error:
            why = explain(error, self._storage.root.path) or error
            log.error("job %s cannot be prepared: %s", job.id, why)
            self._explain(job, token, f"its directory cannot be prepared, and it is tried again: {why}")
            outcome = 4 * _pause()
        except BaseException as error:
            if isinstance(error, StoreError) or not isinstance(error, Exception):
                self._storage.store.release(job.id, token)
                raise
            log.exception("job %s cannot be prepared", job.id)
            said = f"{type(error).__name__} in the daemon: {error}"
            self._explain(job, token, f"it cannot be prepared, and it is tried again: {said}")
            outcome = 4 * _pause()
        if isinstance(outcome, Change):
            return job, outcome
        if isinstance(outcome, LaunchPlan):
            return outcome
        self._storage.store.release(job.id, token, self._storage.store.now() + outcome)
        return None

    def _explain(self, job: Job, token: str, reason: str) -> bool:
        """Say on the job why it waits; whether it said something else before. A courtesy: where the database has no
        room either, the log says it alone."""
        try:
            return bool(note(self._storage.store, [job], Change(columns={"pending_reason": reason}), token))
        except StoreUnavailable as error:
            log.warning("job %s: the reason for its waiting could not be written: %s", job.id, error)
        return True

    def _advance(
        self, job: Job, token: str, begun_here_at: float | None, array_submission: ArraySubmission
    ) -> Change | float | LaunchPlan:
        """What is to be written of the job when it went on, else the seconds after which to look again; the plan of a
        job that is written and goes in array_submission."""
        if job.state is JobState.PENDING:  # it was not begun, for a reason that may have passed
            return (
                ended_as_requested(self._storage.clock, job)
                if job.requested_action is not RequestedAction.NONE
                else 0.0
            )
        if begun_here_at is None:
            return self._recover(job, token, array_submission)
        self._reached("deploying")
        if begun_at(self._storage.root.job(job.id).attempt(job.attempt)) is not None:
            return self._recover(job, token, array_submission)  # a head was slower than we were, and has begun it too
        return self._submit(job, token, array_submission, begun_here_at)

    def _recover(self, job: Job, token: str, array_submission: ArraySubmission) -> Change | float | LaunchPlan:
        """A row found in DEPLOYING: somebody began this attempt and nobody knows how far it went."""
        attempt = self._storage.root.job(job.id).attempt(job.attempt)
        asked_at = begun_at(attempt)
        if asked_at is None:
            return self._submit_or_end(job, token, array_submission)
        if job.requested_action is not RequestedAction.NONE:
            write_control(self._storage.root, job, requested_action=job.requested_action)
        found = array_submission.found(job)
        if found is None:
            with self._adapters.asking(job.backend) as adapter:
                found = adapter.find(job.token, attempt)
        self._reached("looked")
        owner = claim_owner(attempt)
        if owner:
            found |= {NativeId.parse(owner)}  # it executes the attempt, whether or not it is remembered
        if found:
            return adopt(self._storage, self._adapters, self._node_exclusion, job, found, asked_at)
        passed_s = self._storage.file_time(attempt.submit) - asked_at
        at_least_s = HANDOVER_S if self._was_handed_over(job) else 0.0
        left = may_land_s(self._storage.clock, self._adapters, job, passed_s, at_least_s)
        if left > 0:
            self._explain(job, token, why_looked_for(self._adapters, job, at_least_s))
            return min(left, LOOK_AGAIN_S)
        return self._submit_or_end(job, token, array_submission)

    def _was_handed_over(self, job: Job) -> bool:
        """Whether the head of the attempt before began this one."""
        if job.attempt == 1:
            return False
        final = read_evidence(self._storage.root.job(job.id).attempt(job.attempt - 1)).final
        return final is not None and final.goes_on is GoesOn.SUCCESSOR

    def _submit_or_end(self, job: Job, token: str, array_submission: ArraySubmission) -> Change | float | LaunchPlan:
        return (
            self._submit(job, token, array_submission)
            if job.requested_action is RequestedAction.NONE
            else ended_as_requested(self._storage.clock, job)
        )

    def _submit(
        self, job: Job, token: str, array_submission: ArraySubmission, begun_here_at: float | None = None
    ) -> Change | float | LaunchPlan:
        try:
            plan = plan_attempt(self._storage, self._adapters, self._node_exclusion, job)
        except InvalidRequest as error:
            return ended(self._storage.clock, job, JobState.FAILED, "S101", str(error))
        except UnknownImage as error:
            return ended(self._storage.clock, job, JobState.FAILED, "S103", str(error))
        try:
            materialize(self._storage.root, job, plan)
            self._reached("written")
            materialize_template(
                self._storage.root, job, plan_template(self._storage, self._adapters, self._node_exclusion, job, plan)
            )
            self._reached("template")
        except SecretMissing as error:
            return ended(self._storage.clock, job, JobState.FAILED, SECRET_CODE, str(error))
        if job.attempt > 1:
            retire_earlier(self._storage, self._adapters, job)
            self._reached("fenced")
        if array_submission.takes(job, plan):
            return plan
        return self._send(job, token, plan, begun_here_at)

    @property
    def _submit_lease_s(self) -> float:
        """How long the lease must last when the scheduler is asked."""
        return self._leases.seconds + SUBMIT_S

    def _still_leased(self, job: Job, token: str, leased_at: float | None) -> bool:
        """Make sure that the lease outlasts a submission; `leased_at` is when the attempt's beginning renewed it."""
        if leased_at is not None and self._storage.clock.monotonic() - leased_at < self._leases.seconds:
            return True  # at least SUBMIT_S are left, and a write saved
        return self._storage.store.renew(job.id, token, self._submit_lease_s)

    def _send(self, job: Job, token: str, plan: LaunchPlan, leased_at: float | None) -> Change | float:
        if not self._still_leased(job, token, leased_at):
            return 0.0
        try:
            with self._adapters.asking(job.backend) as adapter:
                mark_begun(plan.attempt_dir, by=token)
                self._reached("marked")
                with self._flights.sending([job]):
                    native = adapter.submit(plan)
        except InvalidRequest as error:
            return self._refused(job, token, plan, error)
        except NotTaken as error:
            why = turned_away(self._adapters, [job], error)
            if not why:
                return self._refused(job, token, plan, refused_repeatedly(error))
            unmark_begun(plan.attempt_dir, by=token)
            return waits(self._storage.clock, why)
        except SchedulerUnreachable:
            unmark_begun(plan.attempt_dir, by=token)
            raise
        except SubmissionUncertain as error:
            return self._uncertain(job, token, error)
        self._reached("submitted")
        self._adapters.submit_limits.taken(job)
        return queued(self._storage, job, native, plan, self._storage.clock.now())

    def _uncertain(self, job: Job, token: str, error: SchedulerError) -> float:
        """Note that the scheduler may have the attempt, so that it is looked for first."""
        log.warning("job %s: %s", job.id, error)
        uncertain = Change(columns={"uncertain_since": self._storage.clock.now(), "pending_reason": str(error)})
        note(self._storage.store, [job], uncertain, token)
        return LOOK_AGAIN_S / 2

    def _refused(self, job: Job, token: str, plan: LaunchPlan, error: InvalidRequest) -> Change | float:
        """The scheduler will not have it: the end, unless it may like it better with the nodes that failed this job."""
        if isinstance(error, RefusedBySite) and not has_none(
            self._adapters, job.backend, {job.token: plan.attempt_dir}
        ):
            return self._uncertain(job, token, error)
        if not job.overrides.exclude:
            return refused(self._storage.clock, job, error)
        log.warning("job %s was refused without %s: %s", job.id, ", ".join(job.overrides.exclude), error)
        unmark_begun(plan.attempt_dir, by=token)
        change = Change(columns={"overrides": replace(job.overrides, exclude=())})
        note(self._storage.store, [job], change, token)
        return 0.0


def _pause() -> float:
    return LOOK_AGAIN_S * (0.75 + secrets.randbelow(501) / 1000)
