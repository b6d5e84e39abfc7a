"""Accepts jobs: checks them, writes their files, commits their rows, and only then answers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ffdl_batch.attempt.file_writer import write_text
from ffdl_batch.attempt.layout import ArrayDir, JobDir, Root
from ffdl_batch.domain.findings import Finding
from ffdl_batch.domain.job.array import MAX_ELEMENTS, expand, is_array, new_array_id
from ffdl_batch.domain.job.job import Job, new_job_id
from ffdl_batch.domain.job.submission import Caller, Expected, Submission, SubmissionResult
from ffdl_batch.domain.scheduler_errors import InvalidRequest
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.runtimes.launch_request import LaunchPlan
from ffdl_batch.services.authorisation import refuse_files_of_host, refuse_local_backend
from ffdl_batch.services.backends.adapters import Adapters
from ffdl_batch.services.data.data_store_checks import StoreChecks
from ffdl_batch.services.data.model_archives import has_archive
from ffdl_batch.services.job_storage import JobStorage
from ffdl_batch.services.refusals import Refused, bad_request, try_again
from ffdl_batch.services.secrets.job_secrets import hold
from ffdl_batch.services.submission.launch_planning import check_stores, plan_or_refuse
from ffdl_batch.services.submission.validation import Candidate, all_warnings, name_elements, read_submission
from ffdl_batch.store import DuplicateId, NewJob, StoreUnavailable

APART_S = 1e-6
"""The difference between the submission times of an array's elements, so that sorting by time sorts them by index."""


@dataclass(frozen=True, slots=True)
class _Accepted:
    """A submission that passed all checks."""

    index: int
    """Its position in the request."""
    jobs: list[NewJob]
    """Its job, or the elements of its array."""
    result: SubmissionResult


def submit(
    storage: JobStorage,
    adapters: Adapters,
    store_checks: StoreChecks,
    caller: Caller,
    submissions: Sequence[Submission],
    may_commit: Callable[[], bool] = lambda: True,
) -> list[SubmissionResult]:
    """Return one result per submission, in order. The accepted ones are durable when this returns.

    Each submission is accepted or refused by itself, an array as a whole. All accepted ones are committed in one
    transaction; if they are more than MAX_ELEMENTS jobs, in several, which never split an array. A `key` that was
    accepted before returns the same ids and starts nothing. The jobs belong to the daemon's user and run as that user,
    also if root submits them. `may_commit` is called once before the first commit, because the client may have
    disconnected.
    """
    results: list[SubmissionResult | None] = [None] * len(submissions)
    accepted: list[_Accepted] = []
    for index, submission in enumerate(submissions):
        try:
            one = _accept(storage, adapters, store_checks, caller, submission, index)
            if storage.is_tenant and caller.name:
                one = replace(one, jobs=[replace(job, user=caller.name) for job in one.jobs])
            accepted.append(one)
        except Refused as refusal:
            results[index] = SubmissionResult(problem=refusal.problem)
    if accepted and not may_commit():
        for one in accepted:
            _discard(storage.root, one.jobs[0])
        raise try_again("S210", "preparing it took so long that the client no longer waits for the answer")
    for part in _transactions(accepted):
        for one, rows in zip(part, _store(storage, part), strict=True):
            results[one.index] = _answer(storage.root, one, rows)
    return [result for result in results if result is not None]


def _transactions(accepted: Sequence[_Accepted]) -> Iterator[list[_Accepted]]:
    part: list[_Accepted] = []
    for one in accepted:
        if part and sum(len(other.jobs) for other in part) + len(one.jobs) > MAX_ELEMENTS:
            yield part
            part = []
        part.append(one)
    if part:
        yield part


def _store(storage: JobStorage, part: Sequence[_Accepted]) -> Iterator[list[Job]]:
    """Yield the rows of each of `part`. All of them are committed when the first is returned."""
    try:
        rows = iter(storage.store.add_jobs([job for one in part for job in one.jobs]))
    except (DuplicateId, StoreUnavailable) as error:
        # Otherwise they may be committed. If they are not, the janitor removes their files.
        if isinstance(error, DuplicateId) or error.is_undone:
            for one in part:
                _discard(storage.root, one.jobs[0])
        raise try_again("S210", str(error)) from error
    return ([next(rows) for _ in one.jobs] for one in part)


def _answer(root: Root, accepted: _Accepted, rows: Sequence[Job]) -> SubmissionResult:
    if rows[0].id != accepted.jobs[0].id:
        _discard(root, accepted.jobs[0])
    element, result = rows[0].spec.element, accepted.result
    if element is None:
        return replace(result, id=rows[0].id, backend=rows[0].backend)
    return replace(result, id=element.array, elements=tuple(row.id for row in rows), backend=rows[0].backend)


def _accept(
    storage: JobStorage,
    adapters: Adapters,
    store_checks: StoreChecks,
    caller: Caller,
    submission: Submission,
    index: int,
) -> _Accepted:
    candidate = read_submission(storage, adapters, submission)
    refuse_local_backend(caller, candidate.backend)
    if not has_archive(storage.root, submission.archive):
        raise bad_request("C102", "the model archive was not sent", cure="submit again")
    _check_model(storage.root, adapters, candidate.backend, submission.archive)
    if is_array(candidate.spec):
        return _accept_array(storage, adapters, store_checks, submission, candidate, index)
    if submission.expected is Expected.ARRAY:
        raise bad_request("C101", "this is one job, and an array is wanted here",
                          cure="give it batch.array or batch.sweep, or submit it as a job")  # fmt: skip
    (candidate,) = name_elements(storage, candidate, [candidate.spec])
    job_id = new_job_id()
    plan = plan_or_refuse(storage, adapters, candidate, job_id, submission.environ)
    if storage.is_tenant:
        refuse_files_of_host((*plan.launch.fetches, *plan.launch.uploads))
    doubts = check_stores(storage.root, adapters, store_checks, candidate, plan)
    _keep_private(storage.root, job_id, storage.root.job(job_id), candidate, submission.environ)
    warnings = _recorded(candidate, plan, doubts)
    job = NewJob(
        id=job_id,
        uid=storage.uid,
        user=storage.user,
        spec=candidate.spec,
        backend=candidate.backend,
        submit_key=submission.key,
        model_digest=submission.archive,
        submitted_at=storage.clock.now(),
        warnings=warnings,
    )
    shown = (*all_warnings(candidate, plan), *map(str, doubts))
    return _Accepted(index, [job], SubmissionResult(id=job_id, warnings=shown, network=plan.network.level))


def _recorded(candidate: Candidate, plan: LaunchPlan, doubts: Iterable[Finding]) -> tuple[str, ...]:
    """Return the warnings for the job's record, where each of them is known to be a warning."""
    return (
        *map(Finding.without_severity, candidate.warnings),
        *plan.warnings,
        *map(Finding.without_severity, doubts),
    )


def _check_model(root: Root, adapters: Adapters, backend: str, digest: str) -> None:
    """Refuse a model that is too large for the backend. A backend that cannot be used is reported when it plans."""
    try:
        most = adapters.get(backend).traits.model_bytes
    except InvalidRequest:
        return
    size = Path(root.model(digest)).stat().st_size
    if most is not None and size > most:
        message = f"the model archive has {size} bytes, and {backend} takes {most} (model_bytes)"
        raise bad_request("C102", message, cure="leave data out of it, and put them into a data store")


def _accept_array(
    storage: JobStorage,
    adapters: Adapters,
    store_checks: StoreChecks,
    submission: Submission,
    candidate: Candidate,
    index: int,
) -> _Accepted:
    """Accept an array. Only the first element is planned, because the others differ only in values of variables."""
    if submission.expected is Expected.JOB:
        raise bad_request("C101", "this is an array of jobs, and one job is wanted here",
                          cure="leave batch.array and batch.sweep out, or submit it as an array")  # fmt: skip
    array = new_array_id()
    elements = name_elements(storage, candidate, expand(candidate.spec, array))
    ids = [new_job_id() for _ in elements]
    plan = plan_or_refuse(storage, adapters, elements[0], ids[0], submission.environ)
    if storage.is_tenant:
        refuse_files_of_host((*plan.launch.fetches, *plan.launch.uploads))
    doubts = check_stores(storage.root, adapters, store_checks, candidate, plan)
    _keep_private(storage.root, array, storage.root.array(array), candidate, submission.environ)
    warnings = _recorded(candidate, plan, doubts)
    now = storage.clock.now()
    jobs = [
        NewJob(
            id=job_id,
            uid=storage.uid,
            user=storage.user,
            spec=replace(element.spec, manifest_text=""),
            backend=candidate.backend,
            submit_key=f"{submission.key}/{number}" if submission.key else "",
            model_digest=submission.archive,
            submitted_at=now + number * APART_S,
            warnings=warnings,
        )
        for number, (job_id, element) in enumerate(zip(ids, elements, strict=True))
    ]
    shown = (*all_warnings(candidate, plan), *map(str, doubts))
    return _Accepted(index, jobs, SubmissionResult(id=array, warnings=shown, network=plan.network.level))


def _keep_private(
    root: Root, holder: str, directory: JobDir | ArrayDir, candidate: Candidate, environ: Mapping[str, str]
) -> None:
    """Write credentials and exported variables to files of mode 0600, never into the record. Write the manifest of an
    array there too, so that the record of each element need not contain it."""
    kept = {directory.secrets: _json(candidate.secrets), directory.exported: _json(environ)}
    if isinstance(directory, ArrayDir):
        kept[directory.manifest] = candidate.spec.manifest_text
    try:
        if candidate.secrets:
            hold(root, holder)
        for path, text in kept.items():
            if text:
                Path(directory.path).mkdir(mode=0o700, parents=True, exist_ok=True)
                write_text(path, text)
    except OSError as error:
        shutil.rmtree(directory.path, ignore_errors=True)
        raise try_again(
            "S210",
            f"the job could not be kept in {directory.path}: {error.strerror}",
            cure="free space and submit again",
        ) from error


def _json(values: Mapping[str, str]) -> str:
    return json.dumps(dict(values), sort_keys=True) if values else ""


def _discard(root: Root, job: NewJob) -> None:
    """Remove the files of a submission that was not accepted."""
    element = job.spec.element
    directory = root.job(job.id).path if element is None else root.array(element.array).path
    shutil.rmtree(directory, ignore_errors=True)
