"""Keeps the states of jobs up to date: reads the files of jobs whose controllers rang, and polls each scheduler once
for all its jobs.

A job whose line in the listing has not changed costs one comparison. Its files are read only when its doorbell rang,
its line changed, or it must be judged again after some time (:class:`Memory`).
"""

from __future__ import annotations

import logging
import math
import os
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

from ffdl_batch.domain.job.job import Job, JobId
from ffdl_batch.domain.job_state import JobState, RequestedAction
from ffdl_batch.domain.outcome.observation import NativeId, Observation, Phase
from ffdl_batch.domain.outcome.verdict import VerdictKind
from ffdl_batch.services.backends.adapters import Adapters
from ffdl_batch.services.job_storage import JobStorage
from ffdl_batch.services.leader_lease import LeaderLease, Leases
from ffdl_batch.services.monitoring.job_update import LONG_AGO_S, SETTLE_S, Judge
from ffdl_batch.services.monitoring.scheduler_calls import Questions, take_away
from ffdl_batch.services.monitoring.watch_state import Memories
from ffdl_batch.services.outcome.native_job_identity import claimed_by_its_id, sort_out

__all__ = ["ACCOUNTING_LAG_S", "FORGOTTEN_AFTER", "LONG_AGO_S", "LOOK_SOON_S", "SETTLE_S", "Reached", "Watcher"]

log = logging.getLogger(__name__)

FORGOTTEN_AFTER = 3
"""How many listings in a row must leave a job out before the scheduler is asked whether it has forgotten the job. One
is enough if the head has written its final record."""
ACCOUNTING_LAG_S = 60.0
"""For how long the listings must leave the job out: accounting may record an end a minute after the scheduler forgot
the job."""
LOOK_SOON_S, LOOK_AGAIN_S = 0.1, 1.0
"""How long after a head's final record the scheduler is polled, even if no full poll is due. If it does not know the
end yet, it is polled again after twice the time, unless that is longer than LOOK_AGAIN_S."""
_GENTLE = 20.0
"""After a poll of d seconds, the next one of this kind comes at the earliest 20·d seconds later."""
LEASE = "watcher"

Reached = Callable[[str], None]
"""Called with the name of each step; tests kill the process there."""


class Watcher:
    """Follows all jobs of a daemon. If several daemons share a database, only the holder of a lease follows jobs.

    `listen` and `look` may run at the same time, each in one thread, so that doorbells are read while a scheduler is
    slow to answer.
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
        self._soon_s = LOOK_SOON_S
        self._look_took_s = 0.0
        self._unmoved: dict[str, tuple[Sequence[Job], Mapping[NativeId, Observation]]] = {}
        """Jobs and listing of the last poll of each backend, if no job had to be judged since then."""
        self._looked = False
        self._begun_by_heads: set[JobId] = set()
        self._lock = threading.RLock()

    @property
    def is_caught_up(self) -> bool:
        """Whether the rows include what happened before this watcher's first step, if the schedulers answered. Also
        true if another daemon follows the jobs."""
        return self._is_anothers or (self._looked and self._look_at is None and not self._begun_by_heads)

    @property
    def is_look_due(self) -> bool:
        """Whether an event requires a poll of the schedulers, even if no full poll is due."""
        return self.look_in_s <= 0

    @property
    def look_in_s(self) -> float:
        """Seconds until an event requires a poll of the schedulers; inf if none does."""
        at = self._look_at
        return math.inf if at is None else at - self._storage.clock.monotonic()

    def step(self, *, full: bool) -> int:
        """Read doorbells, and poll the schedulers if `full` or if a poll is due. Return how many jobs changed."""
        changed = self.listen()
        return changed + (self.look() if full or self.is_look_due else 0)

    def listen(self) -> int:
        """Read the doorbells that rang. Return how many jobs changed."""
        with self._lock:
            return self._collect_changes() + self._follow_heads() if self._take_turn() else 0

    def look(self) -> int:
        """Poll the schedulers. Return how many jobs changed."""
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
        """Release the lease, so that another daemon can continue at once. Raises StoreError."""
        with self._lock:
            self._turn.end()

    def _restart(self) -> None:
        """Forget everything, because another daemon may have followed the jobs meanwhile. It may also have died after
        it removed doorbells and before it read the files."""
        if self._looked or self._is_anothers:
            self._look_at = self._storage.clock.monotonic()
        self._memories.clear()
        self._unmoved.clear()
        self._begun_by_heads.clear()
        self._looked = False

    def _collect_changes(self) -> int:
        """Judge the jobs whose doorbells rang. A doorbell is removed before the files are read, never after."""
        directory = Path(self._storage.root.doorbell)
        names = [entry.name for entry in os.scandir(directory)]
        if not names:
            return 0
        jobs = self._storage.store.get_many([JobId(name) for name in names])
        for name in names:
            (directory / name).unlink(missing_ok=True)
        self._soon_s = LOOK_SOON_S
        return self._settle([job for job in jobs if not job.state.is_terminal and job.native_id], fresh=False)

    def _follow_heads(self) -> int:
        """Judge attempts that heads began, as soon as their ids are known. They may have ended and rung long ago."""
        if not self._begun_by_heads:
            return 0
        jobs = self._storage.store.get_many(sorted(self._begun_by_heads))
        self._begun_by_heads = {job.id for job in jobs if job.state is JobState.DEPLOYING and not job.native_id}
        return self._settle([job for job in jobs if not job.state.is_terminal and job.native_id], fresh=False)

    def _look_soon(self) -> None:
        """Poll the schedulers soon, even if no full poll is due."""
        if self._look_at is None and self._soon_s <= LOOK_AGAIN_S:
            self._look_at = self._storage.clock.monotonic() + max(self._soon_s, _GENTLE * self._look_took_s)
            self._soon_s *= 2

    def _ask(self, backend: str, jobs: list[Job]) -> int:
        """Poll one scheduler for all of `jobs`, and judge those that changed. The lock is held only while jobs are read
        or written."""
        with self._lock:
            ended = [job for job in jobs if self._memories.of(job).concluded]  # according to their files
        began = self._storage.clock.monotonic()
        look = self._questions.observe(backend, jobs, must_ask=bool(ended))
        if look is None:
            return 0
        with self._lock:
            self._look_took_s = self._storage.clock.monotonic() - began
            listed = look.listed
            if any(_is_listed_live(listed.get(NativeId.parse(job.native_id))) for job in ended):
                self._look_soon()
            if (jobs, listed) == self._unmoved.get(backend):  # compares the same objects: no work per job
                return 0
            at_rest = jobs, listed
            jobs = [job for job in jobs if not self._is_idle(job, listed.get(NativeId.parse(job.native_id)))]
            if not jobs:
                self._unmoved[backend] = at_rest
                return 0
            self._unmoved.pop(backend, None)
            now_listed = sort_out(jobs, listed, self._memories.of, partial(claimed_by_its_id, self._storage.root))
        found, doubtful, replaced = now_listed.found, now_listed.doubtful, now_listed.replaced
        self._reached("asked")
        if look.is_own:  # nothing is asked of a job that only the hub of a site shows
            self._questions.pass_on(backend, [job for job in jobs if job.id not in replaced], found, doubtful)
        self._reached("requested")
        forgotten = self._forgotten(backend, [job for job in jobs if job.id not in found], replaced)
        with self._lock:
            now = self._storage.clock.monotonic()
            noted = {job.id for job in jobs if self._note(job, found.get(job.id), now, is_own=job.id not in doubtful)}
            changed = [job for job in jobs if job.id in noted | forgotten or self._memories.of(job).dropped]
            return self._settle(changed, forgotten, fresh=look.is_own)

    def _note(self, job: Job, seen: Observation | None, now: float, *, is_own: bool) -> bool:
        return self._memories.of(job).note(seen, now, is_own=is_own)

    def _is_idle(self, job: Job, seen: Observation | None) -> bool:
        """Whether the listing needs no action: it equals the last one, which certainly was about this attempt, and no
        request has to be passed on."""
        return job.requested_action is RequestedAction.NONE and self._memories.of(job).is_unmoved(seen)

    def _forgotten(self, backend: str, left_out: Iterable[Job], replaced: Collection[JobId]) -> frozenset[JobId]:
        """Return the jobs that the scheduler has forgotten: several listings left them out and a complete answer does
        not contain them, or another job has their id.

        For a task that waited, the scheduler is asked at once: if it still has the array, it knows more about the task
        than accounting does (:attr:`Memory.dropped`).
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
        """Judge each job and write all changes in one transaction.

        `fresh`: the scheduler was polled after these rows were read. If not, "pending" may be older than the files, and
        does not prove a requeue.
        """
        if jobs:
            self._unmoved.clear()
        try:
            return self._settle_now(jobs, forgotten, fresh)
        except BaseException:
            self._look_again(jobs)
            raise

    def _look_again(self, jobs: Iterable[Job]) -> None:
        """Ring the doorbells of jobs whose changes were not written, so that they are judged again."""
        for job in jobs:
            self._memories.of(job).read_once = False
            try:
                Path(self._storage.root.doorbell, job.id).touch(mode=0o600)
            except OSError as error:
                log.error("job %s has changes that are not written before its next event: %s", job.id, error)

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
        over = (VerdictKind.ENDED, VerdictKind.UPLOAD_PENDING)
        for backend in {one.job.backend for one in judged if one.verdict.kind in over}:
            self._adapters.submit_limits.made(backend)
        again: list[Job] = []
        for one in judged:
            if one.job.id not in after or one.verdict.kind is VerdictKind.NONE:
                continue
            if one.verdict.kind is VerdictKind.REQUEUED:
                memory = self._memories.of(one.job)
                memory.requeues = (memory.requeues or 0) + 1
                again.append(after[one.job.id])  # a later event may be known: another start, or the end
            elif one.verdict.is_held and after[one.job.id].state.is_terminal:
                take_away(
                    self._storage.root, self._adapters, one.job, "the scheduler holds it for good, and it is over"
                )
        return len(written) + (self._settle(again, forgotten, fresh=fresh) if again else 0)


def _is_listed_live(seen: Observation | None) -> bool:
    return seen is not None and seen.phase is not Phase.ENDED
