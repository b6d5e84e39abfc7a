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
from ffdl_batch.domain.continuation import Interruption
from ffdl_batch.domain.ending import CANCELLED_BY_OWNER, HALTED_BEFORE
from ffdl_batch.domain.events import GoesOn
from ffdl_batch.domain.job import AttemptEnd, Change, Job
from ffdl_batch.domain.job_state import JobState, Wish
from ffdl_batch.domain.observation import NativeId, Phase
from ffdl_batch.ports.scheduler import (
    CredentialLife,
    InvalidRequest,
    LaunchPlan,
    Scheduler,
    SchedulerUnreachable,
    SubmissionUncertain,
)
from ffdl_batch.services.control import fence_earlier, write_control
from ffdl_batch.services.evidence import claim_owner, read_evidence, read_launch
from ffdl_batch.services.materialize import begun_at, mark_begun, materialize, materialize_template, unmark_begun
from ffdl_batch.services.outcomes import Decided, Outcomes, release_all
from ffdl_batch.services.platform import Platform
from ffdl_batch.services.succession import plan_attempt, plan_template
from ffdl_batch.services.waiting import Waiting
from ffdl_batch.store import LeasedJob, StoreUnavailable

log = logging.getLogger(__name__)

BATCH = 64
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

    def __init__(self, platform: Platform, reached: Checkpoint = lambda _step: None) -> None:
        self._platform = platform
        self._reached = reached
        self._waiting = Waiting(platform)

    def step(self) -> int:
        """Deal with up to BATCH jobs that wait for no training; returns how many made progress."""
        platform = self._platform
        self._waiting.wake()
        while True:
            leased = platform.store.claim_deployable(platform.owner, limit=BATCH, lease_s=platform.settings.lease_s)
            if not leased:
                return 0
            self._reached("claimed")
            try:
                ready, ended = self._waiting.sort_out(leased)
            except BaseException:
                release_all(platform.store, [one.job for one in leased], leased[0].lease_token)
                raise
            if ready:
                return ended + self._deploy(ready)
            if ended or len(leased) < BATCH:
                return ended
            # All of them wait: jobs behind them that need not must not stand in their queue.

    def _deploy(self, leased: Sequence[LeasedJob]) -> int:
        """Take each of `leased` (of one claim) a step further: workers act, this thread writes what they decide."""
        token = leased[0].lease_token
        begins_at = self._platform.clock.monotonic()
        try:
            begun, found = self._begin([one.job for one in leased], token)
        except BaseException:
            release_all(self._platform.store, [one.job for one in leased], token)
            raise
        outcomes = Outcomes(self._platform.store, token, lambda: self._reached("queued"))
        with ThreadPoolExecutor(max_workers=WORKERS, thread_name_prefix="deploy") as pool:
            for job in begun:
                outcomes.expect(pool.submit(self._one, job, token, begins_at))
            for job in found:
                outcomes.expect(pool.submit(self._one, job, token, None))
            return outcomes.write()

    def _begin(self, jobs: Sequence[Job], token: str) -> tuple[list[Job], list[Job]]:
        """Begin the attempts that can begin, in one write; those jobs as they are now, and the jobs to be dealt with
        as they were found. What somebody else changed meanwhile is neither."""
        ready = [job for job in jobs if job.state is JobState.PENDING and job.wish is Wish.NONE and self._may_ask(job)]
        store, clock = self._platform.store, self._platform.clock
        begun = store.begin_attempts(ready, token, clock.now(), self._submit_lease_s)
        release_all(store, [job for job in ready if job.id not in begun], token, due=True)
        beginning = {job.id for job in ready}
        return list(begun.values()), [job for job in jobs if job.id not in beginning]

    def _may_ask(self, job: Job) -> bool:
        return self._platform.adapters.may_ask(job.backend)

    def _one(self, job: Job, token: str, begun_here_at: float | None) -> Decided | None:
        """One job, one step; `begun_here_at`: when this step began its attempt (monotonic), None = it was found so.

        None is returned of a job that is put off. A failure that is not the job's puts it off, too.
        """
        try:
            if not self._may_ask(job) and job.wish is Wish.NONE:
                outcome: Change | float = LOOK_AGAIN_S
            else:
                outcome = self._advance(job, token, begun_here_at)
        except SchedulerUnreachable as error:
            log.warning("job %s is put off: %s", job.id, error)
            self._platform.adapters.failed(job.backend, str(error))
            self._explain(job, token, f"the scheduler does not answer: {error}")
            outcome = _pause()
        except OSError as error:
            log.error("job %s cannot be prepared: %s", job.id, error)
            self._explain(job, token, f"its directory cannot be prepared, and it is tried again: {error}")
            outcome = 4 * _pause()
        except BaseException:
            self._platform.store.release(job.id, token)
            raise
        if isinstance(outcome, Change):
            return job, outcome
        self._platform.store.release(job.id, token, self._platform.store.now() + outcome)
        return None

    def _explain(self, job: Job, token: str, reason: str) -> None:
        """Say on the job why it waits. A courtesy: where the database has no room either, the log says it alone."""
        current = self._platform.store.get(job.id)
        if current is None or current.pending_reason == reason:
            return
        try:
            self._platform.store.apply(current, Change(columns={"pending_reason": reason}), lease_token=token)
        except StoreUnavailable as error:
            log.warning("job %s: the reason for its waiting could not be written: %s", job.id, error)

    def _advance(self, job: Job, token: str, begun_here_at: float | None) -> Change | float:
        """What is to be written of the job when it went on, else the seconds after which to look again."""
        if job.state is JobState.PENDING:  # it was not begun, for a reason that may have passed
            return self._end_as_wished(job) if job.wish is not Wish.NONE else 0.0
        if begun_here_at is None:
            return self._recover(job, token)
        self._reached("deploying")
        if begun_at(self._platform.root.job(job.id).attempt(job.attempt)) is not None:
            return self._recover(job, token)  # a head was slower than we were, and has begun it too
        return self._submit(job, token, begun_here_at)

    def _recover(self, job: Job, token: str) -> Change | float:
        """A row found in DEPLOYING: somebody began this attempt and nobody knows how far it went."""
        adapter = self._platform.adapters.get(job.backend)
        attempt = self._platform.root.job(job.id).attempt(job.attempt)
        asked_at = begun_at(attempt)
        if asked_at is None:
            return self._submit_or_end(job, token)
        if job.wish is not Wish.NONE:
            write_control(self._platform.root, job, wish=job.wish)
        found = adapter.find(job.token, attempt)
        self._platform.adapters.answered(job.backend)
        self._reached("looked")
        owner = claim_owner(attempt)
        if owner:
            found |= {NativeId.parse(owner)}  # it executes the attempt, whether or not it is remembered
        if found:
            return self._adopt(job, adapter, found)
        life = adapter.credential_life_s if isinstance(adapter, CredentialLife) else 0.0
        life = max(life, HANDOVER_S if self._was_handed_over(job) else 0.0)
        left = max(asked_at, job.uncertain_since or 0.0) + life - self._platform.clock.now()
        if left > 0:
            return min(left, LOOK_AGAIN_S)
        return self._submit_or_end(job, token)

    def _was_handed_over(self, job: Job) -> bool:
        """Whether the head of the attempt before began this one."""
        if job.attempt == 1:
            return False
        final = read_evidence(self._platform.root.job(job.id).attempt(job.attempt - 1)).final
        return final is not None and final.goes_on is GoesOn.SUCCESSOR

    def _submit_or_end(self, job: Job, token: str) -> Change | float:
        return self._submit(job, token) if job.wish is Wish.NONE else self._end_as_wished(job)

    def _end_as_wished(self, job: Job) -> Change | float:
        """The scheduler never heard of the attempt, so nothing has to be asked for."""
        if job.wish is Wish.CANCEL:
            return self._end(JobState.CANCELLED, "000", f"{CANCELLED_BY_OWNER} before it was deployed")
        return self._end(JobState.HALTED, "000", HALTED_BEFORE)

    def _adopt(self, job: Job, adapter: Scheduler, found: frozenset[NativeId]) -> Change | float:
        """One of `found` is the attempt: the one that claimed it, else the oldest; the others are cancelled."""
        attempt = self._platform.root.job(job.id).attempt(job.attempt)
        owner = claim_owner(attempt)
        ordered = sorted(found, key=_age)
        keep = next((native for native in ordered if str(native) == owner), ordered[0])
        for native in ordered:
            if native != keep:
                log.warning("job %s: cancelling the duplicate %s of %s", job.id, native, keep)
                adapter.cancel(native)
        fence_earlier(self._platform.root, job)
        return self._queued(job, keep, None)

    def _submit(self, job: Job, token: str, begun_here_at: float | None = None) -> Change | float:
        try:
            plan = plan_attempt(self._platform, job)
        except InvalidRequest as error:
            return self._end(JobState.FAILED, "S101", str(error))
        except UnknownImage as error:
            return self._end(JobState.FAILED, "S103", str(error))
        materialize(self._platform.root, job, plan)
        self._reached("written")
        materialize_template(self._platform.root, job, plan_template(self._platform, job, plan))
        self._reached("template")
        if job.attempt > 1:
            self._retire_earlier(job)
            self._reached("fenced")
        return self._send(job, token, plan, begun_here_at)

    def _retire_earlier(self, job: Job) -> None:
        """Nothing of an earlier attempt may go on beside this one: fence its controllers, and take away what the
        scheduler still has of it (held after too many requeues, or requeued after all)."""
        fence_earlier(self._platform.root, job)
        earlier = [a for a in self._platform.store.attempts(job.id) if a.number == job.attempt - 1 and a.native_id]
        adapter = self._platform.adapters.get(job.backend)
        for attempt in earlier:
            native = NativeId.parse(attempt.native_id)
            shown = adapter.observe([native]).get(native)
            is_it = shown is not None and shown.name in ("", attempt.token)
            if shown is not None and is_it and shown.phase not in (Phase.ENDED, Phase.UNKNOWN):
                log.info("job %s: cancelling %s, its attempt %d is over", job.id, native, attempt.number)
                adapter.cancel(native)

    @property
    def _submit_lease_s(self) -> float:
        """How long the lease must last when the scheduler is asked."""
        return self._platform.settings.lease_s + SUBMIT_S

    def _still_leased(self, job: Job, token: str, leased_at: float | None) -> bool:
        """Make sure that the lease outlasts a submission; `leased_at` is when the attempt's beginning renewed it."""
        if leased_at is not None and self._platform.clock.monotonic() - leased_at < self._platform.settings.lease_s:
            return True  # at least SUBMIT_S are left, and a write saved
        return self._platform.store.renew(job.id, token, self._submit_lease_s)

    def _send(self, job: Job, token: str, plan: LaunchPlan, leased_at: float | None) -> Change | float:
        adapter = self._platform.adapters.get(job.backend)
        if not self._still_leased(job, token, leased_at):
            return 0.0
        mark_begun(plan.attempt_dir)
        self._reached("marked")
        try:
            native = adapter.submit(plan)
        except InvalidRequest as error:
            return self._refused(job, token, plan, error)
        except SchedulerUnreachable:
            unmark_begun(plan.attempt_dir)
            raise
        except SubmissionUncertain as error:
            log.warning("job %s: %s", job.id, error)
            change = Change(columns={"uncertain_since": self._platform.clock.now()})
            self._platform.store.apply(job, change, lease_token=token)
            return LOOK_AGAIN_S / 2
        self._reached("submitted")
        self._platform.adapters.answered(job.backend)
        return self._queued(job, native, plan)

    def _refused(self, job: Job, token: str, plan: LaunchPlan, error: InvalidRequest) -> Change | float:
        """The scheduler will not have it: the end, unless it may like it better with the nodes that failed this job."""
        if not job.overrides.exclude:
            return self._end(JobState.FAILED, "S101", str(error))
        log.warning("job %s was refused without %s: %s", job.id, ", ".join(job.overrides.exclude), error)
        unmark_begun(plan.attempt_dir)
        change = Change(columns={"overrides": replace(job.overrides, exclude=())})
        self._platform.store.apply(job, change, lease_token=token)
        return 0.0

    def _queued(self, job: Job, native: NativeId, plan: LaunchPlan | None) -> Change | float:
        """The scheduler has it. Without a plan the attempt's own files say what was sent."""
        attempt = self._platform.root.job(job.id).attempt(job.attempt)
        launch, network = (plan.launch, plan.network) if plan is not None else (read_launch(attempt), None)
        if launch is None:
            plan = plan_attempt(self._platform, job)
            launch, network = plan.launch, plan.network
        columns: dict[str, object] = {
            "native_id": str(native),
            "uncertain_since": None,
            "pending_reason": "",
            "network": (network or launch.network).level,
            "results": launch.stores.results or attempt.results,
        }
        return Change(steps=((JobState.QUEUED, self._platform.clock.now()),), columns=columns)

    def _end(self, state: JobState, code: str, message: str) -> Change | float:
        end = AttemptEnd(Interruption.HALT.value if state is JobState.HALTED else "")
        steps = ((state, self._platform.clock.now()),)
        return Change(steps, message=message, error_code=code, attempt_end=end)


def _age(native: NativeId) -> tuple[int, str]:
    return (int(native.job) if native.job.isdigit() else 0, str(native))


def _pause() -> float:
    return LOOK_AGAIN_S * (0.75 + secrets.randbelow(501) / 1000)
