"""Show pools and the reasons for their sizes, and pause and resume pools. Only a replay needs numpy and scipy."""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from ffdl_batch.config.settings import ElasticPool
from ffdl_batch.domain.job.elastic import workers_of
from ffdl_batch.domain.job.job import JobId
from ffdl_batch.domain.job.pool_views import PoolJobView, PoolView, ReplayedDecision, SizeExplanation, SizeOption
from ffdl_batch.domain.job.submission import Caller
from ffdl_batch.domain.job_state import JobState
from ffdl_batch.domain.number_text import counted
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.services.deployment.elastic_pools import INSTALL, ElasticPools
from ffdl_batch.services.job_storage import JobStorage
from ffdl_batch.services.queries.jobs import own_job
from ffdl_batch.services.refusals import wrong_state, wrong_usage
from ffdl_batch.store import ElasticJob, SizeState, StoredDecision

_NEEDED = frozenset(("gpus", "batch", "remaining_s", "restart_s", "hold", "sizes"))
"""Keys that must exist for each job of a decision, because they are shown."""


@dataclass(frozen=True, slots=True)
class _Last:
    """The last decision about a pool; empty if there is none."""

    at: float | None
    jobs: Mapping[str, Mapping[str, Any]]
    targets: Mapping[str, tuple[int, int]]
    gpus: int


def show_pools(storage: JobStorage, pools: ElasticPools, caller: Caller) -> tuple[PoolView, ...]:
    """Return all configured pools, by name, with those of their jobs that the caller may see."""
    jobs = storage.store.elastic.jobs() if pools.pools else []
    paused = storage.store.elastic.paused() if pools.pools else {}
    return tuple(
        _view(
            pools,
            name,
            [one for one in jobs if pools.pool_of(one.job) == name],
            _last(storage, name),
            paused.get(name),
            caller,
        )
        for name in sorted(pools.pools)
    )


def _view(
    pools: ElasticPools,
    name: str,
    jobs: Sequence[ElasticJob],
    last: _Last,
    paused_at: float | None,
    caller: Caller,
) -> PoolView:
    pool = pools.pools[name]
    shown = [_job(one, last) for one in jobs]
    makes = bool(jobs) and not pools.missing and paused_at is None
    return PoolView(
        name,
        pools.backend_of(pool),
        pool.partition,
        pool.gpus,
        sum(one.gpus for one in shown),
        pool.objective,
        paused_at,
        last.at,
        last.at + pool.interval_s if makes and last.at is not None else None,
        pools.problem_of(name),
        tuple(view for one, view in zip(jobs, shown, strict=True) if caller.is_admin or one.job.uid == caller.uid),
    )


def _job(one: ElasticJob, last: _Last) -> PoolJobView:
    job, size = one.job, one.size
    learners, per = job.effective_spec.resources.learners, job.effective_spec.resources.gpus
    has_gpus = job.state not in (JobState.PENDING, JobState.HALTED)
    gpus = workers_of(learners, per) if has_gpus else 0
    wanted, reason = last.targets.get(job.id, (gpus, 0))[0], str(last.jobs.get(job.id, {}).get("hold", ""))
    if size is not None and size.state is SizeState.SHRINKING and size.attempt == job.attempt:
        wanted, reason = workers_of(size.learners, per), f"shrinking in place to {counted(size.learners, 'learner')}"
    elif size is not None and size.state is SizeState.HALTING:
        wanted = workers_of(size.learners, per) if size.learners else 0
        reason = (
            f"being halted to continue with {counted(size.learners, 'learner')}"
            if size.learners
            else "being halted to free its GPUs"
        )
    elif not has_gpus:
        reason = job.pending_reason
    return PoolJobView(job.id, job.spec.name, job.state.value, learners, gpus, job.global_batch or 0, wanted, reason)


def _last(storage: JobStorage, pool: str) -> _Last:
    """Return the last decision. If it is damaged, or if an older release wrote it in another format, return an empty
    one."""
    found = next(storage.store.elastic.decisions(pool, 1), None)
    return _Last(None, {}, {}, 0) if found is None else _decoded(found)


def _newest_with(storage: JobStorage, pool: str, job_id: str) -> _Last:
    """Return the newest stored decision that includes the job; an empty one if none does. The number of stored
    decisions is limited."""
    empty = _Last(None, {}, {}, 0)
    decoded = map(_decoded, storage.store.elastic.decisions(pool))
    return next(iter(deque((one for one in decoded if job_id in one.jobs), maxlen=1)), empty)


def _decoded(found: StoredDecision) -> _Last:
    none = _Last(None, {}, {}, 0)
    try:
        inputs, targets = json.loads(found.inputs), json.loads(found.targets)
        jobs = {one["name"]: one for one in inputs["jobs"]}
        pairs = dict(zip(jobs, ((gpus, batch) for gpus, batch in targets), strict=True))
        return _Last(found.at, jobs, pairs, inputs["gpus"]) if all(map(_NEEDED.issubset, jobs.values())) else none
    except (ValueError, KeyError, TypeError):
        return none


def explain_size(storage: JobStorage, pools: ElasticPools, caller: Caller, job_id: str) -> SizeExplanation:
    """Return why a job has its size. Raises :class:`Refused` if no stored decision included
    the job."""
    job = own_job(storage.store, caller, job_id)
    name = pools.pool_of(job)
    if name is None:
        raise wrong_state(
            f"{job.id} belongs to no pool, so its size does not change", "to list the pools: ffdl scaler status"
        )
    last = _last(storage, name)
    is_newest = job.id in last.jobs
    if not is_newest:
        last = _newest_with(storage, name, job.id)
    found = last.jobs.get(job.id)
    if found is None or last.at is None:
        raise wrong_state(f"no stored decision about pool {name} compared sizes of {job.id}, which is now {job.state}")
    fastest = {one["name"]: min((size[1] for size in one["sizes"]), default=math.inf) for one in last.jobs.values()}
    wanted_gpus, wanted_batch = last.targets[job.id]
    return SizeExplanation(
        id=job.id,
        pool=name,
        decided_at=last.at,
        gpus=found["gpus"],
        global_batch=found["batch"],
        wanted_gpus=wanted_gpus,
        wanted_batch=wanted_batch,
        remaining_s=found["remaining_s"],
        restart_s=found["restart_s"],
        hold=found["hold"],
        rank=sum(one >= fastest[job.id] for one in fastest.values()),
        pool_jobs=len(fastest),
        pool_gpus=last.gpus,
        is_newest=is_newest,
        limit=str(found.get("limit", "")),
        options=tuple(SizeOption(gpus, batch, seconds) for gpus, seconds, batch in found["sizes"]),
    )


def pause_pool(storage: JobStorage, pools: ElasticPools, name: str) -> None:
    """Stop decisions about a pool. Running jobs keep their sizes, and waiting jobs start with their last or submitted
    size. A change in progress is finished. Raises :class:`Refused` for an unknown pool."""
    _known(pools, name)
    storage.store.elastic.pause(name, storage.clock.now())
    storage.store.make_due([one.job.id for one in storage.store.elastic.jobs() if pools.pool_of(one.job) == name])


def resume_pool(storage: JobStorage, pools: ElasticPools, name: str) -> None:
    """End the pause of a pool. Raises :class:`Refused` for an unknown pool."""
    _known(pools, name)
    storage.store.elastic.resume(name)
    pools.job_waits.set()


def _known(pools: ElasticPools, name: str) -> ElasticPool:
    pool = pools.pools.get(name)
    if pool is None:
        known = ", ".join(sorted(pools.pools)) or "none"
        raise wrong_usage(f"unknown pool {name[:40]!r}; configured pools: {known}")
    return pool


def replay_decisions(
    storage: JobStorage, pools: ElasticPools, caller: Caller, name: str | None
) -> tuple[ReplayedDecision, ...]:
    """Recompute the recorded decisions about a pool (None = all). Return them with the differences, oldest first.

    Jobs of other users are not named. Raises :class:`Refused` for an unknown pool, or if numpy or scipy is missing.
    """
    names = sorted(pools.pools) if name is None else [name]
    for one in names:
        _known(pools, one)
    if pools.missing:
        raise wrong_state(f"{' and '.join(pools.missing)} not installed", f"to install: {INSTALL}")
    return tuple(_replay(storage, caller, one) for pool in names for one in storage.store.elastic.decisions(pool))


def _replay(storage: JobStorage, caller: Caller, stored: StoredDecision) -> ReplayedDecision:
    from ffdl_batch.services.elastic.decision_records import decode  # numpy and scipy

    try:
        decision = decode(stored)
        repeated = decision.repeated()
    except ValueError as error:
        return ReplayedDecision(stored.pool, stored.at, (str(error),))
    different = {
        JobId(
            one.job.name
        ): f"got {was.gpus} GPUs with batch {was.batch}; the replay gives it {now.gpus} with batch {now.batch}"
        for one, was, now in zip(decision.jobs, decision.targets, repeated, strict=True)
        if was != now
    }
    shown = {job.id for job in storage.store.get_many(different) if caller.is_admin or job.uid == caller.uid}
    sentences = (f"{job if job in shown else 'a job'} {what}" for job, what in different.items())
    return ReplayedDecision(stored.pool, stored.at, tuple(sentences))
