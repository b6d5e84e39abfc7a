"""Routes of FfDL's REST API. The query `version`, a date, may have any value."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Callable, Iterator
from functools import partial
from http import HTTPStatus
from typing import Annotated

from fastapi import Depends, Query
from starlette.concurrency import iterate_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from ffdl_batch.daemon.ffdl_api.form import receive_form
from ffdl_batch.daemon.ffdl_api.websocket import WebSocketReply
from ffdl_batch.daemon.openapi import Routes
from ffdl_batch.daemon.replies import FfdlErrorReply, PlainReply
from ffdl_batch.daemon.request_context import Asking, CaughtUp, Context, Here, check_files, in_thread, with_files
from ffdl_batch.daemon.routes.jobs import cancel, halt, submit_all
from ffdl_batch.daemon.routes.logs import StreamReply, start_pump, stream_text
from ffdl_batch.daemon.routes.parameters import MAX_INTEGER, Word, answers
from ffdl_batch.daemon.routes.uploads import body_chunks
from ffdl_batch.daemon.upgrades import WEBSOCKET, find_upgrade
from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.domain.ffdl_times import parse_since
from ffdl_batch.domain.job.log_text import LogText
from ffdl_batch.domain.job.submission import Caller, Submission
from ffdl_batch.host.users import TENANT, user_name
from ffdl_batch.services.logs.ffdl_records import Page, page_of_lines, page_of_metrics
from ffdl_batch.services.logs.log_stream import LogQuery, read_texts
from ffdl_batch.services.queries.ffdl_models import PLACE, get_model, list_models
from ffdl_batch.services.queries.followed_jobs import Pause
from ffdl_batch.services.queries.job_output import OutputKind, send_output
from ffdl_batch.services.queries.zip_output import file_of, zip_of
from ffdl_batch.services.refusals import Refused, not_allowed, try_again, wrong_usage

MAX_PATCH = 1024
"""Maximum size of the body of a change, in bytes."""
_STATUS = {
    ExitCode.BAD_MANIFEST: HTTPStatus.BAD_REQUEST,
    ExitCode.USAGE: HTTPStatus.BAD_REQUEST,
    ExitCode.NOT_ALLOWED: HTTPStatus.FORBIDDEN,
    ExitCode.TRY_AGAIN: HTTPStatus.SERVICE_UNAVAILABLE,
}
_IDENTITY = "bluemix-instance-id="
_FORM = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["manifest", "model_definition"],
                    "properties": {
                        "manifest": {"type": "string", "format": "binary"},
                        "model_definition": {"type": "string", "format": "binary", "description": "A zip file."},
                    },
                }
            }
        },
    }
}
_HALT = {
    "requestBody": {
        "required": True,
        "content": {"application/json": {"schema": {"type": "object", "properties": {"status": {"enum": ["halt"]}}}}},
    }
}


def _refuse_other_user(request: Request, here: Here, caller: Asking) -> None:
    """Raise Refused if a header or the query names a user or tenant who is not the caller."""
    claimed = [request.headers.get("x-wml-tenantid", "")]
    for text in (request.headers.get("x-watson-userinfo", ""), request.query_params.get("watson-userinfo", "")):
        claimed += [part.strip()[len(_IDENTITY) :] for part in text.split(";") if part.strip().startswith(_IDENTITY)]
    uid = here.platform.storage.uid
    own = {str(uid), user_name(uid)}
    if here.platform.storage.is_tenant:
        own |= {os.environ.get(TENANT, ""), caller.name}
    for name in filter(None, claimed):
        if name not in own:
            raise not_allowed(f"the request names user {name[:80]!r}, but the token belongs to another user")


_errors = partial(answers, model=FfdlErrorReply)
router = Routes(prefix="/v1", dependencies=[Depends(_refuse_other_user)])
Follow = Annotated[bool, Query()]
Since = Annotated[
    Word | None, Query(description="Milliseconds since the epoch, `10m`, `3 hours ago`, or `2026-11-30T10:00:00Z`.")
]
PageSize = Annotated[int, Query(ge=1, le=MAX_INTEGER)]
Position = Annotated[int, Query(ge=-MAX_INTEGER, le=MAX_INTEGER)]


@router.post(
    "/models", status_code=201, responses=_errors(413, 422), operation_id="ffdl_create_model", openapi_extra=_FORM
)
async def create_model(request: Request, here: Here, caller: Asking) -> PlainReply:
    """Submit a job: a manifest, and a zip file with the model."""
    await check_files(here)
    kind, body = request.headers.get("content-type", ""), request.stream()
    try:
        manifest, digest = await in_thread(
            here.limits.uploads, receive_form, here.platform.storage.root, kind, body_chunks(body)
        )
    except ClientDisconnect as error:
        raise try_again("C102", "the upload was interrupted", cure="submit again") from error
    key = caller.request_id or secrets.token_hex(16)  # the hub sends a request again if it was not answered
    submission = Submission(manifest, "manifest.yml", "/", digest, key)
    (result,) = await submit_all(here, caller, [submission])
    if result.problem is not None:
        raise Refused(result.problem, _STATUS.get(ExitCode(result.problem.exit_code), HTTPStatus.BAD_REQUEST))
    place = f"{PLACE}{result.id}"
    return PlainReply({"model_id": result.id, "location": place}, status_code=201, headers={"Location": place})


@router.get("/models", responses=_errors(), operation_id="ffdl_list_models")
async def read_models(here: CaughtUp, caller: Asking) -> PlainReply:
    """List the jobs, newest first."""
    return PlainReply({"models": await in_thread(here.limits.quick, list_models, here.platform.storage, caller)})


@router.get("/models/{model_id}", responses=_errors(404), operation_id="ffdl_get_model")
async def read_model(model_id: str, here: CaughtUp, caller: Asking) -> PlainReply:
    """Return one job."""
    return PlainReply(await in_thread(here.limits.quick, get_model, here.platform.storage, caller, model_id))


@router.delete("/models/{model_id}", responses=_errors(404), operation_id="ffdl_delete_model")
async def delete_model(model_id: str, here: CaughtUp, caller: Asking) -> PlainReply:
    """Cancel a job. Its record stays."""
    await cancel(model_id, here, caller)
    return PlainReply({"model_id": model_id})


@router.patch(
    "/models/{model_id}", status_code=202, responses=_errors(404), operation_id="ffdl_patch_model", openapi_extra=_HALT
)
async def patch_model(model_id: str, request: Request, here: CaughtUp, caller: Asking) -> PlainReply:
    """Halt a job after a checkpoint."""
    data = b""
    async for chunk in request.stream():
        data += chunk
        if len(data) > MAX_PATCH:
            break
    try:
        body = json.loads(data)
    except (ValueError, RecursionError):
        body = None
    if not isinstance(body, dict) or body.get("status") != "halt":
        raise wrong_usage("status: must be 'halt'")
    await halt(model_id, here, caller)
    return PlainReply({"model_id": model_id}, status_code=202)


@router.get(
    "/models/{model_id}/definition",
    response_class=Response,
    responses=_errors(404, 410),
    operation_id="ffdl_get_definition",
)
async def read_definition(model_id: str, here: CaughtUp, caller: Asking) -> StreamReply:
    """Send the zip file that was submitted."""
    return await _send(here, caller, model_id, OutputKind.MODEL, file_of)


@router.get(
    "/models/{model_id}/trained_model",
    response_class=Response,
    responses=_errors(404, 410),
    operation_id="ffdl_get_trained_model",
)
async def read_trained_model(model_id: str, here: CaughtUp, caller: Asking) -> StreamReply:
    """Send the results as a zip file. The status is 410 if they are no longer there."""
    return await _send(here, caller, model_id, OutputKind.RESULTS, zip_of)


async def _send(
    here: Context, caller: Caller, job_id: str, kind: OutputKind, convert: Callable[[Iterator[bytes]], Iterator[bytes]]
) -> StreamReply:
    storage, adapters = here.platform.storage, here.platform.adapters
    with here.open_stream() as end:
        model = await in_thread(here.limits.quick, get_model, storage, caller, job_id)
        try:
            files = await with_files(
                here, here.limits.slow, send_output, storage, adapters, caller, job_id, kind, None, near=True
            )
        except Refused as error:
            has_ended = bool(model["training"]["training_status"]["completed"])
            if error.status != HTTPStatus.CONFLICT:
                raise
            raise Refused(error.problem, HTTPStatus.GONE if has_ended else HTTPStatus.NOT_FOUND) from error
    return StreamReply(iterate_in_threadpool(convert(files)), "application/octet-stream", end)


@router.get("/models/{model_id}/logs", response_class=Response, responses=_errors(404), operation_id="ffdl_stream_logs")
async def read_model_logs(
    model_id: str,
    request: Request,
    here: CaughtUp,
    caller: Asking,
    follow: Follow = False,
    since_time: Since = None,
) -> Response:
    """Send the log as text, or, with the upgrade `websocket`, as messages until the job has ended."""
    upgrade = find_upgrade(request.scope, WEBSOCKET)
    if upgrade is not None and not request.headers.get("sec-websocket-key"):
        raise wrong_usage("the request has no header Sec-WebSocket-Key")
    query = LogQuery(follow=follow or upgrade is not None, since=_since(here, since_time), attempt="all")

    def read(is_stopped: Callable[[], bool]) -> Iterator[bytes | Pause]:
        platform = here.platform
        texts = read_texts(platform.storage, platform.followed_jobs, caller, model_id, query, is_stopped)
        return (_plain(text) if isinstance(text, LogText) else text for text in texts)

    pump = await start_pump(here, lambda stopped: read(stopped.is_set), here.log_turns, reports_failures=False)
    if upgrade is not None:
        return WebSocketReply(upgrade, stream_text(pump, here, request), pump.stop)
    return StreamReply(stream_text(pump, here, request), "text/plain", pump.stop)


def _plain(text: LogText) -> bytes:
    return f"{text.text}{'' if text.partial else chr(10)}".encode("utf-8", "replace")


def _since(here: Context, text: str | None) -> float | None:
    try:
        return parse_since(text, here.platform.storage.clock.now()) if text else None
    except ValueError as error:
        raise wrong_usage(f"since_time: {error}") from None


async def _page(here: Here, pagesize: PageSize = 10, pos: Position = 0, since_time: Since = None) -> Page:
    """Return the page that the query names. Raises Refused."""
    return Page(pos, pagesize, _since(here, since_time))


@router.get("/logs/{model_id}/loglines", responses=_errors(404), operation_id="ffdl_list_loglines")
async def read_loglines(
    model_id: str,
    here: CaughtUp,
    caller: Asking,
    page: Annotated[Page, Depends(_page)],
) -> PlainReply:
    """Return lines of the log by number or by time."""
    platform = here.platform
    found = await with_files(
        here, here.limits.slow, page_of_lines, platform.storage, platform.followed_jobs, caller, model_id, page
    )
    return PlainReply({"models": found})


@router.get("/logs/{model_id}/emetrics", responses=_errors(404), operation_id="ffdl_list_emetrics")
async def read_emetrics(
    model_id: str,
    here: CaughtUp,
    caller: Asking,
    page: Annotated[Page, Depends(_page)],
) -> PlainReply:
    """Return records of metrics by number or by time."""
    found = await with_files(here, here.limits.slow, page_of_metrics, here.platform.storage, caller, model_id, page)
    return PlainReply({"models": found})
