"""Keeps jobs' states true: reads what controllers rang for, and asks each scheduler one question for all its jobs.

A job whose line in the scheduler's listing is what it was costs a comparison. Its files are read only when its doorbell
rang, the scheduler's word changed, or it waits for a time at which it is judged anew (:class:`Memory`).
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Collection, Iterable
from functools import partial
from pathlib import Path

from ffdl_batch.domain.job.job import Job, JobId
from ffdl_batch.domain.job_state import JobState, RequestedAction
from ffdl_batch.domain.outcome.observation import NativeId, Observation
from ffdl_batch.domain.outcome.verdict import Move
from ffdl_batch.services.backends.adapters import Adapters
from ffdl_batch.services.job_storage import JobStorage
from ffdl_batch.services.leader_lease import LeaderLease, Leases
from ffdl_batch.services.monitoring.job_update import LONG_AGO_S, SETTLE_S, Judge
from ffdl_batch.services.monitoring.request_delivery import take_away
from ffdl_batch.services.monitoring.scheduler_polls import Questions
from ffdl_batch.services.monitoring.watch_state import Memories
from ffdl_batch.services.outcome.native_job_identity import claimed_by_its_id, sort_out

__all__ = ["ACCOUNTING_LAG_S", "FORGOTTEN_AFTER", "LONG_AGO_S", "LOOK_SOON_S", "SETTLE_S", "Reached", "Watcher"]

log = logging.getLogger(__name__)

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


class Watcher:
    """One per daemon; several daemons on one database take turns by a lease.

    `listen` and `look` may run at the same time, each in one thread: a scheduler that takes its time to answer keeps no
    doorbell from being heard.
    """

    def __init__(
        self, storage: JobStorage, adapters: Adapters, leases: Leases, reached: Reached = lambda _step: None
    ) -> None:
        self._storage, self._adapters = storage, adapters
        self._reached = reached
        self._questions = Questions(storage, adapters)
        self._memories = Memories()
        self._judge = Judge(storage, adapters, self._memories, self._look_soon)
        self._turn = LeaderLease(leases, LEASE, self._restart)
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
        return at is not None and self._storage.clock.monotonic() >= at

    def step(self, *, full: bool) -> int:
        """Listen; with `full`, or where it is due, look too. Returns how many jobs changed."""
        changed = self.listen()
        return changed + (self.look() if full or self.is_look_due else 0)

    def listen(self) -> int:
        """Read rung doorbells; returns how many jobs changed."""
        with self._lock:
            return self._collect_changes() + self._follow_heads() if self._take_turn() else 0

    def look(self) -> int:
        """Ask the schedulers; returns how many jobs changed."""
        with self._lock:
            if not self._take_turn():
                return 0
            self._look_at = None
            questions = [
                (name, self._storage.store.live_deployed(name)) for name in self._storage.store.live_backends()
            ]
            self._memories.meet(job for _, jobs in questions for job in jobs)
        live_ids = {job.id for _, jobs in questions for job in jobs}
        self._questions.forget_others(live_ids)
        changed = sum(self._ask(name, jobs) for name, jobs in questions if jobs and self._adapters.may_ask(name))
        with self._lock:
            self._memories.keep(live_ids)
            self._looked = True
        return changed

    def _take_turn(self) -> bool:
        self._is_anothers = not self._turn.take()
        return not self._is_anothers

    def close(self) -> None:
        """Give the lease back, so that another daemon goes on at once. Raises StoreError."""
        with self._lock:
            self._turn.end()

    def _restart(self) -> None:
        """Another daemon may have watched meanwhile: what is remembered is out of date, and the other may have died
        over bells that it had taken down."""
        if self._looked or self._is_anothers:
            self._look_at = self._storage.clock.monotonic()
        self._memories.clear()
        self._begun_by_heads.clear()
        self._looked = False

    def _collect_changes(self) -> int:
        """Jobs whose controllers have news. The bell is taken down before the files are read, never after."""
        directory = Path(self._storage.root.doorbell)
        names = [entry.name for entry in os.scandir(directory)]
        if not names:
            return 0
        jobs = self._storage.store.get_many([JobId(name) for name in names])
        for name in names:
            (directory / name).unlink(missing_ok=True)
        return self._settle([job for job in jobs if not job.state.is_terminal and job.native_id], fresh=False)

    def _follow_heads(self) -> int:
        """Attempts that heads began, as soon as their ids are known: they may have ended long ago, bell and all."""
        if not self._begun_by_heads:
            return 0
        jobs = self._storage.store.get_many(sorted(self._begun_by_heads))
        self._begun_by_heads = {job.id for job in jobs if job.state is JobState.DEPLOYING and not job.native_id}
        return self._settle([job for job in jobs if not job.state.is_terminal and job.native_id], fresh=False)

    def _look_soon(self) -> None:
        """Ask the schedulers in a moment, though no full look is due."""
        if self._look_at is None:
            self._look_at = self._storage.clock.monotonic() + LOOK_SOON_S

    def _ask(self, backend: str, jobs: list[Job]) -> int:
        """One question about all of `jobs`, and what follows. The lock is held by what reads or writes jobs alone."""
        listed = self._questions.observe(backend, jobs)
        if listed is None:
            return 0
        with self._lock:
            jobs = [job for job in jobs if not self._is_idle(job, listed.get(NativeId.parse(job.native_id)))]
            now_listed = sort_out(jobs, listed, self._memories.of, partial(claimed_by_its_id, self._storage.root))
        found, doubtful, replaced = now_listed.found, now_listed.doubtful, now_listed.replaced
        self._reached("asked")
        self._questions.pass_on(backend, [job for job in jobs if job.id not in replaced], found, doubtful)
        self._reached("requested")
        forgotten = self._forgotten(backend, [job for job in jobs if job.id not in found], replaced)
        with self._lock:
            now = self._storage.clock.monotonic()
            noted = {job.id for job in jobs if self._note(job, found.get(job.id), now, is_own=job.id not in doubtful)}
            news = [job for job in jobs if job.id in noted | forgotten or self._memories.of(job).dropped]
            return self._settle(news, forgotten)

    def _note(self, job: Job, seen: Observation | None, now: float, *, is_own: bool) -> bool:
        return self._memories.of(job).note(seen, now, is_own=is_own)

    def _is_idle(self, job: Job, seen: Observation | None) -> bool:
        """Whether nothing follows from what was listed: it was taken for this attempt's last time, and is the same now,
        and there is nothing to be passed on or to be judged."""
        return job.requested_action is RequestedAction.NONE and self._memories.of(job).is_unmoved(seen)

    def _forgotten(self, backend: str, left_out: Iterable[Job], replaced: Collection[JobId]) -> frozenset[JobId]:
        """Jobs that several listings left out and that a complete answer does not hold either, or holds another for.

        A task that waited is asked about without waiting for the accounting: where the scheduler still has its array,
        it knows more than that (:attr:`Memory.dropped`).
        """
        since = self._storage.clock.monotonic() - ACCOUNTING_LAG_S
        with self._lock:
            known = [(job, self._memories.of(job)) for job in left_out]
        waiting = [(job, memory) for job, memory in known if job.state is JobState.QUEUED]
        # Slurm keeps no record of a waiting task of an array that was cancelled (seen in 26.05).
        cancelled = {job.id for job, _ in waiting if job.requested_action is RequestedAction.CANCEL}
        explained = cancelled.union(replaced)
        suspects = [job for job, memory in known if memory.is_suspect(FORGOTTEN_AFTER, since, job.id in explained)]
        asked = {NativeId.parse(job.native_id) for job in suspects if job.id not in replaced}
        missed = (job for job, memory in waiting if memory.is_suspect(FORGOTTEN_AFTER, since, True))
        tasks = {native for job in missed if (native := NativeId.parse(job.native_id)).task is not None}
        absent = self._questions.absent(backend, asked | tasks)
        for job, memory in known:
            native = NativeId.parse(job.native_id)
            memory.lost = job.id in replaced or native in absent.lost
            memory.dropped = native in tasks and absent.dropped.get(native) == job.token
        return frozenset(
            job.id for job in suspects if job.id in replaced or NativeId.parse(job.native_id) in absent.gone
        )

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
            self._memories.of(job).read_once = False
            try:
                Path(self._storage.root.doorbell, job.id).touch(mode=0o600)
            except OSError as error:
                log.error("job %s has news that are written with the next ones only: %s", job.id, error)

    def _settle_now(self, jobs: list[Job], forgotten: frozenset[JobId], fresh: bool) -> int:
        judged = [found for job in jobs if (found := self._judge.judge(job, job.id in forgotten, fresh)) is not None]
        if not judged:
            return 0
        self._reached("judged")
        written = self._storage.store.apply_many([(one.job, one.change) for one in judged])
        self._reached("noted")
        after = {job.id: job for job in written}
        self._look_again(one.job for one in judged if one.job.id not in after)
        self._begun_by_heads |= {one.job.id for one in judged if one.change.succeeded and one.job.id in after}
        for backend in {one.job.backend for one in judged if one.verdict.move in (Move.ENDED, Move.UPLOAD_PENDING)}:
            self._adapters.submit_limits.made(backend)
        again: list[Job] = []
        for one in judged:
            if one.job.id not in after or one.verdict.move is Move.NONE:
                continue
            if one.verdict.move is Move.REQUEUED:
                memory = self._memories.of(one.job)
                memory.requeues = (memory.requeues or 0) + 1
                again.append(after[one.job.id])  # there may be later news of it: another start, or the end
            elif one.verdict.held and after[one.job.id].state.is_terminal:
                take_away(
                    self._storage.root, self._adapters, one.job, "the scheduler holds it for good, and it is over"
                )
        return len(written) + (self._settle(again, forgotten, fresh=fresh) if again else 0)
