"""Whether what a scheduler lists under a job's id is that job, as it is now. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from ffdl_batch.domain.job import Job, JobId, is_token
from ffdl_batch.domain.observation import NativeId, Observation, Phase


def sort_out(
    jobs: Iterable[Job], listed: Mapping[NativeId, Observation], before: Callable[[Job], Observation | None]
) -> tuple[dict[JobId, Observation], frozenset[JobId]]:
    """What was listed of each job; and the jobs whose id the scheduler has given to another. `before` is what was
    listed of a job's current attempt last, where that is remembered."""
    found: dict[JobId, Observation] = {}
    replaced: set[JobId] = set()
    for job in jobs:
        shown, last = listed.get(NativeId.parse(job.native_id)), before(job)
        if shown is None or (last is not None and is_older(shown, last)):
            continue
        if is_another(shown, job.token, last):
            replaced.add(job.id)
        else:
            found[job.id] = shown
    return found, frozenset(replaced)


def is_another(shown: Observation, token: str, last: Observation | None) -> bool:
    """Whether it is not the job of `token`.

    slurmctld that crashes forgets what it accepted in its last seconds, one whose state was wiped forgets everything,
    and gives those ids out again. A job that its owner renamed is still the job: only the name of another attempt, or a
    later submission that is no restart (which Slurm takes for a submission), proves that it is not.
    """
    if shown.name in ("", token):
        return False
    if is_token(shown.name):
        return True
    if last is None or last.submitted_at is None or shown.submitted_at is None:
        return False
    return shown.submitted_at > last.submitted_at and shown.restarts <= last.restarts


def is_older(shown: Observation, last: Observation) -> bool:
    """Whether `shown` is an end of a run before the one that was listed last: an accounting that lags behind."""
    began, ended = last.started_at, shown.ended_at
    return shown.phase is Phase.ENDED and began is not None and ended is not None and ended < began
