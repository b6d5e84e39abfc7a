"""Routes for the output of a job: where it is, and the files for clients that cannot read them there."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.concurrency import iterate_in_threadpool
from starlette.responses import StreamingResponse

from ffdl_batch.daemon.replies import LeftReply, PlainReply
from ffdl_batch.daemon.request_context import Asking, CaughtUp, with_files
from ffdl_batch.daemon.routes import PREFIX
from ffdl_batch.daemon.routes.jobs import answers
from ffdl_batch.daemon.routes.logs import StreamReply
from ffdl_batch.daemon.routes.parameters import Number
from ffdl_batch.services.queries.job_output import LeftKind, find_left, send_left

router = APIRouter(prefix=PREFIX)
Attempt = Annotated[Number | None, Query(description="Attempt; default: the last one that ran.")]


@router.get("/jobs/{job_id}/left/{kind}", response_model=LeftReply, responses=answers(404, 409), operation_id="left")
async def find(job_id: str, kind: LeftKind, here: CaughtUp, caller: Asking, attempt: Attempt = None) -> PlainReply:
    """Return where results, the submitted model, logs or checkpoints of a job are. The reply has no credentials."""
    return PlainReply(
        LeftReply(
            await with_files(
                here,
                here.limits.quick,
                find_left,
                here.platform.storage,
                here.platform.adapters,
                caller,
                job_id,
                kind,
                attempt,
            )
        )
    )


@router.get(
    "/jobs/{job_id}/left/{kind}/files",
    response_class=StreamingResponse,
    operation_id="left_files",
    responses={
        200: {
            "description": "The files as a tar. It is incomplete if it does not end with two blocks of zeros.",
            "content": {"application/x-tar": {"schema": {"type": "string", "format": "binary"}}},
        },
        **answers(404, 409),
    },
)
async def give(
    job_id: str, kind: LeftKind, here: CaughtUp, caller: Asking, attempt: Attempt = None
) -> StreamingResponse:
    """Send the files of a directory. The daemon does not read files in a store."""
    with here.open_stream() as end:
        files = await with_files(
            here,
            here.limits.slow,
            send_left,
            here.platform.storage,
            here.platform.adapters,
            caller,
            job_id,
            kind,
            attempt,
        )
    return StreamReply(iterate_in_threadpool(files), "application/x-tar", end)
