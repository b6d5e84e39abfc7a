"""Decides whether the job that a scheduler lists under an id is the attempt that it is taken for.

A slurmctld that crashes forgets what it accepted in its last seconds, and one whose state was wiped forgets everything.
Both assign those ids again. A program that a site runs before sbatch may print a wrong id. Only a job that is provably
the attempt is ended, signalled or changed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import field, replace
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING

from ffdl_batch.attempt.layout import Root
from ffdl_batch.domain.job.job import Job, JobId, is_token
from ffdl_batch.domain.outcome.observation import NativeId, Observation, Phase
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.ports.scheduler import Scheduler
from ffdl_batch.services.outcome.attempt_records import claimed_at

if TYPE_CHECKING:
    from ffdl_batch.services.monitoring.watch_state import Memory


class Standing(Enum):
    """What is known of a job that is listed under an attempt's id."""

    OWN = "own"
    """It is the attempt."""
    DOUBTFUL = "doubtful"
    """Nothing proves that it is, or that it is not: it is followed, and nothing is asked of it."""
    ANOTHER = "another"
    """It is another job."""


@dataclass(slots=True)
class Listed:
    """What was listed of each job. `doubtful` are those of `found` that may be others; the ids of `replaced` the
    scheduler has given to others."""

    found: dict[JobId, Observation] = field(default_factory=dict)
    doubtful: set[JobId] = field(default_factory=set)
    replaced: set[JobId] = field(default_factory=set)


def sort_out(
    jobs: Iterable[Job],
    listed: Mapping[NativeId, Observation],
    memory_of: Callable[[Job], Memory],
    claimed_at: Callable[[Job], float | None],
) -> Listed:
    """What was listed of each job. `claimed_at` says when the job's id claimed its current attempt; it is asked where
    the name proves nothing."""
    sorted_out = Listed()
    for job in jobs:
        shown, memory = listed.get(NativeId.parse(job.native_id)), memory_of(job)
        if shown is None or (memory.observation is not None and is_older(shown, memory.observation)):
            continue
        standing = standing_of(shown, job.token, memory.own, partial(claimed_at, job))
        if standing is Standing.ANOTHER:
            sorted_out.replaced.add(job.id)
            continue
        if standing is Standing.DOUBTFUL:
            sorted_out.doubtful.add(job.id)
            shown = _in_doubt(shown)
        sorted_out.found[job.id] = shown
    return sorted_out


def standing_of(
    shown: Observation, token: str, own: Observation | None, claimed_at: Callable[[], float | None]
) -> Standing:
    """What the job listed as `shown` is to the attempt of `token`. `own` is what was listed last that surely was the
    attempt.

    Its name proves it. A job that its owner renamed is known by the time of its submission: it is that of what was
    listed before, or an earlier one than that of the claim. Slurm takes a requeue for a submission; it keeps the name.
    """
    if shown.name in ("", token):
        return Standing.OWN
    if is_token(shown.name):
        return Standing.ANOTHER
    submitted_at = shown.submitted_at
    if submitted_at is None:
        return Standing.DOUBTFUL
    before = own.submitted_at if own is not None else None
    is_restart = own is not None and shown.name == own.name and shown.restarts > own.restarts
    claimed = claimed_at()
    if is_restart or submitted_at == before or (claimed is not None and submitted_at <= claimed):
        return Standing.OWN
    return Standing.ANOTHER if before is not None and submitted_at > before else Standing.DOUBTFUL


def _in_doubt(shown: Observation) -> Observation:
    """Return what counts for a job that may be another: its end, but no restart and no hold."""
    phase = Phase.ENDED if shown.phase is Phase.ENDED else Phase.UNKNOWN
    return replace(shown, phase=phase, restarts=0, held_for_good=False, nowhere=False, nodes="")


def is_older(shown: Observation, last: Observation) -> bool:
    """Return whether `shown` is the end of a run before `last`, reported by an accounting that lags behind."""
    began, ended = last.started_at, shown.ended_at
    return shown.phase is Phase.ENDED and began is not None and ended is not None and ended < began


log = logging.getLogger(__name__)


def claimed_by_its_id(root: Root, job: Job, native: NativeId | None = None) -> float | None:
    """Return when the job's id, or `native`, claimed its current attempt; None if it did not, or if the claim cannot be
    read now."""
    attempt = root.job(job.id).attempt(job.attempt)
    try:
        return claimed_at(attempt, str(native) if native is not None else job.native_id)
    except OSError as error:
        log.warning("job %s: who claimed attempt %d cannot be read: %s", job.id, job.attempt, error)
        return None


def is_own(root: Root, job: Job, native: NativeId, shown: Observation) -> bool:
    """Return whether the scheduler's job `native` provably is the current attempt."""
    return standing_of(shown, job.token, None, partial(claimed_by_its_id, root, job, native)) is Standing.OWN


def own_among(root: Root, adapter: Scheduler, job: Job, natives: Collection[NativeId]) -> frozenset[NativeId]:
    """Return those of `natives` that provably are the current attempt and have not ended. Log the others, which are
    left alone. Raises SchedulerUnreachable."""
    own: set[NativeId] = set()
    for native, shown in adapter.observe(natives).items():
        if shown.phase is Phase.ENDED:
            continue
        if is_own(root, job, native, shown):
            own.add(native)
        else:
            log.warning("job %s: %s is listed as %r and is left alone", job.id, native, shown.name)
    return frozenset(own)


def does_run(root: Root, adapter: Scheduler, job: Job) -> bool:
    """Return whether the scheduler's job provably is the current attempt and runs. Raises SchedulerUnreachable."""
    native = NativeId.parse(job.native_id)
    shown = adapter.observe([native]).get(native)
    return shown is not None and shown.phase is Phase.RUNNING and is_own(root, job, native, shown)


def may_ask_of(root: Root, adapter: Scheduler, job: Job) -> bool:
    """Return whether the scheduler's job provably is the current attempt and has not ended. Raises
    SchedulerUnreachable."""
    native = NativeId.parse(job.native_id)
    return native in own_among(root, adapter, job, [native])
