"""Keeps jobs' states true: reads what controllers rang for, and asks each scheduler one question for all its jobs.

An idle job costs nothing: its files are read only when its doorbell rang or the scheduler's word changed.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from ffdl_batch.domain.job import Change, Job, JobId, is_token
from ffdl_batch.domain.job_state import Wish
from ffdl_batch.domain.jobdir import AttemptDir
from ffdl_batch.domain.observation import NativeId, Observation, Phase
from ffdl_batch.domain.verdict import Evidence, Known, Verdict, judge
from ffdl_batch.ports.scheduler import ForgetsJobs, InvalidRequest, Scheduler, SchedulerUnreachable
from ffdl_batch.services.evidence import claim_owner, last_heartbeat, read_evidence
from ffdl_batch.services.platform import Platform

log = logging.getLogger(__name__)

SETTLE_S = 10.0
"""How long after the scheduler's word "ended" a final record may still become visible on a shared file system."""
CANCEL_AGAIN_S = 15.0
FORGOTTEN_AFTER = 3
"""Full listings in a row that left a job out before we ask whether it was forgotten."""
LOOK_SOON_S = 1.0
"""How long after a head's final record the scheduler is asked, though no full look is due: it will know the end."""
STILL_ALIVE_S = 150.0
"""A node controller that cannot reach its job's directory kills its learners sooner (Limits.fence_s)."""
LEASE = "watcher"


@dataclass(slots=True)
class _Memory:
    """What the watcher remembers of one job between steps; lost at a restart without harm."""

    observation: Observation | None = None
    ended_seen_at: float | None = None
    missing: int = 0
    cancel_sent_at: float | None = None
    read_once: bool = False


class Watcher:
    """One per daemon; several daemons on one database take turns by a lease."""

    def __init__(self, platform: Platform) -> None:
        self._platform = platform
        self._memory: dict[JobId, _Memory] = {}
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
        return changed

    def _ask(self, backend: str, jobs: list[Job]) -> int:
        try:
            adapter = self._platform.adapters.get(backend)
            seen = adapter.observe([NativeId.parse(job.native_id) for job in jobs])
            self._platform.adapters.answered(backend)
            found, replaced = _sort_out(jobs, seen)
            self._send_cancels(adapter, [job for job in jobs if job.id not in replaced])
            forgotten = self._forgotten(adapter, [job for job in jobs if job.id not in found], replaced)
        except (SchedulerUnreachable, InvalidRequest) as error:
            self._platform.adapters.failed(backend, str(error))
            log.warning("backend %s does not answer: %s", backend, error)
            return 0
        news = [job for job in jobs if self._note(job, found.get(job.id)) or job.id in forgotten]
        return self._settle(news, forgotten)

    def _note(self, job: Job, seen: Observation | None) -> bool:
        """Remember what was seen; whether it asks for a closer look."""
        memory = self._memory.setdefault(job.id, _Memory())
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
        suspects = [
            job for job in left_out if self._memory.setdefault(job.id, _Memory()).missing + 1 >= FORGOTTEN_AFTER
        ]
        asked = {NativeId.parse(job.native_id) for job in suspects if job.id not in replaced}
        gone = adapter.is_forgotten(asked) if asked else frozenset()
        return frozenset(job.id for job in suspects if job.id in replaced or NativeId.parse(job.native_id) in gone)

    def _send_cancels(self, adapter: Scheduler, jobs: Iterable[Job]) -> None:
        """Pass wishes on; again after a while, because a request may be lost."""
        now = self._platform.clock.monotonic()
        for job in jobs:
            memory = self._memory.setdefault(job.id, _Memory())
            due = memory.cancel_sent_at is None or now - memory.cancel_sent_at >= CANCEL_AGAIN_S
            if job.wish is Wish.CANCEL and due:
                memory.cancel_sent_at = now
                try:
                    adapter.cancel(NativeId.parse(job.native_id))
                except InvalidRequest as error:
                    log.warning("job %s cannot be cancelled: %s", job.id, error)

    def _settle(self, jobs: list[Job], forgotten: frozenset[JobId] = frozenset(), *, fresh: bool = True) -> int:
        """Judge each job by all that is known and write what follows, in one transaction.

        `fresh`: the scheduler was asked after these rows were read. Else "pending" may be older than what the files
        say, and must not be taken for a requeue.
        """
        pairs = []
        for job in jobs:
            memory = self._memory.setdefault(job.id, _Memory())
            memory.read_once = True
            attempt = self._platform.root.job(job.id).attempt(job.attempt)
            owner = claim_owner(attempt)
            if owner and owner != job.native_id:
                change: Change | None = self._follow_claim(job, owner)
            else:
                evidence = read_evidence(attempt)
                gone = job.id in forgotten and (evidence.final is not None or not self._is_alive(attempt))
                known = self._known(job, memory, evidence, gone)
                if not fresh and known.observation is not None and known.observation.phase is Phase.PENDING:
                    known = replace(known, observation=replace(known.observation, phase=Phase.UNKNOWN))
                change = _change(job, judge(known), memory.observation)
                if known.evidence.final is not None and not known.ended and self._look_at is None:
                    self._look_at = self._platform.clock.monotonic() + LOOK_SOON_S
            if change is not None:
                pairs.append((job, change))
        return len(self._platform.store.apply_many(pairs)) if pairs else 0

    def _follow_claim(self, job: Job, owner: str) -> Change:
        """Another delivery of this attempt claimed it first (a request that landed late): that one is the job."""
        log.warning("job %s: %s claimed the attempt, not %s; following it", job.id, owner, job.native_id)
        self._memory[job.id] = _Memory()
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
        never_began = not evidence.events
        if seen is not None and memory.missing:
            seen = replace(seen, phase=Phase.UNKNOWN) if seen.phase is not Phase.ENDED else seen
        return Known(
            state=job.state,
            wish=job.wish,
            observation=None if forgotten else seen,
            evidence=evidence,
            now=self._platform.clock.now(),
            forgotten=forgotten,
            settled=forgotten or waited or (never_began and seen is not None and seen.started_at is None),
        )


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


def _change(job: Job, verdict: Verdict, seen: Observation | None) -> Change | None:
    """What to write, or None when nothing differs from the row."""
    columns: dict[str, object] = {}
    if seen is not None:
        reason = seen.reason if seen.phase is Phase.PENDING else ""
        if reason != job.pending_reason:
            columns["pending_reason"] = reason
        if seen.nodes and seen.nodes != job.nodes:
            columns["nodes"] = seen.nodes
    ends = bool(verdict.steps) and verdict.steps[-1][0].is_terminal
    if ends:
        columns |= {
            "exit_code": verdict.exit_code,
            "exit_signal": verdict.exit_signal,
            "log_tail": verdict.log_tail,
            "pending_reason": "",
        }
    if verdict.warning:
        columns["warnings"] = (*job.warnings, verdict.warning)
    if not verdict.steps and not columns:
        return None
    return Change(verdict.steps, verdict.cause, verdict.message, verdict.error_code, columns)
