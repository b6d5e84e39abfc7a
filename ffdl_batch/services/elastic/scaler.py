"""Divide the GPUs of each pool among its elastic jobs: load, decide, record, act.

Only the daemon that holds the lease of a pool decides about it. All persistent state is in the database. After a
restart, the scaler reads the reports of learners again.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median

from ffdl_batch.config.settings import ElasticPool
from ffdl_batch.domain.job.elastic import workers_of
from ffdl_batch.domain.job.job import Job, JobId
from ffdl_batch.domain.job_state import JobState, RequestedAction
from ffdl_batch.domain.scheduler_errors import SchedulerUnreachable
from ffdl_batch.elastic.policy import Objective, Rules, Target, decide
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.services.backends.adapters import Adapters
from ffdl_batch.services.backends.node_exclusion import NodeExclusion
from ffdl_batch.services.deployment.elastic_pools import ElasticPools, is_admitted, waits_for_pool
from ffdl_batch.services.elastic.decision_records import Decision, encode
from ffdl_batch.services.elastic.in_place import InPlaceChanges
from ffdl_batch.services.elastic.learner_history import LearnerHistory
from ffdl_batch.services.elastic.pool_jobs import RESTART_S, Described, KnownJob, describe
from ffdl_batch.services.elastic.possible_sizes import PossibleSizes
from ffdl_batch.services.elastic.size_changes import Reached, SizeChanges, resume_halted, unpooled
from ffdl_batch.services.job_storage import JobStorage
from ffdl_batch.services.leader_lease import LeaderLease, Leases
from ffdl_batch.store import Attempt, ElasticJob, JobSize, SizeState

log = logging.getLogger(__name__)

LEAST_S = 1.0
"""Shortest time between two decisions about a pool."""
PAUSES = 5
"""Minimum pause after decisions, as a multiple of their duration."""


@dataclass(frozen=True, slots=True)
class _Sorted:
    """The jobs of a pool: those that a decision may change, and the others."""

    open: tuple[ElasticJob, ...]
    """Running and waiting jobs that may get another size."""
    fixed: Mapping[str, int]
    """GPUs of jobs that are being changed, or cannot change now."""


class Scaler:
    """Decides about the pools of one daemon. `reached` is called at each step."""

    def __init__(
        self,
        storage: JobStorage,
        adapters: Adapters,
        node_exclusion: NodeExclusion,
        pools: ElasticPools,
        leases: Leases,
        reached: Reached = lambda _step: None,
    ) -> None:
        self._storage, self._pools, self._reached = storage, pools, reached
        self._leases = {name: LeaderLease(leases, f"scaler {name}") for name in pools.pools}
        self._look_s = leases.seconds / 2
        """The longest pause: leases that are held must not expire, and others may be free."""
        self._decided_at: dict[str, float] = {}
        """When the last decision about each pool was made (monotonic)."""
        self._pause_s = 0.0
        """Minimum time between two decisions, derived from the duration of the last ones."""
        self._soon: set[str] = set()
        """Pools in which a job has arrived or ended since the last decision."""
        self._in_place, self._shrinks = InPlaceChanges(adapters), False
        self._histories: dict[JobId, LearnerHistory] = {}
        self._sizes = PossibleSizes(storage, adapters, node_exclusion)
        self._timed: set[tuple[JobId, int]] = set()
        """Restarts whose duration has been measured: job and attempt."""

    def step(self) -> tuple[int, float]:
        """Continue changes, and decide about the pools that are due. Return how many jobs changed, and how long to
        pause."""
        if self._pools.job_waits.is_set():
            self._pools.job_waits.clear()
            self._soon |= self._leases.keys()
        held = [name for name, lease in self._leases.items() if lease.take()]
        listed = ((self._changes_of(one.job, held), one) for one in self._storage.store.elastic.shrinking())
        shrinking = [(its, one) for its, one in listed if its is not None]
        self._shrinks = bool(shrinking)
        changed = self._continue(held) + sum(self._in_place.proceed(its, one) for its, one in shrinking)
        if held and self._storage.store.elastic.forget_ended():
            self._soon |= self._leases.keys()
        paused = self._storage.store.elastic.paused()
        decided = [name for name in held if name not in paused]
        due = [name for name in decided if self._due_in_s(name) <= 0]
        if due:
            began = self._storage.clock.monotonic()
            jobs = self._storage.store.elastic.jobs()
            self._forget(jobs)
            for name in due:
                changed += self._decide(name, [one for one in jobs if self._pools.pool_of(one.job) == name])
            self._pause_s = PAUSES * (self._storage.clock.monotonic() - began)
        if self._shrinks:
            return changed, LEAST_S
        return changed, min([self._look_s, *(max(LEAST_S, self._due_in_s(name)) for name in decided)])

    def is_busy(self) -> bool:
        """Return whether a halted job is about to continue with another size. Such a job does not count as live."""
        return bool(self._storage.store.elastic.halted())

    def close(self) -> None:
        """Release the leases. Raises StoreError."""
        for lease in self._leases.values():
            lease.end()

    def _due_in_s(self, name: str) -> float:
        if name not in self._decided_at:
            return 0.0
        wait_s = LEAST_S if name in self._soon else self._pools.pools[name].interval_s
        return self._decided_at[name] + max(wait_s, self._pause_s) - self._storage.clock.monotonic()

    def _changes(self, name: str) -> SizeChanges:
        return SizeChanges(self._storage, name, self._leases[name].named, self._reached)

    def _continue(self, held: Sequence[str]) -> int:
        """Resume the jobs that were halted for another size."""
        return resume_halted(self._storage, lambda job: self._changes_of(job, held))

    def _changes_of(self, job: Job, held: Sequence[str]) -> SizeChanges | None:
        """Return the object that finishes a change of a job, even if its pool is paused or removed; None if another
        daemon finishes it."""
        name = self._pools.pool_of(job)
        if name is None:
            return unpooled(self._storage, job, self._reached)
        return self._changes(name) if name in held else None

    def _forget(self, jobs: Sequence[ElasticJob]) -> None:
        live = {one.job.id for one in jobs}
        for job_id in self._histories.keys() - live:
            del self._histories[job_id]
        self._sizes.forget(live)
        self._timed = {one for one in self._timed if one[0] in live}

    def _decide(self, name: str, jobs: Sequence[ElasticJob]) -> int:
        self._soon.discard(name)
        self._decided_at[name] = self._storage.clock.monotonic()
        if not jobs:
            return 0
        pool, now = self._pools.pools[name], self._storage.clock.now()
        attempts = self._storage.store.attempts_of([one.job.id for one in jobs])
        found = _sort([self._with_reports(one, attempts[one.job.id]) for one in jobs])
        by_id = {str(one.job.id): one for one in found.open}
        rules = Rules(Objective(pool.objective))
        self._sizes.look(one.job for one in found.open)
        described = self._describe(pool, found.open, attempts, now)
        fixed = {**found.fixed, **_undescribed(found.open, described)}
        gpus = max(0, pool.gpus - sum(fixed.values()))
        described = _without_holds_beyond(described, gpus)
        targets = tuple(decide([one.job for one in described], gpus, rules))
        decision = Decision(name, now, gpus, fixed, rules, described, targets)
        if not self._storage.store.elastic.add_decision(self._leases[name].named, encode(decision)):
            return 0
        self._reached("decided")
        return self._act_on(name, by_id, decision)

    def _with_reports(self, one: ElasticJob, attempts: Sequence[Attempt]) -> ElasticJob:
        """Do what `_look` does. If the files of a job cannot be read, its earlier reports count."""
        try:
            return self._look(one, attempts)
        except OSError as error:
            log.warning("job %s: its reports cannot be read; its earlier ones count: %s", one.job.id, error)
            return one

    def _look(self, one: ElasticJob, attempts: Sequence[Attempt]) -> ElasticJob:
        """Read new reports of the job's learners. Return the job, with the duration of its last change if it is new."""
        job, size = one.job, one.size
        history = self._histories.setdefault(job.id, LearnerHistory())
        if size is not None and size.state is SizeState.SHRINKING and size.attempt == job.attempt:
            return one  # the size of each report is known only after the change
        history.look(self._storage.root, job, attempts)
        key, first_at = (job.id, job.attempt), history.first_at.get((job.attempt, 0))
        if size is None or first_at is None or key in self._timed or size.attempt != job.attempt:
            return one
        if size.state is not SizeState.ADMITTED or job.attempt < 2 or attempts[-1].resizes:
            return one  # a change in place does not restart the job
        self._timed.add(key)
        restart_s = max(1.0, first_at - size.requested_at)
        self._storage.store.elastic.note_restart(job.id, restart_s)
        return replace(one, size=replace(size, restart_s=restart_s))

    def _describe(
        self, pool: ElasticPool, jobs: Sequence[ElasticJob], attempts: Mapping[JobId, Sequence[Attempt]], now: float
    ) -> tuple[Described, ...]:
        measured = [one.size.restart_s for one in jobs if one.size is not None and one.size.restart_s is not None]
        restart_s = median(measured) if measured else RESTART_S
        since = self._storage.store.elastic.running_since([one.job.id for one in jobs])
        known = (
            KnownJob(one.job, one.size, attempts[one.job.id], self._histories[one.job.id], since.get(one.job.id))
            for one in jobs
        )
        found = (describe(one, pool, now, restart_s=restart_s, possible=self._sizes.of(one.job)) for one in known)
        return tuple(one for one in found if one is not None)

    def _act_on(self, name: str, jobs: Mapping[str, ElasticJob], decision: Decision) -> int:
        """Make the changes of a decision. If a change that should free GPUs fails, no other job gets those GPUs."""
        free = decision.gpus - sum(one.job.gpus for one in decision.jobs)
        changed = 0
        pairs = zip(decision.jobs, decision.targets, strict=True)
        for one, target in sorted(pairs, key=lambda pair: pair[1].gpus > pair[0].job.gpus):
            more = target.gpus - one.job.gpus
            if (more <= 0 or more <= free) and self._act(name, jobs[one.job.name], target):
                free -= more
                changed += 1
        return changed

    def _act(self, name: str, one: ElasticJob, target: Target) -> bool:
        job, per = one.job, one.job.effective_spec.resources.gpus
        waits = job.state is JobState.PENDING
        learners = target.gpus // workers_of(1, per)
        if waits and not learners:
            return False
        if not waits and (target.gpus, target.batch) == (_gpus(job), job.global_batch):
            return False
        changes = self._changes(name)
        try:
            if not waits and (batch := self._in_place.batch_with(changes, job, learners)) is not None:
                is_shrinking = changes.shrink(job, one.size, learners, batch)
                self._shrinks = is_shrinking or self._shrinks
                return is_shrinking
            possible = not learners or self._sizes.can_plan(job, learners, target.batch)
        except (OSError, SchedulerUnreachable) as error:
            log.info("%s keeps its size, because its files or the scheduler cannot be read: %s", job.id, error)
            return False
        if not possible:
            self._soon.add(name)
            return False
        change = changes.admit if waits else changes.halt
        return change(job, one.size, learners, target.batch)


def _sort(jobs: Sequence[ElasticJob]) -> _Sorted:
    open_jobs: list[ElasticJob] = []
    fixed: dict[str, int] = {}
    for one in jobs:
        job, size = one.job, one.size
        if _is_changing(job, size):
            assert size is not None
            fixed[job.id] = size.learners * workers_of(1, job.effective_spec.resources.gpus)
        elif job.requested_action is not RequestedAction.NONE:
            fixed[job.id] = 0 if job.state is JobState.PENDING else _gpus(job)
        elif job.state is JobState.PENDING and not is_admitted(job, size):
            open_jobs += [one] if waits_for_pool(job) else []
        elif job.state is JobState.PROCESSING:
            open_jobs.append(one)
        else:
            fixed[job.id] = 0 if _waits_as_requested(job) else _gpus(job)
    return _Sorted(tuple(open_jobs), fixed)


def _waits_as_requested(job: Job) -> bool:
    """Return whether the job waits in the scheduler because its manifest requests it, perhaps for days. The pool
    reserves no GPUs for such a job: when it starts, other jobs shrink."""
    batch = job.spec.batch
    return job.state is JobState.QUEUED and job.attempt == 1 and bool(batch.hold or batch.begin or batch.dependency)


def _is_changing(job: Job, size: JobSize | None) -> bool:
    """Return whether a change of size is in progress. The job then counts with its new size."""
    if size is None:
        return False
    if size.state is SizeState.SHRINKING:
        return size.attempt == job.attempt and job.state is JobState.PROCESSING
    # If the job is PENDING, its owner resumed it before the scaler could.
    return size.state is SizeState.HALTING and job.state is not JobState.PENDING


def _undescribed(jobs: Sequence[ElasticJob], described: Sequence[Described]) -> dict[str, int]:
    """Return the GPUs of running jobs without a permitted size. They keep their GPUs."""
    known = {one.job.name for one in described}
    running = [one.job for one in jobs if one.job.state is JobState.PROCESSING]
    return {job.id: _gpus(job) for job in running if job.id not in known}


def _gpus(job: Job) -> int:
    resources = job.effective_spec.resources
    return workers_of(resources.learners, resources.gpus)


def _without_holds_beyond(described: tuple[Described, ...], gpus: int) -> tuple[Described, ...]:
    """Remove all holds if the held jobs need more GPUs than the pool has."""
    if sum(one.job.gpus for one in described if one.hold) <= gpus:
        return described
    return tuple(replace(one, job=replace(one.job, held=False), hold="") for one in described)
