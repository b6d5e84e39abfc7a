"""Exceptions to error replies. Every refusal is a Problem, whatever raised it."""

from __future__ import annotations

import gc
import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from ffdl_batch.daemon.context import context_of
from ffdl_batch.daemon.replies import problem_reply
from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.domain.findings import Finding, Severity
from ffdl_batch.domain.scarcity import WHOSE_LIMITS, WRAPPED, explain_lack
from ffdl_batch.domain.views import Problem
from ffdl_batch.ports.scheduler import InvalidRequest, SchedulerUnreachable
from ffdl_batch.services.file_troubles import explain
from ffdl_batch.services.problems import Refused
from ffdl_batch.store import DatabaseDamaged, StoreUnavailable

log = logging.getLogger(__name__)

MAX_BODY_BYTES = 128 * 1000**2
_SHOWN = 10
_SECRETS = "/api/v1/secrets/"
_SENTENCES = {
    404: "there is no {method} {path} in this interface",
    405: "{method} is not possible on {path}",
    413: f"the request is larger than {MAX_BODY_BYTES // 1000**2} MB: submit fewer manifests at once, or smaller ones",
}


def install(app: FastAPI) -> None:
    """Make `app` answer in Problems."""
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


class BodyLimit:
    """Refuses a request that announces more than MAX_BODY_BYTES, before it is read. Uploads have their own limit.

    FastAPI's own limit stays behind it for bodies that announce nothing; its reply is plain text.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (scope["method"] == "POST" or scope["path"].startswith(_SECRETS)):
            announced = Headers(scope=scope).get("content-length", "0")
            if announced.isdecimal() and int(announced) > MAX_BODY_BYTES:
                problem = Problem("C101", _SENTENCES[413], ExitCode.BAD_MANIFEST)
                await problem_reply(problem, 413)(scope, receive, send)
                return
        await self._app(scope, receive, send)


def blame_options(problem: Problem) -> Problem:
    """A refusal of which every error names an option is the command line's fault: sbatch ends alike."""
    errors = [finding for finding in problem.findings if finding.severity is Severity.ERROR]
    named = [finding for finding in errors if finding.file is None and (finding.path or "").startswith("--")]
    return replace(problem, exit_code=ExitCode.USAGE) if errors and len(named) == len(errors) else problem


async def _refused(_request: Request, error: Exception) -> Response:
    assert isinstance(error, Refused)
    return problem_reply(blame_options(error.problem), error.status)


async def _store_unavailable(_request: Request, error: Exception) -> Response:
    log.warning("store unavailable: %s", error)
    return problem_reply(Problem("S210", str(error), ExitCode.TRY_AGAIN), 503)


async def _damaged(_request: Request, error: Exception) -> Response:
    log.error("%s", error)
    return problem_reply(Problem("S210", str(error), ExitCode.UNAVAILABLE), 503)


def problem_of(error: Exception, place: str) -> Problem | None:
    """The problem that a refusal of the machine, or of the file system below `place`, is; None for what is none."""
    if isinstance(error, MemoryError):
        gc.collect()  # what the request held lies in cycles with the traceback
        cure = f"send less at once; {WHOSE_LIMITS}"
        return Problem("S210", "the daemon has not enough memory for this request", ExitCode.TRY_AGAIN, cure)
    if isinstance(error, WRAPPED):
        lack = explain_lack(error)
        return Problem("S210", f"in the daemon, {lack}", ExitCode.TRY_AGAIN, WHOSE_LIMITS) if lack else None
    trouble = explain(error, place) if isinstance(error, OSError) else None
    return None if trouble is None else Problem("S210", trouble.message, ExitCode.TRY_AGAIN, trouble.cure)


async def _refused_by_machine(request: Request, error: Exception) -> Response:
    problem = problem_of(error, context_of(request.app).platform.root.path)
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
    findings = tuple(_finding(each) for each in error.errors()[:_SHOWN])
    message = "the request does not fit the interface: " + "; ".join(f"{f.path}: {f.message}" for f in findings)
    cure = "client and daemon may be of different releases; /openapi.json describes this daemon's interface"
    return problem_reply(Problem("C101", message, ExitCode.USAGE, cure, findings), 400)


def _finding(error: dict[str, Any]) -> Finding:
    place: Sequence[object] = error.get("loc", ())
    path = ".".join(str(part) for part in place)
    return Finding(Severity.ERROR, str(error.get("msg", "not valid")), path=path)


async def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    cause = error.__cause__  # met while the body was read
    if isinstance(cause, (MemoryError, OSError)) or (isinstance(cause, WRAPPED) and explain_lack(cause)):
        return await _refused_by_machine(request, cause)
    sentence = _SENTENCES.get(error.status_code, str(error.detail))
    message = sentence.format(method=request.method, path=request.url.path[:200])
    code = ExitCode.BAD_MANIFEST if error.status_code == 413 else ExitCode.USAGE
    return problem_reply(Problem("C101", message, code), error.status_code)


async def _unexpected(request: Request, error: Exception) -> Response:
    """Starlette raises the error again after this reply, and uvicorn writes its traceback to the log."""
    log.error("%s %s failed: %s", request.method, request.url.path, type(error).__name__)
    message = f"the daemon failed at this request; {context_of(request.app).log_name} holds the traceback"
    return problem_reply(Problem("S104", message, ExitCode.FAILED, "report it with the lines of the log"), 500)
