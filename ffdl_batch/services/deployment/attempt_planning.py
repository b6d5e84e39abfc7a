"""Plans attempts from the job's current spec and the results of its earlier attempts."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ffdl_batch.attempt.layout import Root
from ffdl_batch.domain.incidents.node_score import NodeScore
from ffdl_batch.domain.job.job import Job, Token
from ffdl_batch.domain.job.spec import JobSpec
from ffdl_batch.domain.launch.launch_file import TEMPLATE
from ffdl_batch.domain.outcome.attempt_reports import LOST_BEFORE_START
from ffdl_batch.domain.outcome.continuation import Interruption
from ffdl_batch.domain.scheduler_errors import InvalidRequest
from ffdl_batch.runtimes.launch_request import LaunchPlan, LaunchRequest
from ffdl_batch.services.backends.adapters import Adapters
from ffdl_batch.services.backends.node_exclusion import NodeExclusion, exclusion_warnings, without
from ffdl_batch.services.data.staging_attempt import for_staging, has_to_stage, only_staging, stages_ahead, trains_from
from ffdl_batch.services.job_files.attempt_directory import exported_environment
from ffdl_batch.services.job_storage import JobStorage
from ffdl_batch.services.submission.launch_planning import launch_request

log = logging.getLogger(__name__)


def plan_attempt(storage: JobStorage, adapters: Adapters, node_exclusion: NodeExclusion, job: Job) -> LaunchPlan:
    """Plan the job's current attempt. Raises InvalidRequest, UnknownImage, SchedulerUnreachable.

    The plan excludes unreliable nodes if the site has configured that and other nodes remain. If no node remains
    without those that failed this job, the job may run on them again.
    """
    avoided = node_exclusion.for_job(job.backend, job.effective_spec)
    if avoided:
        try:
            return replace(_plan(storage, adapters, job, avoided), kept_off=exclusion_warnings(avoided))
        except InvalidRequest:
            log.warning("job %s has nowhere to run without %s", job.id, ", ".join(one.node for one in avoided))
    try:
        return _plan(storage, adapters, job)
    except InvalidRequest:
        if not job.overrides.exclude:
            raise
        plan = _plan(storage, adapters, replace(job, overrides=replace(job.overrides, exclude=())))
        log.warning("job %s has nowhere to run without %s", job.id, ", ".join(job.overrides.exclude))
        return plan


def _plan(storage: JobStorage, adapters: Adapters, job: Job, avoided: Sequence[NodeScore] = ()) -> LaunchPlan:
    adapter, spec = adapters.get(job.backend), without(_spec(storage, job), avoided)
    earlier = storage.store.attempts(job.id) if job.attempt > 1 else ()
    if not stages_ahead(spec, earlier):
        plan = adapter.plan(replace(_request(storage, adapters, job, spec), trains_from=trains_from(earlier)))
        if not has_to_stage(plan, earlier):
            return plan
    staging = replace(_request(storage, adapters, job, for_staging(spec)), only_stages=True)
    return only_staging(adapter.plan(staging))


def plan_template(
    storage: JobStorage, adapters: Adapters, node_exclusion: NodeExclusion, job: Job, plan: LaunchPlan
) -> LaunchPlan | None:
    """Plan the template from which a head starts the next attempt. Return None if the backend's heads do not do that,
    or if it cannot be planned. The daemon starts the next attempt then."""
    if plan.launch.succession is None:
        return None
    spec = _without_conditions(job.effective_spec)
    if plan.kept_off:
        spec = without(spec, node_exclusion.for_job(job.backend, spec))
    request = _request(storage, adapters, job, spec)
    request = replace(
        request,
        attempt=job.attempt + 1,
        trains_from=job.attempt + 1 if plan.launch.only_stages else plan.launch.trains_from,
        token=Token(f"{job.id}-{TEMPLATE}"),
        attempt_dir=storage.root.job(job.id).template,
        carry="",
        array_dir=None,
    )
    try:
        return adapters.get(job.backend).plan(request)
    except InvalidRequest as error:
        log.warning("job %s: the attempt after this one cannot be planned yet: %s", job.id, error)
        return None


def _spec(storage: JobStorage, job: Job) -> JobSpec:
    return without_waiting(storage, job, job.effective_spec, job.attempt)


def without_waiting(storage: JobStorage, job: Job, spec: JobSpec, attempt: int) -> JobSpec:
    """Return `spec` without the conditions that earlier attempts have waited for. A hold and a begin time stay if the
    scheduler never started an earlier attempt."""
    if attempt == 1:
        return spec
    if _was_to_start(storage, job, attempt):
        return _without_conditions(spec)
    return replace(spec, batch=replace(spec.batch, dependency=""))


def _was_to_start(storage: JobStorage, job: Job, attempt: int) -> bool:
    """Whether an earlier attempt began, or ended for another reason than its owner's halt or a loss by the
    scheduler."""
    directory = storage.root.job(job.id)
    earlier = [one for one in storage.store.attempts(job.id) if one.number < attempt]
    if any(Path(directory.attempt(one.number).claim_owner).exists() for one in earlier):
        return True
    return any(one.interruption != Interruption.HALT.value and one.outcome_code != LOST_BEFORE_START for one in earlier)


def _without_conditions(spec: JobSpec) -> JobSpec:
    return replace(spec, batch=replace(spec.batch, dependency="", begin="", hold=False))


def _request(storage: JobStorage, adapters: Adapters, job: Job, spec: JobSpec) -> LaunchRequest:
    return launch_request(
        storage,
        adapters,
        spec,
        job.backend,
        job.id,
        job.attempt,
        environ=exported_environment(storage.root, job),
        checkpoints=[attempt.checkpoint for attempt in storage.store.attempts(job.id)] if job.attempt > 1 else (),
        spent=job.spent,
        carry=_carry(storage.root, job),
    )


def _carry(root: Root, job: Job) -> str:
    """Return the results directory of the last attempt whose learners started. It contains the results of the earlier
    ones."""
    directory = root.job(job.id)
    for number in range(job.attempt - 1, 0, -1):
        earlier = directory.attempt(number)
        if any(Path(earlier.state).glob(".began-*")) and Path(earlier.results).is_dir():
            return earlier.results
    return ""
