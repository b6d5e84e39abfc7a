"""Turns exceptions into error replies. The body of each reply is a Problem."""

from __future__ import annotations

import gc
import logging
from collections.abc import Mapping
from dataclasses import replace
from http import HTTPMethod

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ffdl_batch.attempt.reader import find_own_denial
from ffdl_batch.daemon.replies import problem_reply
from ffdl_batch.daemon.request_context import context_of
from ffdl_batch.daemon.request_findings import findings_of
from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.domain.findings import Severity
from ffdl_batch.domain.job.views import Problem
from ffdl_batch.domain.scheduler_errors import InvalidRequest, SchedulerUnreachable
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.host.resource_exhaustion import WHOSE_LIMITS, WRAPPED, explain_lack
from ffdl_batch.services.os_errors import explain
from ffdl_batch.services.refusals import Refused
from ffdl_batch.store import DatabaseDamaged, StoreUnavailable

log = logging.getLogger(__name__)

_SHOWN = 10
_SENTENCES = {
    400: "the body of the request is not JSON in UTF-8, or is nested too deeply",
    404: "there is no {method} {path} in this interface",
    405: "{method} is not possible on {path}",
}


async def reply_to(error: Exception, request: Request) -> Response:
    """Return the reply to an error that was raised before any route ran. Re-raises unexpected errors."""
    handlers = request.app.exception_handlers
    for kind in type(error).__mro__:
        if kind in handlers and kind is not Exception:
            reply: Response = await handlers[kind](request, error)
            return reply
    raise error


def install(app: FastAPI) -> None:
    """Add the handlers to `app`."""
    app.add_exception_handler(Refused, _refused)
    app.add_exception_handler(StoreUnavailable, _store_unavailable)
    app.add_exception_handler(DatabaseDamaged, _damaged)
    app.add_exception_handler(SchedulerUnreachable, _scheduler_unreachable)
    app.add_exception_handler(InvalidRequest, _invalid_request)
    app.add_exception_handler(RequestValidationError, _malformed)
    for refusal in (OSError, MemoryError, *WRAPPED):
        app.add_exception_handler(refusal, _refused_by_machine)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(Exception, _unexpected)


@dataclass(frozen=True, slots=True)
class BodyLimit:
    """The size limit of a request body in bytes, and the code, subject and cure of the error."""

    size: int = 128 * 1000**2
    code: str = "C101"
    subject: str = "the request"
    cure: str = "submit fewer manifests at once, or smaller ones"

    def problem(self) -> Problem:
        """Return the error for a body that is larger."""
        message = f"{self.subject} is larger than {self.size // 1000**2} MB"
        return Problem(self.code, message, ExitCode.BAD_MANIFEST, self.cure)


class BodyLimits:
    """Limits the bodies of all requests. Paths below an entry of `own` have the entry's limit, others the default.

    A body with too large a Content-Length is refused before any of it is read. A body without Content-Length is refused
    when its size exceeds the limit.
    """

    def __init__(self, app: ASGIApp, own: Mapping[str, BodyLimit]) -> None:
        self._app, self._own = app, own

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        limit = next((one for path, one in self._own.items() if scope["path"].startswith(path)), BodyLimit())
        announced = Headers(scope=scope).get("content-length", "")
        if announced.isdecimal() and int(announced) > limit.size:
            await problem_reply(limit.problem(), 413)(scope, receive, send)
            return
        received = 0

        async def receive_counted() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > limit.size:
                raise BodyTooLarge(limit)
            return message

        await self._app(scope, receive_counted, send)


class BodyTooLarge(HTTPException):
    """More bytes were received than `limit` allows. An HTTPException, because FastAPI makes other exceptions a 400."""

    def __init__(self, limit: BodyLimit) -> None:
        super().__init__(413)
        self.problem = limit.problem()


def blame_options(problem: Problem) -> Problem:
    """Return the problem; if every error names a command-line option, with the exit code for wrong usage, as sbatch."""
    errors = [finding for finding in problem.findings if finding.severity is Severity.ERROR]
    named = [finding for finding in errors if finding.file is None and (finding.path or "").startswith("--")]
    return replace(problem, exit_code=ExitCode.USAGE) if errors and len(named) == len(errors) else problem


async def _refused(_request: Request, error: Exception) -> Response:
    assert isinstance(error, Refused)
    headers = {"WWW-Authenticate": "Bearer"} if error.status == 401 else None
    return problem_reply(blame_options(error.problem), error.status, headers)


async def _store_unavailable(_request: Request, error: Exception) -> Response:
    log.warning("store unavailable: %s", error)
    return problem_reply(Problem("S210", str(error), ExitCode.TRY_AGAIN), 503)


async def _damaged(_request: Request, error: Exception) -> Response:
    log.error("%s", error)
    return problem_reply(Problem("S210", str(error), ExitCode.UNAVAILABLE), 503)


def problem_of(error: Exception, place: str) -> Problem | None:
    """Return the problem for an error of the machine, or of the file system below `place`; None for other errors."""
    if isinstance(error, MemoryError):
        gc.collect()  # the traceback keeps what the request held in reference cycles
        cure = f"send less at once; {WHOSE_LIMITS}"
        return Problem("S210", "there is not enough memory in the daemon for this request", ExitCode.TRY_AGAIN, cure)
    if isinstance(error, WRAPPED):
        lack = explain_lack(error)
        return Problem("S210", f"in the daemon, {lack}", ExitCode.TRY_AGAIN, WHOSE_LIMITS) if lack else None
    if isinstance(error, PermissionError) and (why := find_own_denial(str(error.filename or ""))):
        cure = "give yourself access again (chmod u+rwX)"
        return Problem("S210", f"{error.filename} cannot be read, because {why}", ExitCode.UNAVAILABLE, cure)
    if type(error) is OSError and error.errno is None:  # a file of the job is damaged
        return Problem("S210", str(error), ExitCode.UNAVAILABLE, "restore the file, or submit the job again")
    trouble = explain(error, place) if isinstance(error, OSError) else None
    return None if trouble is None else Problem("S210", trouble.message, ExitCode.TRY_AGAIN, trouble.cure)


async def _refused_by_machine(request: Request, error: Exception) -> Response:
    problem = problem_of(error, context_of(request.app).platform.storage.root.path)
    if problem is None:
        raise error
    log.warning("%s %s: %s", request.method, request.url.path, problem.message)
    return problem_reply(problem, 503)


async def _scheduler_unreachable(_request: Request, error: Exception) -> Response:
    return problem_reply(Problem("S200", str(error), ExitCode.TRY_AGAIN), 503)


async def _invalid_request(_request: Request, error: Exception) -> Response:
    assert isinstance(error, InvalidRequest)
    return problem_reply(Problem("C104", str(error), ExitCode.BAD_MANIFEST, findings=error.findings), 422)


async def _malformed(_request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    findings = tuple(findings_of(error.errors())[:_SHOWN])
    message = "the request does not match the interface: " + "; ".join(f"{f.path}: {f.message}" for f in findings)
    cure = "client and daemon may be of different releases; /openapi.json describes this daemon's interface"
    return problem_reply(Problem("C101", message, ExitCode.USAGE, cure, findings), 400)


async def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if isinstance(error, BodyTooLarge):
        return problem_reply(error.problem, 413)
    cause = error.__cause__  # met while the body was read
    if isinstance(cause, (MemoryError, OSError)) or (isinstance(cause, WRAPPED) and explain_lack(cause)):
        return await _refused_by_machine(request, cause)
    sentence = _SENTENCES.get(error.status_code, str(error.detail))
    message = sentence.format(method=request.method, path=request.url.path[:200])
    headers = {"Allow": ", ".join(_allowed_methods(request))} if error.status_code == 405 else None
    return problem_reply(Problem("C101", message, ExitCode.USAGE), error.status_code, headers)


def _allowed_methods(request: Request) -> list[str]:
    """Return the methods of all routes of the path. Starlette's own `Allow` lists only those of one route."""
    routes = request.app.routes
    return [
        method for method in HTTPMethod
        if any(route.matches({**request.scope, "method": str(method)})[0] is Match.FULL for route in routes)
    ]  # fmt: skip


async def _unexpected(request: Request, error: Exception) -> Response:
    """Starlette raises the error again after this reply, and uvicorn writes its traceback to the log."""
    log.error("%s %s failed: %s", request.method, request.url.path, type(error).__name__)
    message = f"the daemon failed at this request; the traceback is in {context_of(request.app).log_name}"
    return problem_reply(Problem("S104", message, ExitCode.FAILED, "report it with these lines of the log"), 500)
