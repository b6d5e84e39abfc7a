"""Routes about what a job left: where it lies, and the files themselves for who cannot see them there."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Annotated

from fastapi import APIRouter, Query
from starlette.concurrency import iterate_in_threadpool
from starlette.responses import StreamingResponse

from ffdl_batch.daemon.context import Asking, CaughtUp, Context, with_files
from ffdl_batch.daemon.job_routes import answers
from ffdl_batch.daemon.log_routes import MAX_STREAMS
from ffdl_batch.daemon.replies import LeftReply, PlainReply
from ffdl_batch.services.left import LeftKind, archive_left, find_left
from ffdl_batch.services.problems import try_again, wrong_state

router = APIRouter()
Attempt = Annotated[int | None, Query(ge=1, description="Of this attempt; by default of the last that ran.")]


@router.get("/jobs/{job_id}/left/{kind}", response_model=LeftReply, responses=answers(404, 409), operation_id="left")
async def find(job_id: str, kind: LeftKind, here: CaughtUp, caller: Asking, attempt: Attempt = None) -> PlainReply:
    """Where results, the submitted model, logs or checkpoints of a job lie. No credential is in the reply."""
    return PlainReply(
        LeftReply(await with_files(here, here.limits.quick, find_left, here.platform, caller, job_id, kind, attempt))
    )


@router.get(
    "/jobs/{job_id}/left/{kind}/files",
    response_class=StreamingResponse,
    operation_id="left_files",
    responses={
        200: {
            "description": "The files as a tar; one that does not end with two blocks of zeros was broken off.",
            "content": {"application/x-tar": {"schema": {"type": "string", "format": "binary"}}},
        },
        **answers(404, 409),
    },
)
async def give(
    job_id: str, kind: LeftKind, here: CaughtUp, caller: Asking, attempt: Attempt = None
) -> StreamingResponse:
    """The files of a directory. Those in a store are not read by the daemon."""
    if here.streams >= MAX_STREAMS:
        raise try_again("S210", f"{MAX_STREAMS} streams are being read at once", cure="end some of the readers")
    left = await with_files(here, here.limits.quick, find_left, here.platform, caller, job_id, kind, attempt)
    if left.store is not None:
        raise wrong_state(f"the {kind} of {left.job_id} are in a store", cure=f"ffdl download {left.job_id}")
    return StreamingResponse(_counted(here, archive_left(left)), media_type="application/x-tar")


async def _counted(here: Context, pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
    here.streams += 1
    try:
        async for piece in iterate_in_threadpool(pieces):
            yield piece
    finally:
        here.streams -= 1
