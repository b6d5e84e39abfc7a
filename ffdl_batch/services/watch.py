"""Keeps jobs' states true: reads what controllers rang for, and asks each scheduler one question for all its jobs.

An idle job costs nothing: its files are read only when its doorbell rang or the scheduler's word changed.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ffdl_batch.domain.events import EventKind
from ffdl_batch.domain.formats import NewerFormat
from ffdl_batch.domain.job import Change, Job, JobId
from ffdl_batch.domain.job_state import Cause, JobState, Wish
from ffdl_batch.domain.known import Evidence, Known, is_last_word
from ffdl_batch.domain.observation import NativeId, Observation, Phase
from ffdl_batch.domain.verdict import Move, Verdict, judge
from ffdl_batch.ports.scheduler import ForgetsJobs, InvalidRequest, SchedulerUnreachable
from ffdl_batch.services.aftermath import keep_off, take_away
from ffdl_batch.services.chain import Past, change_of, look_back
from ffdl_batch.services.control import write_control
from ffdl_batch.services.evidence import STILL_ALIVE_S, claim_owner, read_evidence
from ffdl_batch.services.listed import sort_out
from ffdl_batch.services.platform import Platform
from ffdl_batch.services.remembered import Memory
from ffdl_batch.services.turns import Turn
from ffdl_batch.services.wishes import Wishes

log = logging.getLogger(__name__)

SETTLE_S = 10.0
"""How long after the scheduler's word "ended" a final record may still become visible on a shared file system."""
LONG_AGO_S = 600.0
"""Ends that the scheduler dates so far back are not waited for any more: munge lets clocks differ by 300 s."""
FORGOTTEN_AFTER = 3
"""Full listings in a row that left a job out before we ask whether it was forgotten. The first one is enough for an
attempt whose head has said its last word."""
ACCOUNTING_LAG_S = 60.0
"""And how long they did so: an accounting may hear of an end a minute after the scheduler has forgotten it."""
LOOK_SOON_S = 1.0
"""How long after a head's final record the scheduler is asked, though no full look is due: it will know the end."""
LEASE = "watcher"

Reached = Callable[[str], None]
"""Called with the name of each step; tests kill the process there."""


@dataclass(frozen=True, slots=True)
class _Judged:
    """One job, what follows for it, and why."""

    job: Job
    change: Change
    verdict: Verdict


class Watcher:
    """One per daemon; several daemons on one database take turns by a lease.

    `listen` and `look` may run at the same time, each in one thread: a scheduler that takes its time to answer keeps no
    doorbell from being heard.
    """

    def __init__(self, platform: Platform, reached: Reached = lambda _step: None) -> None:
        self._platform = platform
        self._reached = reached
        self._memory: dict[JobId, Memory] = {}
        self._wishes = Wishes(platform)
        self._turn = Turn(platform, LEASE, self._begin_anew)
        self._is_anothers = False
        self._look_at: float | None = None
        self._looked = False
        self._begun_by_heads: set[JobId] = set()
        self._lock = threading.RLock()

    @property
    def is_caught_up(self) -> bool:
        """Whether the rows hold what happened before this watcher's first step, as far as the schedulers answered; or
        are another daemon's to bring up to date."""
        return self._is_anothers or (self._looked and self._look_at is None and not self._begun_by_heads)

    @property
    def is_look_due(self) -> bool:
        """Whether something that was heard asks for a look, whenever the last one was."""
        at = self._look_at
        return at is not None and self._platform.clock.monotonic() >= at

    def step(self, *, full: bool) -> int:
        """Listen; with `full`, or where it is due, look too. Returns how many jobs changed."""
        changed = self.listen()
        return changed + (self.look() if full or self.is_look_due else 0)

    def listen(self) -> int:
        """Read rung doorbells; returns how many jobs changed."""
        with self._lock:
            return self._hear() + self._follow_heads() if self._take_turn() else 0

    def look(self) -> int:
        """Ask the schedulers; returns how many jobs changed."""
        with self._lock:
            if not self._take_turn():
                return 0
            self._look_at = None
            questions = [
                (name, self._platform.store.live_deployed(name)) for name in self._platform.store.live_backends()
            ]
        live_ids = {job.id for _, jobs in questions for job in jobs}
        self._wishes.forget_others(live_ids)
        changed = sum(
            self._ask(name, jobs) for name, jobs in questions if jobs and self._platform.adapters.may_ask(name)
        )
        with self._lock:
            self._memory = {key: value for key, value in self._memory.items() if key in live_ids}
            self._looked = True
        return changed

    def _take_turn(self) -> bool:
        self._is_anothers = not self._turn.take()
        return not self._is_anothers

    def close(self) -> None:
        """Give the lease back, so that another daemon goes on at once. Raises StoreError."""
        with self._lock:
            self._turn.end()

    def _begin_anew(self) -> None:
        """Another daemon may have watched meanwhile: what is remembered is out of date, and the other may have died
        over bells that it had taken down."""
        if self._looked or self._is_anothers:
            self._look_at = self._platform.clock.monotonic()
        self._memory.clear()
        self._begun_by_heads.clear()
        self._looked = False

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

    def _follow_heads(self) -> int:
        """Attempts that heads began, as soon as their ids are known: they may have ended long ago, bell and all."""
        if not self._begun_by_heads:
            return 0
        jobs = self._platform.store.get_many(sorted(self._begun_by_heads))
        self._begun_by_heads = {job.id for job in jobs if job.state is JobState.DEPLOYING and not job.native_id}
        return self._settle([job for job in jobs if not job.state.is_terminal and job.native_id], fresh=False)

    def _remembered(self, job: Job) -> Memory:
        """What is remembered of the job's current attempt."""
        memory = self._memory.get(job.id)
        if memory is None or memory.attempt != job.attempt:
            memory = self._memory[job.id] = Memory(job.attempt)
        return memory

    def _ask(self, backend: str, jobs: list[Job]) -> int:
        """One question about all of `jobs`, and what follows. The lock is held by what reads or writes jobs alone."""
        try:
            with self._platform.adapters.asking(backend) as adapter:
                listed = adapter.observe([NativeId.parse(job.native_id) for job in jobs])
        except SchedulerUnreachable as error:
            log.warning("backend %s does not answer: %s", backend, error)
            return 0
        except InvalidRequest as error:
            self._platform.adapters.failed(backend, str(error))
            log.error("backend %s cannot be asked: %s", backend, error)
            return 0
        with self._lock:
            found, replaced = sort_out(jobs, listed, lambda job: self._remembered(job).observation)
        self._reached("asked")
        self._pass_on(backend, [job for job in jobs if job.id not in replaced], found)
        self._reached("wished")
        forgotten = self._forgotten(backend, [job for job in jobs if job.id not in found], replaced)
        with self._lock:
            now = self._platform.clock.monotonic()
            noted = {job.id for job in jobs if self._remembered(job).note(found.get(job.id), now)}
            news = [job for job in jobs if job.id in noted or job.id in forgotten]
            return self._settle(news, forgotten)

    def _pass_on(self, backend: str, jobs: Sequence[Job], found: Mapping[JobId, Observation]) -> None:
        """Wishes that cannot be passed on now keep nobody's news from being written."""
        try:
            with self._platform.adapters.asking(backend) as adapter:
                self._wishes.pass_on(adapter, jobs, found)
        except SchedulerUnreachable as error:
            log.warning("backend %s takes no requests, they are repeated: %s", backend, error)

    def _forgotten(self, backend: str, left_out: Iterable[Job], replaced: Collection[JobId]) -> frozenset[JobId]:
        """Jobs that several listings left out and that a complete answer does not hold either, or holds another for."""
        since = self._platform.clock.monotonic() - ACCOUNTING_LAG_S
        with self._lock:
            known = [(job, self._remembered(job)) for job in left_out]
        # Slurm keeps no record of a waiting task of an array that was cancelled (seen in 26.05).
        cancelled = {job.id for job, _ in known if job.wish is Wish.CANCEL and job.state is JobState.QUEUED}
        explained = cancelled.union(replaced)
        suspects = [job for job, memory in known if memory.is_suspect(FORGOTTEN_AFTER, since, job.id in explained)]
        asked = {NativeId.parse(job.native_id) for job in suspects if job.id not in replaced}
        gone = self._gone(backend, asked) if asked else frozenset()
        return frozenset(job.id for job in suspects if job.id in replaced or NativeId.parse(job.native_id) in gone)

    def _gone(self, backend: str, asked: Collection[NativeId]) -> frozenset[NativeId]:
        try:
            with self._platform.adapters.asking(backend) as adapter:
                return adapter.is_forgotten(asked) if isinstance(adapter, ForgetsJobs) else frozenset()
        except SchedulerUnreachable as error:
            log.warning("backend %s does not say whether it has forgotten %d jobs: %s", backend, len(asked), error)
            return frozenset()

    def _settle(self, jobs: list[Job], forgotten: frozenset[JobId] = frozenset(), *, fresh: bool = True) -> int:
        """Judge each job by all that is known and write what follows, in one transaction.

        `fresh`: the scheduler was asked after these rows were read. Else "pending" may be older than what the files
        say, and must not be taken for a requeue.
        """
        try:
            return self._settle_now(jobs, forgotten, fresh)
        except BaseException:
            self._look_again(jobs)
            raise

    def _look_again(self, jobs: Iterable[Job]) -> None:
        """Ring for jobs whose news were not written: the bell was taken down, or the scheduler's word seen, before."""
        for job in jobs:
            self._remembered(job).read_once = False
            try:
                Path(self._platform.root.doorbell, job.id).touch(mode=0o600)
            except OSError as error:
                log.error("job %s has news that are written with the next ones only: %s", job.id, error)

    def _settle_now(self, jobs: list[Job], forgotten: frozenset[JobId], fresh: bool) -> int:
        judged = [found for job in jobs if (found := self._try_to_judge(job, job.id in forgotten, fresh)) is not None]
        if not judged:
            return 0
        self._reached("judged")
        written = self._platform.store.apply_many([(one.job, one.change) for one in judged])
        self._reached("noted")
        after = {job.id: job for job in written}
        self._look_again(one.job for one in judged if one.job.id not in after)
        self._begun_by_heads |= {one.job.id for one in judged if one.change.succeeded and one.job.id in after}
        for backend in {one.job.backend for one in judged if one.verdict.move is Move.ENDED}:
            self._platform.adapters.rooms.made(backend)
        again: list[Job] = []
        for one in judged:
            if one.job.id not in after or one.verdict.move is Move.NONE:
                continue
            if one.verdict.move is Move.REQUEUED:
                memory = self._remembered(one.job)
                memory.requeues = (memory.requeues or 0) + 1
                again.append(after[one.job.id])  # there may be later news of it: another start, or the end
            elif one.verdict.held and after[one.job.id].state.is_terminal:
                take_away(self._platform, one.job)
        return len(written) + (self._settle(again, forgotten, fresh=fresh) if again else 0)

    def _try_to_judge(self, job: Job, is_forgotten: bool, fresh: bool) -> _Judged | None:
        """One job whose files cannot be read or written keeps no other from being watched; it is looked at again."""
        try:
            return self._judge(job, is_forgotten, fresh)
        except NewerFormat as error:
            self._remembered(job).read_once = False
            return self._warn(job, str(error))
        except OSError as error:
            log.error("job %s cannot be judged, and is looked at again: %s", job.id, error)
            self._remembered(job).read_once = False
            return None

    def _warn(self, job: Job, text: str) -> _Judged | None:
        """Tell the owner, once, why the job stays as it is."""
        if text in job.warnings:
            return None
        log.error("job %s stays %s: %s", job.id, job.state, text)
        return _Judged(job, Change(columns={"warnings": (*job.warnings, text)}), Verdict())

    def _judge(self, job: Job, is_forgotten: bool, fresh: bool) -> _Judged | None:
        memory = self._remembered(job)
        memory.read_once = True
        attempt = self._platform.root.job(job.id).attempt(job.attempt)
        owner = claim_owner(attempt)
        if owner and owner != job.native_id:
            return _Judged(job, self._follow_claim(job, owner), Verdict())
        evidence = read_evidence(attempt)
        gone = is_forgotten and (evidence.final is not None or not self._is_alive(evidence))
        known = self._known(job, memory, evidence, gone)
        if not fresh and known.observation is not None and known.observation.phase is Phase.PENDING:
            known = replace(known, observation=replace(known.observation, phase=Phase.UNKNOWN))
        verdict = judge(known)
        memory.concluded = known.final is not None and is_last_word(known.final)
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
        if verdict.move is Move.REQUEUED and past.failed_nodes:
            keep_off(self._platform, job, past.failed_nodes)

    def _follow_claim(self, job: Job, owner: str) -> Change:
        """Another delivery of this attempt claimed it first (a request that landed late): that one is the job."""
        log.warning("job %s: %s claimed the attempt, not %s; following it", job.id, owner, job.native_id)
        self._memory[job.id] = Memory(job.attempt)
        take_away(self._platform, job)
        return Change(columns={"native_id": owner})

    def _is_alive(self, evidence: Evidence) -> bool:
        """Whether node controllers were heard of lately: then no listing that leaves the job out is believed."""
        if evidence.heard is None:
            return False
        return self._platform.file_time(self._platform.root.path) - evidence.heard < STILL_ALIVE_S

    def _known(self, job: Job, memory: Memory, evidence: Evidence, forgotten: bool) -> Known:
        seen, clock = memory.observation, self._platform.clock
        waited = memory.ended_seen_at is not None and clock.monotonic() - memory.ended_seen_at >= SETTLE_S
        if seen is not None and seen.phase is Phase.ENDED and seen.ended_at is not None and evidence.final is None:
            waited = waited or self._is_long_ago(seen.ended_at)
        # Slurm says that a job which it cancelled in the queue started and ended at that moment, on no node.
        never_began = not evidence.events and seen is not None and (seen.started_at is None or not seen.nodes)
        if seen is not None and memory.missing:
            seen = replace(seen, phase=Phase.UNKNOWN) if seen.phase is not Phase.ENDED else seen
        return Known(
            state=job.state,
            wish=job.wish,
            observation=None if forgotten else seen,
            evidence=evidence,
            now=clock.now(),
            forgotten=forgotten,
            settled=forgotten or waited or never_began,
            learners=job.spec.resources.learners,
            requeues=self._requeues(job, memory, evidence),
        )

    def _is_long_ago(self, at: float) -> bool:
        """By this host's clock and by the file system's: the one may just have been set."""
        if self._platform.clock.now() - at < LONG_AGO_S:
            return False
        try:
            return self._platform.file_time(self._platform.root.path) - at >= LONG_AGO_S
        except OSError:  # nothing can be written there now; then it is waited for
            return False

    def _requeues(self, job: Job, memory: Memory, evidence: Evidence) -> int:
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
