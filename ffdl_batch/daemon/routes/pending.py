"""Routes about submissions and pending jobs: why they wait, when they would start, and what they need."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query

from ffdl_batch.daemon.openapi import Routes
from ffdl_batch.daemon.replies import (
    AdviceReply,
    OutlookReply,
    OutlookRequest,
    PlainReply,
    PlanReply,
    PlanRequest,
    WhyReply,
)
from ffdl_batch.daemon.request_context import Asking, CaughtUp, Here, in_thread, with_files
from ffdl_batch.daemon.routes import PREFIX
from ffdl_batch.daemon.routes.jobs import as_it_moves
from ffdl_batch.daemon.routes.parameters import answers
from ffdl_batch.services.queries.jobs import get_job
from ffdl_batch.services.submission.advice import advise
from ffdl_batch.services.submission.dry_run import plan_submission

router = Routes(prefix=PREFIX)


@router.get("/jobs/{job_id}/why", response_model=WhyReply, responses=answers(404), operation_id="why")
async def read_why(
    job_id: str,
    here: CaughtUp,
    caller: Asking,
    alternatives: Annotated[bool, Query(description="Also ask the scheduler what would start sooner.")] = True,
) -> PlainReply:
    """Return why a job is pending, the evidence, when it may start, and what would start sooner. Submit nothing."""
    job = await as_it_moves(
        here, await in_thread(here.limits.quick, get_job, here.platform.storage, here.platform.adapters, caller, job_id)
    )
    explain = here.platform.explainer.explain_job
    view = await in_thread(here.limits.slow, explain, caller, job_id, alternatives=alternatives, moving=job.moving)
    return PlainReply(WhyReply(view))


@router.post("/plan", response_model=PlanReply, responses=answers(413, 422), operation_id="plan")
async def plan_job(body: PlanRequest, here: Here, caller: Asking) -> PlainReply:
    """Return exactly what would be submitted; submit nothing. With `trial`, ask the scheduler (sbatch --test-only)."""
    plan = await with_files(
        here,
        here.limits.slow,
        plan_submission,
        here.platform.storage,
        here.platform.adapters,
        here.platform.node_exclusion,
        caller,
        body.submission,
        trial=body.trial,
    )
    return PlainReply(PlanReply(plan))


@router.post("/outlook", response_model=OutlookReply, responses=answers(413, 422), operation_id="outlook")
async def read_outlook(body: OutlookRequest, here: Here, caller: Asking) -> PlainReply:
    """Return the capacity for a submission, when it would start, and what would start sooner. Submit nothing."""
    look_ahead = here.platform.explainer.look_ahead
    outlook = await with_files(here, here.limits.slow, look_ahead, caller, body.submission)
    return PlainReply(OutlookReply(outlook))


@router.post("/advice", response_model=AdviceReply, responses=answers(413, 422), operation_id="advise")
async def read_advice(body: OutlookRequest, here: Here, caller: Asking) -> PlainReply:
    """Return sizes, memory and time limit for a submission, from the caller's earlier jobs like it. Submit nothing."""
    platform = here.platform
    found = await with_files(
        here, here.limits.slow, advise, platform.storage, platform.adapters, caller, body.submission
    )
    return PlainReply(AdviceReply(found))
