"""Routes for programs beside running learners: how the owner starts them, and a stream to one that the daemon starts.

The stream is for clients without the scheduler's commands, behind a hub. The daemon passes frames on without reading
them; `ffdl_batch/domain/launch/attach_protocol.py` describes them.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import shutil
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable
from typing import Annotated

from fastapi import Query
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ffdl_batch.daemon.openapi import Routes
from ffdl_batch.daemon.replies import AttachReply, PlainReply
from ffdl_batch.daemon.request_context import Asking, CaughtUp, with_files
from ffdl_batch.daemon.routes import PREFIX
from ffdl_batch.daemon.routes.parameters import Number, answers
from ffdl_batch.daemon.upgrades import RawStream, Upgrade, find_upgrade
from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.domain.job.views import Problem
from ffdl_batch.domain.launch.attach_protocol import HELPER_END, UPGRADE, AttachPlan, encode_frame
from ffdl_batch.services.queries.attach_plan import plan_attach
from ffdl_batch.services.refusals import Refused, unavailable, wrong_state

log = logging.getLogger(__name__)

END_S = 60.0
"""Maximum time for a helper to end its processes. Processes that ignore signals survive if the helper is killed."""
REST_S = 1.0
"""Maximum time to read the error output of a helper that has ended: a child of its own may still have it open."""
_BLOCK = 1 << 16
_ERROR_BYTES = 4096
"""How much of a helper's standard error output is reported."""
_UPGRADE_REQUIRED = 426

router = Routes(prefix=PREFIX)


@router.get(
    "/jobs/{job_id}/attach", response_model=AttachReply, responses=answers(404, 409, 422), operation_id="attach"
)
async def read_attach(
    job_id: str,
    here: CaughtUp,
    caller: Asking,
    learner: Annotated[
        Number | None, Query(description="Only this learner; default: all running learners, with a plan for each node.")
    ] = None,
) -> PlainReply:
    """Return how the owner starts the helper beside running learners. Starts nothing. The job must be PROCESSING."""
    plans = await with_files(
        here, here.limits.slow, plan_attach, here.platform.storage, here.platform.adapters, caller, job_id, learner
    )
    log.info("%s: plan to enter learner %s of %s", caller, learner or "1 and all others", job_id)
    return PlainReply(AttachReply(plans))


@router.get(
    "/jobs/{job_id}/attach/stream",
    response_class=Response,
    operation_id="attach_stream",
    responses={101: {"description": "The connection is a stream of frames now."}, **answers(404, 409, 422)},
)
async def open_attach_stream(
    job_id: str,
    here: CaughtUp,
    caller: Asking,
    request: Request,
    learner: Annotated[Number, Query(description="The learner whose node is entered.")],
    whole_node: Annotated[bool, Query(description="All running learners of that node.")] = False,
) -> Response:
    """Start the helper beside a running learner, and pass its frames on, as `Upgrade: ffdl-attach`. The helper starts
    with the first frame, and ends with the connection."""
    upgrade = find_upgrade(request.scope, UPGRADE)
    if upgrade is None:
        message = f"the request has no header Upgrade: {UPGRADE}"
        cure = "a proxy in front of the hub must pass this header on, as for WebSocket"
        raise Refused(Problem("C101", message, ExitCode.UNAVAILABLE, cure), _UPGRADE_REQUIRED)
    with here.open_stream() as end:
        plans = await with_files(
            here, here.limits.slow, plan_attach, here.platform.storage, here.platform.adapters, caller, job_id,
            None if whole_node else learner,
        )  # fmt: skip
        plan = next((one for one in plans if learner in one.learners), None)
        if plan is None:
            raise wrong_state(f"learner {learner} of {job_id} is no longer running")
        program = shutil.which(plan.argv[0])
        if obstacle := plan.obstacle(os.uname().nodename, program):
            raise unavailable(obstacle[0], cure=obstacle[1])
        log.info("%s: stream to learner %s of %s", caller, learner, job_id)
    return AttachStream(upgrade, plan, end)


class AttachStream(Response):
    """An answer that becomes a stream to a helper. It calls `end` when the stream has ended."""

    def __init__(self, upgrade: Upgrade, plan: AttachPlan, end: Callable[[], None]) -> None:
        super().__init__(status_code=101)
        self._upgrade, self._plan, self._end = upgrade, plan, end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Start the helper with the first frame, and serve until it has ended or the client has gone."""
        del scope, receive, send  # the connection is no longer HTTP
        stream = self._upgrade.accept()
        try:
            if first := await stream.read():
                await _serve(stream, self._plan, first)
        finally:
            self._end()
            stream.close()


async def _serve(stream: RawStream, plan: AttachPlan, first: bytes) -> None:
    try:
        helper = await asyncio.create_subprocess_exec(
            *plan.argv,
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            env=plan.environment(os.environ),
            start_new_session=True,
        )
    except OSError as error:
        await _report_end(stream, None, f"{plan.argv[0]} cannot be started: {error.strerror}")
        return
    assert helper.stdin is not None and helper.stdout is not None and helper.stderr is not None
    errors = bytearray()
    passing = asyncio.ensure_future(_pass_on(helper.stdout, stream))
    gone = asyncio.ensure_future(stream.ended.wait())
    giving = asyncio.ensure_future(_give(stream, helper.stdin, first))
    keeping = asyncio.ensure_future(_keep(helper.stderr, errors))
    try:
        await asyncio.wait({gone, passing}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        status = await asyncio.shield(_end(helper))  # its output is read until then, so that it does not wait
        await asyncio.wait({keeping}, timeout=REST_S)
        for task in (passing, gone, giving, keeping):
            task.cancel()
    await _report_end(stream, status, errors.decode("utf-8", "replace"))


async def _report_end(stream: RawStream, status: int | None, errors: str) -> None:
    await stream.write(encode_frame(HELPER_END, json.dumps({"status": status, "errors": errors}).encode("ascii")))


async def _give(stream: RawStream, target: asyncio.StreamWriter, first: bytes) -> None:
    data = first
    with contextlib.suppress(ConnectionError):  # the helper has ended
        while data:
            target.write(data)
            await target.drain()
            data = await stream.read()


async def _pass_on(source: asyncio.StreamReader, stream: RawStream) -> None:
    while data := await source.read(_BLOCK):
        await stream.write(data)


async def _keep(source: asyncio.StreamReader, kept: bytearray) -> None:
    """Keep the end of the helper's error output."""
    while data := await source.read(_BLOCK):
        kept += data
        del kept[:-_ERROR_BYTES]


async def _end(helper: Process) -> int:
    """Close the helper's input, and return its exit status. Kill the helper if it does not exit."""
    assert helper.stdin is not None
    helper.stdin.close()
    try:
        async with asyncio.timeout(END_S):
            return await helper.wait()
    except TimeoutError:
        helper.kill()
        return await helper.wait()
