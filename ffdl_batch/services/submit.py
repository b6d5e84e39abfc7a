"""Accept jobs: checked, written, committed, and only then answered."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from ffdl_batch.domain.job import JobId, new_job_id
from ffdl_batch.domain.views import Submission, SubmissionResult
from ffdl_batch.services.archives import has_archive
from ffdl_batch.services.intake import Candidate, plan_or_refuse, read_submission
from ffdl_batch.services.platform import Caller, Platform
from ffdl_batch.services.problems import Refused, bad_request, try_again
from ffdl_batch.services.whole_files import write_whole
from ffdl_batch.store import DuplicateId, NewJob, StoreUnavailable


def submit(platform: Platform, caller: Caller, submissions: Sequence[Submission]) -> list[SubmissionResult]:
    """One result per submission, in order; the accepted ones are durable when this returns.

    A submission is accepted or refused on its own; all accepted ones are committed in one transaction. A `key`
    that was accepted before gives the same id again and starts nothing. The jobs belong to the daemon's user, as
    whom they will run, also when root submits them.
    """
    del caller
    results: list[SubmissionResult | None] = [None] * len(submissions)
    new: list[tuple[int, NewJob, SubmissionResult]] = []
    for index, submission in enumerate(submissions):
        try:
            job, result = _accept(platform, submission)
            new.append((index, job, result))
        except Refused as refusal:
            results[index] = SubmissionResult(problem=refusal.problem)
    try:
        stored = platform.store.add_jobs([job for _, job, _ in new])
    except (DuplicateId, StoreUnavailable) as error:
        for _, job, _ in new:
            _discard(platform, job.id)
        raise try_again("S210", str(error)) from error
    for (index, job, result), row in zip(new, stored, strict=True):
        if row.id != job.id:
            _discard(platform, job.id)
        results[index] = SubmissionResult(id=row.id, warnings=result.warnings, network=result.network)
    return [result for result in results if result is not None]


def _accept(platform: Platform, submission: Submission) -> tuple[NewJob, SubmissionResult]:
    candidate = read_submission(platform, submission)
    if not has_archive(platform, submission.archive):
        raise bad_request("C102", "the model archive was not sent", cure="submit again")
    job_id = new_job_id()
    plan = plan_or_refuse(platform, candidate, job_id, submission.environ)
    _keep_private(platform, job_id, candidate, submission.environ)
    warnings = (*candidate.warnings, *plan.warnings)
    job = NewJob(
        id=job_id,
        uid=platform.uid,
        user=platform.user,
        spec=candidate.spec,
        backend=candidate.backend,
        submit_key=submission.key,
        model_digest=submission.archive,
        submitted_at=platform.clock.now(),
        warnings=warnings,
    )
    return job, SubmissionResult(id=job_id, warnings=warnings, network=plan.network.level)


def _keep_private(platform: Platform, job_id: JobId, candidate: Candidate, environ: Mapping[str, str]) -> None:
    """Credentials and exported variables go to files of mode 0600, never into the record."""
    directory = platform.root.job(job_id)
    kept = {directory.secrets: candidate.secrets, directory.exported: environ}
    try:
        for path, values in kept.items():
            if values:
                Path(directory.path).mkdir(mode=0o700, parents=True, exist_ok=True)
                write_whole(Path(path), json.dumps(dict(values), sort_keys=True), durable=True)
    except OSError as error:
        _discard(platform, job_id)
        raise try_again(
            "S210",
            f"the job could not be kept in {directory.path}: {error.strerror}",
            cure="free space and submit again",
        ) from error


def _discard(platform: Platform, job_id: JobId) -> None:
    """Remove the directory of a job that was never acknowledged."""
    shutil.rmtree(platform.root.job(job_id).path, ignore_errors=True)
