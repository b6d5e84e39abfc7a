"""Resumes halted and failed jobs: the same job continues in a new attempt with its checkpoints."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from ffdl_batch.attempt.reader import DamagedFile, open_directory
from ffdl_batch.domain.findings import Finding
from ffdl_batch.domain.job.job import Change, Job, Overrides
from ffdl_batch.domain.job.secret_references import MOVED
from ffdl_batch.domain.job.submission import Caller
from ffdl_batch.domain.job.views import JobView, Resume
from ffdl_batch.domain.job_state import Cause, JobState
from ffdl_batch.domain.launch.network_level import ONLY_HOST
from ffdl_batch.domain.number_text import counted
from ffdl_batch.domain.quantity import MINUTES_MEANT, doubt_about_minutes, format_time_limit, parse_requested_time
from ffdl_batch.runtimes.launch_request import LaunchPlan
from ffdl_batch.services.authorisation import refuse_local_backend
from ffdl_batch.services.backends.adapters import Adapters
from ffdl_batch.services.data.data_directories import NOT_YET
from ffdl_batch.services.data.data_store_checks import DOUBTS, StoreChecks
from ffdl_batch.services.data.model_archives import has_archive
from ffdl_batch.services.deployment.attempt_planning import without_waiting
from ffdl_batch.services.job_files.attempt_directory import exported_environment
from ffdl_batch.services.job_storage import JobStorage
from ffdl_batch.services.queries.jobs import detailed, own_job
from ffdl_batch.services.refusals import Refused, bad_request, try_again, wrong_state, wrong_usage
from ffdl_batch.services.secrets.job_secrets import CODE, missing_secrets, own_secrets
from ffdl_batch.services.submission.launch_planning import check_stores, plan_or_refuse
from ffdl_batch.services.submission.validation import Candidate

log = logging.getLogger(__name__)

RESUMABLE = frozenset({JobState.HALTED, JobState.FAILED})
ATTEMPTS = 5
MAX_GPUS = 1_000_000
_OVER = (MOVED, NOT_YET, ONLY_HOST, *DOUBTS)
"""Parts of warnings of a submission that do not apply any more: the credentials have been moved, and the data stores
and the site are checked again."""


def resume_job(
    storage: JobStorage, adapters: Adapters, store_checks: StoreChecks, caller: Caller, job_id: str, resume: Resume
) -> JobView:
    """Change a job from HALTED or FAILED to PENDING, with full budgets.

    Raises :class:`Refused`, with nothing written, if the job is in another state, its model archive is missing, or its
    next attempt cannot be planned. Changes of an earlier resume stay unless they are changed again. Nodes that failed
    the job are allowed again. The job's warnings become those that a submission would get now.
    """
    for _ in range(ATTEMPTS):
        job = own_job(storage.store, caller, job_id)
        refuse_local_backend(caller, job.backend)
        _check_state(job)
        overrides = _overrides(job, resume)
        warnings = _check_possible(storage, adapters, store_checks, job, overrides)
        if resume.time is not None:
            warnings = _with_doubt_about(resume.time, warnings)
        change = Change(
            steps=((JobState.PENDING, storage.clock.now()),),
            cause=Cause.RESUMED,
            message=_sentence(storage, job, resume, overrides),
            columns={"overrides": overrides, "warnings": warnings},
        )
        updated = storage.store.apply(job, change)
        if updated is not None:
            return detailed(storage, adapters, updated)
    raise try_again("S210", f"{job_id} changes too fast to be resumed", cure="try again")


def _check_state(job: Job) -> None:
    if job.state in RESUMABLE:
        return
    if not job.state.is_terminal:
        cure = (
            f"to wait for its end: ffdl wait {job.id}"
            if job.requested_action.value != "none"
            else f"to stop it first: ffdl halt {job.id}"
        )
        raise wrong_state(f"{job.id} is {job.state}: only HALTED and FAILED jobs can be resumed", cure)
    what = "has completed" if job.state is JobState.COMPLETED else "was cancelled"
    raise wrong_state(f"{job.id} {what}: only HALTED and FAILED jobs can be resumed", "submit it again")


def _overrides(job: Job, resume: Resume) -> Overrides:
    gpus, time_s = job.overrides.gpus, job.overrides.time_s
    learners, global_batch = job.overrides.size
    if resume.learners is not None or resume.global_batch is not None:
        if job.spec.batch.elasticity is None:
            raise wrong_usage(f"{job.id} is not elastic, so the number of learners and the batch cannot change")
        learners = learners if resume.learners is None else resume.learners
        global_batch = global_batch if resume.global_batch is None else resume.global_batch
    if resume.gpus is not None:
        gpus = resume.gpus
        if not math.isfinite(gpus) or not 0 <= gpus <= MAX_GPUS:
            raise wrong_usage(f"--gpus: {gpus:g} is not a valid number of GPUs; write 0 or more")
    if resume.time is not None:
        try:
            time_s = parse_requested_time(resume.time)
        except ValueError as error:
            raise wrong_usage(f"--time: {error}") from error
    return Overrides(gpus, time_s, (), learners, global_batch)


def _check_possible(
    storage: JobStorage, adapters: Adapters, store_checks: StoreChecks, job: Job, overrides: Overrides
) -> tuple[str, ...]:
    """Refuse now what the deployer would refuse later. Return the new warnings of the job.

    Warnings about its manifest stay. Warnings about the plan before this resume are removed.
    """
    directory = storage.root.job(job.id)
    # The archive by digest is removed if no live job names it. has_archive keeps it for a day, until the row is live.
    if not Path(directory.model_archive).exists() and not has_archive(storage.root, job.model_digest):
        message = f"the model archive of {job.id} is no longer in {directory.path} nor in {storage.root.models}"
        raise bad_request("C102", message, cure="submit the job again; it can read its checkpoints from "
                          f"{directory.checkpoints}")  # fmt: skip
    try:
        os.close(open_directory(directory.checkpoints, below=directory.path))
    except FileNotFoundError:
        pass
    except DamagedFile as error:
        cure = "rename it, and put the checkpoints into a directory with that name"
        raise wrong_state(f"{directory.checkpoints}: {error.why}, and not the job's checkpoints", cure) from None
    own = own_secrets(storage.root, job)
    if missing := missing_secrets(storage.root, job.spec, own):
        raise bad_request(CODE, "; ".join(one.message for one in missing), cure=missing[0].cure or "")
    gone = tuple(warning for warning in job.warnings if any(words in warning for words in _OVER))
    if overrides != replace(job.overrides, exclude=()):
        try:
            gone += _plan(storage, adapters, job, _candidate(storage, job, job.overrides, own)).warnings
        except Refused:
            log.info("job %s: its earlier request cannot be planned any more, so the warnings about it stay", job.id)
    candidate = _candidate(storage, job, overrides, own)
    plan = _plan(storage, adapters, job, candidate)
    doubts = check_stores(storage.root, adapters, store_checks, candidate, plan)
    found = (*plan.warnings, *map(Finding.without_severity, doubts))
    return (*(one for one in job.warnings if one not in gone and one not in found), *found)


def _with_doubt_about(time: str, warnings: tuple[str, ...]) -> tuple[str, ...]:
    """Return the warnings of a job that is resumed with another time limit."""
    others = tuple(one for one in warnings if MINUTES_MEANT not in one)
    doubt = doubt_about_minutes(time)
    return others if doubt is None else (*others, f"--time: {doubt[0]} ({doubt[1]})")


def _candidate(storage: JobStorage, job: Job, overrides: Overrides, own: Mapping[str, str]) -> Candidate:
    """Return the job of the next attempt with `overrides`."""
    spec = without_waiting(storage, job, overrides.apply(job.spec), job.attempt + 1)
    given = {path: source.partition(":") for path, source in spec.sources.items()}
    lines = {path: int(line) if kind == "manifest" else 0 for path, (kind, _, line) in given.items()}
    return Candidate(spec, job.backend, (), (), own, "manifest.yml", lines)


def _plan(storage: JobStorage, adapters: Adapters, job: Job, candidate: Candidate) -> LaunchPlan:
    """Plan the next attempt. Raises Refused."""
    environ = exported_environment(storage.root, job)
    return plan_or_refuse(storage, adapters, candidate, job.id, environ, job.attempt + 1)


def _sentence(storage: JobStorage, job: Job, resume: Resume, overrides: Overrides) -> str:
    altered = []
    if resume.learners is not None:
        altered.append(counted(resume.learners, "learner"))
    if resume.global_batch is not None:
        altered.append(f"batch {resume.global_batch}")
    if resume.gpus is not None:
        altered.append(f"{overrides.gpus:g} {'GPU' if overrides.gpus == 1 else 'GPUs'} per learner")
    if resume.time is not None and overrides.time_s is not None:
        altered.append(f"time limit {format_time_limit(overrides.time_s)}")
    before, after = job.spec.batch, without_waiting(storage, job, job.spec, job.attempt + 1).batch
    waited = [name for name in ("dependency", "begin", "hold") if getattr(before, name) and not getattr(after, name)]
    return (
        "resumed by its owner"
        + (f" with {' and '.join(altered)}" if altered else "")
        + (f"; it no longer waits for batch.{' and batch.'.join(waited)} of its submission" if waited else "")
    )
