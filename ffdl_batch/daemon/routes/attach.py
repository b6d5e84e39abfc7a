"""The route that plans how a job's owner enters its running learners."""

from __future__ import annotations

import logging
from typing import Annotated

from fastapi import APIRouter, Query

from ffdl_batch.daemon.replies import AttachReply, PlainReply
from ffdl_batch.daemon.request_context import Asking, CaughtUp, with_files
from ffdl_batch.daemon.routes import PREFIX
from ffdl_batch.daemon.routes.jobs import answers
from ffdl_batch.daemon.routes.parameters import Number
from ffdl_batch.services.queries.attach_plan import plan_attach

log = logging.getLogger(__name__)
router = APIRouter(prefix=PREFIX)


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
    log.info("user %d: plan to enter learner %s of %s", caller.uid, learner or "1 and all others", job_id)
    return PlainReply(AttachReply(plans))
