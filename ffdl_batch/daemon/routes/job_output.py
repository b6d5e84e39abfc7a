"""Routes for a job's output files, measurements and support archive."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Annotated

from fastapi import Query
from starlette.concurrency import iterate_in_threadpool
from starlette.requests import Request
from starlette.responses import StreamingResponse

from ffdl_batch.daemon.openapi import Routes
from ffdl_batch.daemon.replies import OutputReply, PlainReply, SupportReply
from ffdl_batch.daemon.request_context import Asking, CaughtUp, Context, in_thread, with_files
from ffdl_batch.daemon.routes import PREFIX
from ffdl_batch.daemon.routes.logs import LINES, StreamReply, stream_reply
from ffdl_batch.daemon.routes.parameters import AttemptChoice, Number, answers
from ffdl_batch.domain.job.submission import Caller
from ffdl_batch.services.job_storage import JobStorage
from ffdl_batch.services.queries.job_output import OutputKind, find_output, send_output
from ffdl_batch.services.queries.jobs import health
from ffdl_batch.services.queries.measurement_stream import MeasuredQuery, read_metrics, read_usage
from ffdl_batch.services.queries.support_parts import support_parts

router = Routes(prefix=PREFIX)
_Read = Callable[[JobStorage, Caller, str, MeasuredQuery, Callable[[], bool]], Iterator[bytes | None]]
Follow = Annotated[bool, Query(description="Follow all attempts until the job ends.")]
Attempt = Annotated[AttemptChoice, Query(description="Only this attempt's; all attempts', in order, by default.")]
LastAttempt = Annotated[Number | None, Query(description="Attempt; default: the last one that ran.")]


@router.get(
    "/jobs/{job_id}/output/{kind}", response_model=OutputReply, responses=answers(404, 409), operation_id="output"
)
async def get_output(
    job_id: str, kind: OutputKind, here: CaughtUp, caller: Asking, attempt: LastAttempt = None
) -> PlainReply:
    """Return where results, the submitted model, logs or checkpoints of a job are. The reply has no credentials."""
    return PlainReply(
        OutputReply(
            await with_files(
                here,
                here.limits.quick,
                find_output,
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
    "/jobs/{job_id}/output/{kind}/files",
    response_class=StreamingResponse,
    operation_id="output_files",
    responses={
        200: {
            "description": "The files as a tar. It is incomplete if it does not end with two blocks of zeros.",
            "content": {"application/x-tar": {"schema": {"type": "string", "format": "binary"}}},
        },
        **answers(404, 409),
    },
)
async def get_output_files(
    job_id: str, kind: OutputKind, here: CaughtUp, caller: Asking, attempt: LastAttempt = None
) -> StreamingResponse:
    """Send the files of a directory. The daemon does not read files in a store."""
    with here.open_stream() as end:
        files = await with_files(
            here,
            here.limits.slow,
            send_output,
            here.platform.storage,
            here.platform.adapters,
            caller,
            job_id,
            kind,
            attempt,
        )
    return StreamReply(iterate_in_threadpool(files), "application/x-tar", end)


@router.get("/jobs/{job_id}/support", response_model=SupportReply, responses=answers(404), operation_id="support")
async def read_support(job_id: str, here: CaughtUp, caller: Asking) -> PlainReply:
    """Return everything about a job that helps to find a fault, without secrets: its record, files and ends of logs,
    what the scheduler reports about it, and the daemon's own state."""
    platform = here.platform
    state = await in_thread(here.limits.quick, health, platform.storage, platform.adapters, here.started_at)
    explain = partial(platform.explainer.explain_job, alternatives=False)
    return PlainReply(
        SupportReply(
            await with_files(
                here,
                here.limits.slow,
                support_parts,
                platform.storage,
                platform.adapters,
                caller,
                job_id,
                explain,
                state,
            )
        )
    )


def _answers(kind: str) -> dict[int | str, dict[str, object]]:
    said = f"One JSON object a line: {kind}. Blank lines are sent while there are no new ones."
    return {
        200: {"description": said, "content": {"application/x-ndjson": {"schema": {"type": "string"}}}},
        **answers(404, 422),
    }


@router.get(
    "/jobs/{job_id}/metrics",
    response_class=StreamingResponse,
    operation_id="metrics",
    responses=_answers("`learner`, `attempt`, and `record` in FfDL's form"),
)
async def stream_metrics(  # noqa: PLR0913, PLR0917 - one parameter per field of the query string
    job_id: str,
    request: Request,
    here: CaughtUp,
    caller: Asking,
    learner: Annotated[
        Number | None, Query(description="Only this learner's records; default: those of all learners.")
    ] = None,
    follow: Follow = False,
    attempt: Attempt = None,
) -> StreamingResponse:
    """Stream the metrics of learners."""
    return await _stream(read_metrics, here, request, caller, job_id, MeasuredQuery(learner, follow, attempt))


@router.get(
    "/jobs/{job_id}/usage",
    response_class=StreamingResponse,
    operation_id="usage",
    responses=_answers("`node`, `attempt`, and `sample`"),
)
async def stream_usage(
    job_id: str, request: Request, here: CaughtUp, caller: Asking, follow: Follow = False, attempt: Attempt = None
) -> StreamingResponse:
    """Stream the resource usage of learners, by node."""
    return await _stream(read_usage, here, request, caller, job_id, MeasuredQuery(None, follow, attempt))


async def _stream(
    read: _Read, here: Context, request: Request, caller: Caller, job_id: str, query: MeasuredQuery
) -> StreamReply:
    return await stream_reply(
        here, request, lambda stopped: read(here.platform.storage, caller, job_id, query, stopped.is_set), LINES
    )
