"""Defines the answers of services that refuse a request."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.domain.findings import Finding, Severity
from ffdl_batch.domain.job.views import Problem


class Refused(Exception):
    """A refused request. `status` is the HTTP status."""

    def __init__(self, problem: Problem, status: int) -> None:
        super().__init__(problem.message)
        self.problem = problem
        self.status = status


class StreamStopped(Exception):
    """The reader of a stream has disconnected, so reading must stop."""


def stop_if(is_stopped: Callable[[], bool]) -> None:
    """Raise StreamStopped if `is_stopped`. For loops that may read for a long time without yielding."""
    if is_stopped():
        raise StreamStopped


def bad_input(findings: Sequence[Finding]) -> Refused:
    """The manifest, the options or the archive are wrong."""
    errors = [f for f in findings if f.severity is Severity.ERROR]
    message = str(errors[0]) if len(errors) == 1 else f"{len(errors)} errors; the first: {errors[0]}"
    return Refused(Problem(errors[0].code, message, ExitCode.BAD_MANIFEST, findings=tuple(findings)), 422)


def bad_request(code: str, message: str, findings: Sequence[Finding] = (), cure: str = "") -> Refused:
    """The request can never succeed as it is."""
    return Refused(Problem(code, message, ExitCode.BAD_MANIFEST, cure=cure, findings=tuple(findings)), 422)


def wrong_usage(message: str) -> Refused:
    """The options of the request are wrong, as on a command line."""
    return Refused(Problem("C101", message, ExitCode.USAGE), 400)


def wrong_state(message: str, cure: str = "") -> Refused:
    """The job is in the wrong state for the request. It was not changed."""
    return Refused(Problem("C101", message, ExitCode.FAILED, cure=cure), 409)


def unavailable(message: str, findings: Sequence[Finding] = (), cure: str = "") -> Refused:
    """Something that is needed is missing, and trying again does not help."""
    return Refused(Problem("S101", message, ExitCode.UNAVAILABLE, cure=cure, findings=tuple(findings)), 422)


def try_again(code: str, message: str, cure: str = "") -> Refused:
    """Nothing was changed, and the same request may succeed later."""
    return Refused(Problem(code, message, ExitCode.TRY_AGAIN, cure=cure), 503)


def unknown_job(job_id: str) -> Refused:
    """There is no such job, or it is another user's. The answer does not distinguish the two."""
    problem = Problem("C101", f"there is no job {job_id}", ExitCode.FAILED, cure="ffdl list shows your jobs")
    return Refused(problem, 404)


def removed_job(job_id: str) -> Refused:
    """The job was removed."""
    problem = Problem("C101", f"{job_id} was removed", ExitCode.FAILED, cure="ffdl list shows your jobs")
    return Refused(problem, 404)


def native_array(text: str, backend: str, array: str, task: str) -> Refused:
    """The request needs one job and names a native array of the scheduler. `task` is the id of one of its tasks."""
    message = f"{text} is the id that {backend} gave to jobs of {array}"
    cure = f"name one of them, as {task}, or {array}"
    return Refused(Problem("C101", message, ExitCode.FAILED, cure=cure), 404)


def unknown_array(array_id: str) -> Refused:
    """There is no such array, or it is another user's."""
    problem = Problem("C101", f"there is no array {array_id}", ExitCode.FAILED, cure="ffdl list shows your jobs")
    return Refused(problem, 404)


def whole_array(array_id: str, index: int) -> Refused:
    """The request needs one job and names an array. `index` is the index of one of its elements."""
    message = f"{array_id} is an array of jobs, and one job is wanted here"
    cure = f"name an element, as {array_id}_{index}; ffdl list --array {array_id} shows them"
    return Refused(Problem("C101", message, ExitCode.FAILED, cure=cure), 404)


def ambiguous_job(beginning: str, ids: Sequence[str], *, complete: bool) -> Refused:
    """Several of the caller's jobs have ids with this beginning."""
    return _ambiguous(f"{beginning} is the beginning of several ids", ids, complete)


def ambiguous_native_id(text: str, ids: Sequence[str], *, complete: bool) -> Refused:
    """Several of the caller's jobs had this id in a scheduler."""
    return _ambiguous(f"{text} is a scheduler's id of several jobs", ids, complete)


def _ambiguous(message: str, ids: Sequence[str], complete: bool) -> Refused:
    named = ", ".join(ids) + ("" if complete else " and others")
    return Refused(Problem("C101", f"{message}: {named}", ExitCode.FAILED, cure="write one of them"), 404)


def not_allowed(message: str) -> Refused:
    """The caller may not do this."""
    return Refused(Problem("C101", message, ExitCode.NOT_ALLOWED), 403)
