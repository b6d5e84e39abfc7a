"""Routes for pools of elastic jobs and the sizes of their jobs."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query

from ffdl_batch.daemon.openapi import Routes
from ffdl_batch.daemon.replies import PlainReply
from ffdl_batch.daemon.request_context import Asking, CaughtUp, in_thread
from ffdl_batch.daemon.routes import PREFIX
from ffdl_batch.daemon.routes.parameters import answers
from ffdl_batch.domain.job.pool_views import PoolView, ReplayedDecision, SizeExplanation
from ffdl_batch.domain.job.views import SCHEMA
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.services.elastic.pool_queries import (
    explain_size,
    pause_pool,
    replay_decisions,
    resume_pool,
    show_pools,
)

router = Routes(prefix=PREFIX)


@dataclass(frozen=True, slots=True)
class PoolsReply:
    """The configured pools."""

    pools: tuple[PoolView, ...]
    schema: int = SCHEMA


@dataclass(frozen=True, slots=True)
class SizeReply:
    """Why a job has its size."""

    size: SizeExplanation
    schema: int = SCHEMA


@dataclass(frozen=True, slots=True)
class ReplayReply:
    """Recorded decisions that were recomputed."""

    decisions: tuple[ReplayedDecision, ...]
    schema: int = SCHEMA


@router.get("/scaler", response_model=PoolsReply, responses=answers(), operation_id="scaler_status")
async def read_pools(here: CaughtUp, caller: Asking) -> PlainReply:
    """Return the pools of elastic jobs, with the sizes of their jobs."""
    platform = here.platform
    return PlainReply(
        PoolsReply(await in_thread(here.limits.quick, show_pools, platform.storage, platform.elastic_pools, caller))
    )


@router.get("/scaler/decisions", response_model=ReplayReply, responses=answers(409), operation_id="scaler_replay")
async def replay(
    here: CaughtUp,
    caller: Asking,
    pool: Annotated[str | None, Query(description="Name of the pool. Default: all pools.")] = None,
) -> PlainReply:
    """Recompute the recorded decisions, and return the differences."""
    platform = here.platform
    found = await in_thread(here.limits.slow, replay_decisions, platform.storage, platform.elastic_pools, caller, pool)
    return PlainReply(ReplayReply(found))


@router.get("/jobs/{job_id}/size", response_model=SizeReply, responses=answers(404, 409), operation_id="scaler_explain")
async def read_size(job_id: str, here: CaughtUp, caller: Asking) -> PlainReply:
    """Return why a job of a pool has its size, according to the last decision."""
    platform = here.platform
    found = await in_thread(here.limits.quick, explain_size, platform.storage, platform.elastic_pools, caller, job_id)
    return PlainReply(SizeReply(found))


@router.post("/scaler/{name}/pause", response_model=PoolsReply, responses=answers(), operation_id="scaler_pause")
async def pause(name: str, here: CaughtUp, caller: Asking) -> PlainReply:
    """Stop decisions about a pool. Idempotent."""
    platform = here.platform
    await in_thread(here.limits.quick, pause_pool, platform.storage, platform.elastic_pools, name)
    here.poke()
    return await read_pools(here, caller)


@router.post("/scaler/{name}/resume", response_model=PoolsReply, responses=answers(), operation_id="scaler_resume")
async def resume(name: str, here: CaughtUp, caller: Asking) -> PlainReply:
    """Continue decisions about a pool. Idempotent."""
    platform = here.platform
    await in_thread(here.limits.quick, resume_pool, platform.storage, platform.elastic_pools, name)
    platform.elastic_pools.wake()
    return await read_pools(here, caller)
