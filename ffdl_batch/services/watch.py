"""Keeps jobs' states true: reads what controllers rang for, and asks each scheduler one question for all its jobs.

An idle job costs nothing: its files are read only when its doorbell rang or the scheduler's word changed.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from ffdl_batch.domain.events import EventKind
from ffdl_batch.domain.job import Change, Job, JobId, is_token
from ffdl_batch.domain.job_state import Cause, JobState, Wish
from ffdl_batch.domain.jobdir import AttemptDir
from ffdl_batch.domain.known import Evidence, Known
from ffdl_batch.domain.observation import NativeId, Observation, Phase
from ffdl_batch.domain.verdict import Move, Verdict, judge
from ffdl_batch.ports.scheduler import AvoidsNodes, ForgetsJobs, InvalidRequest, Scheduler, SchedulerUnreachable
from ffdl_batch.services.chain import Past, change_of, look_back
from ffdl_batch.services.control import write_control
from ffdl_batch.services.evidence import STILL_ALIVE_S, claim_owner, last_heartbeat, read_evidence
from ffdl_batch.services.platform import Platform
from ffdl_batch.services.wishes import Wishes

log = logging.getLogger(__name__)

SETTLE_S = 10.0
"""How long after the scheduler's word "ended" a final record may still become visible on a shared file system."""
FORGOTTEN_AFTER = 3
"""Full listings in a row that left a job out before we ask whether it was forgotten."""
LOOK_SOON_S = 1.0
"""How long after a head's final record the scheduler is asked, though no full look is due: it will know the end."""
LEASE = "watcher"

Reached = Callable[[str], None]
"""Called with the name of each step; tests kill the process there."""


@dataclass(slots=True)
class _Memory:
    """What the watcher remembers of one attempt between steps; lost at a restart without harm."""

    attempt: int = 0
    observation: Observation | None = None
    ended_seen_at: float | None = None
    missing: int = 0
    requeues: int | None = None
    read_once: bool = False


@dataclass(frozen=True, slots=True)
class _Judged:
    """One job, what follows for it, and why."""

    job: Job
    change: Change
    verdict: Verdict


class Watcher:
    """One per daemon; several daemons on one database take turns by a lease."""

    def __init__(self, platform: Platform, reached: Reached = lambda _step: None) -> None:
        self._platform = platform
        self._reached = reached
        self._memory: dict[JobId, _Memory] = {}
        self._wishes = Wishes(platform)
        self._lease: str | None = None
        self._look_at: float | None = None
        self._renewed_at = 0.0

    def step(self, *, full: bool) -> int:
        """Read rung doorbells; with `full`, ask the schedulers too. Returns how many jobs changed."""
        if not self._hold_lease():
            return 0
        changed = self._hear()
        due = self._look_at is not None and self._platform.clock.monotonic() >= self._look_at
        if full or due:
            self._look_at = None
            changed += self._look()
        return changed

    def close(self) -> None:
        """Give the lease back, so that another daemon goes on at once."""
        if self._lease is not None:
            self._platform.store.release_lease(LEASE, self._lease)
            self._lease = None

    def _hold_lease(self) -> bool:
        """Renewed while most of it is left, and not at each step: a renewal is a durable write."""
        store, seconds = self._platform.store, self._platform.settings.lease_s
        now = self._platform.clock.monotonic()
        if self._lease is not None and now - self._renewed_at < seconds / 4:
            return True
        if self._lease is None or not store.renew_lease(LEASE, self._lease, seconds):
            self._lease = store.acquire_lease(LEASE, self._platform.owner, seconds)
        self._renewed_at = now
        return self._lease is not None

    def _hear(self) -> int:
        """Jobs whose controllers have news. The bell is taken down before the files are read, never after."""
        directory = Path(self._platform.root.doorbell)
        names = [entry.name for entry in os.scandir(directory)]
        if not names:
            return 0
        jobs = self._platform.store.get_many([JobId(name) for name in names])
        for name in names:
            (directory / name).unlink(missing_ok=True)
        return self._settle([job for job in jobs if not job.state.is_terminal and job.native_id], fresh=False)

    def _look(self) -> int:
        """One question to each backend about all its live jobs."""
        changed = 0
        live_ids: set[JobId] = set()
        for backend in self._platform.store.live_backends():
            jobs = self._platform.store.live_deployed(backend)
            live_ids.update(job.id for job in jobs)
            if jobs and self._platform.adapters.may_ask(backend):
                changed += self._ask(backend, jobs)
        self._memory = {key: value for key, value in self._memory.items() if key in live_ids}
        self._wishes.forget_others(live_ids)
        return changed

    def _remembered(self, job: Job) -> _Memory:
        """What is remembered of the job's current attempt."""
        memory = self._memory.get(job.id)
        if memory is None or memory.attempt != job.attempt:
            memory = self._memory[job.id] = _Memory(job.attempt)
        return memory

    def _ask(self, backend: str, jobs: list[Job]) -> int:
        try:
            adapter = self._platform.adapters.get(backend)
            seen = adapter.observe([NativeId.parse(job.native_id) for job in jobs])
            self._platform.adapters.answered(backend)
            found, replaced = _sort_out(jobs, seen)
            self._reached("asked")
            self._wishes.pass_on(adapter, [job for job in jobs if job.id not in replaced], found)
            self._reached("wished")
            forgotten = self._forgotten(adapter, [job for job in jobs if job.id not in found], replaced)
        except (SchedulerUnreachable, InvalidRequest) as error:
            self._platform.adapters.failed(backend, str(error))
            log.warning("backend %s does not answer: %s", backend, error)
            return 0
        news = [job for job in jobs if self._note(job, found.get(job.id)) or job.id in forgotten]
        return self._settle(news, forgotten)

    def _note(self, job: Job, seen: Observation | None) -> bool:
        """Remember what was seen; whether it asks for a closer look."""
        memory = self._remembered(job)
        memory.missing = 0 if seen is not None else memory.missing + 1
        changed = seen is not None and seen != memory.observation
        if seen is not None:
            memory.observation = seen
            if seen.phase is Phase.ENDED and memory.ended_seen_at is None:
                memory.ended_seen_at = self._platform.clock.monotonic()
            elif seen.phase is not Phase.ENDED:
                memory.ended_seen_at = None
        return changed or memory.ended_seen_at is not None or not memory.read_once

    def _forgotten(self, adapter: Scheduler, left_out: Iterable[Job], replaced: Collection[JobId]) -> frozenset[JobId]:
        """Jobs that several listings left out and that a complete answer does not hold either, or holds another for."""
        if not isinstance(adapter, ForgetsJobs):
            return frozenset()
        suspects = [job for job in left_out if self._remembered(job).missing + 1 >= FORGOTTEN_AFTER]
        asked = {NativeId.parse(job.native_id) for job in suspects if job.id not in replaced}
        gone = adapter.is_forgotten(asked) if asked else frozenset()
        return frozenset(job.id for job in suspects if job.id in replaced or NativeId.parse(job.native_id) in gone)

    def _settle(self, jobs: list[Job], forgotten: frozenset[JobId] = frozenset(), *, fresh: bool = True) -> int:
        """Judge each job by all that is known and write what follows, in one transaction.

        `fresh`: the scheduler was asked after these rows were read. Else "pending" may be older than what the files
        say, and must not be taken for a requeue.
        """
        judged = [found for job in jobs if (found := self._try_to_judge(job, job.id in forgotten, fresh)) is not None]
        if not judged:
            return 0
        self._reached("judged")
        written = self._platform.store.apply_many([(one.job, one.change) for one in judged])
        self._reached("noted")
        after = {job.id: job for job in written}
        again: list[Job] = []
        for one in judged:
            if one.job.id not in after or one.verdict.move is Move.NONE:
                continue
            if one.verdict.move is Move.REQUEUED:
                memory = self._remembered(one.job)
                memory.requeues = (memory.requeues or 0) + 1
                again.append(after[one.job.id])  # there may be later news of it: another start, or the end
            elif one.verdict.held and after[one.job.id].state.is_terminal:
                self._take_away(one.job)
        return len(written) + (self._settle(again, forgotten, fresh=fresh) if again else 0)

    def _try_to_judge(self, job: Job, is_forgotten: bool, fresh: bool) -> _Judged | None:
        """One job whose files cannot be read or written keeps no other from being watched; it is looked at again."""
        try:
            return self._judge(job, is_forgotten, fresh)
        except OSError as error:
            log.error("job %s cannot be judged, and is looked at again: %s", job.id, error)
            self._remembered(job).read_once = False
            return None

    def _judge(self, job: Job, is_forgotten: bool, fresh: bool) -> _Judged | None:
        memory = self._remembered(job)
        memory.read_once = True
        attempt = self._platform.root.job(job.id).attempt(job.attempt)
        owner = claim_owner(attempt)
        if owner and owner != job.native_id:
            return _Judged(job, self._follow_claim(job, owner), Verdict())
        evidence = read_evidence(attempt)
        gone = is_forgotten and (evidence.final is not None or not self._is_alive(attempt))
        known = self._known(job, memory, evidence, gone)
        if not fresh and known.observation is not None and known.observation.phase is Phase.PENDING:
            known = replace(known, observation=replace(known.observation, phase=Phase.UNKNOWN))
        verdict = judge(known)
        if known.final is not None and not known.ended and self._look_at is None:
            self._look_at = self._platform.clock.monotonic() + LOOK_SOON_S
        past = Past()
        if verdict.move is not Move.NONE:
            past = look_back(self._platform.root, job, known, verdict, memory.observation)
            self._prepare(job, verdict, past)
        change = change_of(job, verdict, known, past, memory.observation)
        return _Judged(job, change, verdict) if change is not None else None

    def _prepare(self, job: Job, verdict: Verdict, past: Past) -> None:
        """What has to be done before the row changes, so that a crash between the two leaves nothing behind."""
        if verdict.held:
            write_control(self._platform.root, job, wish=Wish.CANCEL)  # should anybody let it go, it ends at once
        if verdict.move is not Move.REQUEUED or not past.failed_nodes:
            return
        try:
            adapter = self._platform.adapters.get(job.backend)
            if isinstance(adapter, AvoidsNodes):
                adapter.avoid(NativeId.parse(job.native_id), past.failed_nodes)
        except (InvalidRequest, SchedulerUnreachable) as error:
            log.warning("job %s cannot be kept off %s: %s", job.id, ", ".join(past.failed_nodes), error)

    def _take_away(self, job: Job) -> None:
        """Cancel what the scheduler holds of a job that has ended."""
        try:
            self._platform.adapters.get(job.backend).cancel(NativeId.parse(job.native_id))
        except (InvalidRequest, SchedulerUnreachable) as error:
            log.warning("job %s: %s could not be cancelled, cancel it by hand: %s", job.id, job.native_id, error)

    def _follow_claim(self, job: Job, owner: str) -> Change:
        """Another delivery of this attempt claimed it first (a request that landed late): that one is the job."""
        log.warning("job %s: %s claimed the attempt, not %s; following it", job.id, owner, job.native_id)
        self._memory[job.id] = _Memory(job.attempt)
        try:
            self._platform.adapters.get(job.backend).cancel(NativeId.parse(job.native_id))
        except SchedulerUnreachable as error:
            log.warning("job %s: the duplicate %s could not be cancelled: %s", job.id, job.native_id, error)
        return Change(columns={"native_id": owner})

    def _is_alive(self, attempt: AttemptDir) -> bool:
        """Whether node controllers were heard of lately: then no listing that leaves the job out is believed."""
        heard = last_heartbeat(attempt)
        return heard is not None and self._platform.clock.now() - heard < STILL_ALIVE_S

    def _known(self, job: Job, memory: _Memory, evidence: Evidence, forgotten: bool) -> Known:
        seen = memory.observation
        waited = memory.ended_seen_at is not None and (
            self._platform.clock.monotonic() - memory.ended_seen_at >= SETTLE_S
        )
        # Slurm says that a job which it cancelled in the queue started and ended at that moment, on no node.
        never_began = not evidence.events and seen is not None and (seen.started_at is None or not seen.nodes)
        if seen is not None and memory.missing:
            seen = replace(seen, phase=Phase.UNKNOWN) if seen.phase is not Phase.ENDED else seen
        return Known(
            state=job.state,
            wish=job.wish,
            observation=None if forgotten else seen,
            evidence=evidence,
            now=self._platform.clock.now(),
            forgotten=forgotten,
            settled=forgotten or waited or never_began,
            learners=job.spec.resources.learners,
            requeues=self._requeues(job, memory, evidence),
        )

    def _requeues(self, job: Job, memory: _Memory, evidence: Evidence) -> int:
        """How often the history says that the scheduler started the current attempt anew; read where it may matter."""
        if memory.requeues is None:
            claims = sum(event.kind is EventKind.CLAIMED for event in evidence.events)
            if claims < 2 and (memory.observation is None or memory.observation.restarts == 0):
                return 0
            history = self._platform.store.history(job.id)
            memory.requeues = sum(
                (e.attempt, e.state, e.cause) == (job.attempt, JobState.QUEUED, Cause.REQUEUED) for e in history
            )
        return memory.requeues


def _sort_out(
    jobs: Iterable[Job], seen: Mapping[NativeId, Observation]
) -> tuple[dict[JobId, Observation], frozenset[JobId]]:
    """What was seen of each job; and the jobs whose id the scheduler has given to another attempt.

    slurmctld that crashes forgets what it accepted in its last seconds and gives those ids out again. A job that its
    owner renamed is still the job: only the name of another attempt proves that it is not.
    """
    found: dict[JobId, Observation] = {}
    replaced: set[JobId] = set()
    for job in jobs:
        shown = seen.get(NativeId.parse(job.native_id))
        if shown is not None and is_token(shown.name) and shown.name != job.token:
            replaced.add(job.id)
        elif shown is not None:
            found[job.id] = shown
    return found, frozenset(replaced)
