"""Routes for arrays as a whole. Their elements are jobs (:mod:`ffdl_batch.daemon.routes.jobs`)."""

from __future__ import annotations

import logging

from fastapi import APIRouter
from starlette.requests import Request

from ffdl_batch.daemon.replies import ArrayReply, PlainReply
from ffdl_batch.daemon.request_context import Asking, CaughtUp, Context, in_thread
from ffdl_batch.daemon.routes import PREFIX
from ffdl_batch.daemon.routes.jobs import LONGEST_WAIT_S, WaitSeconds, answers, until_changed
from ffdl_batch.domain.job.submission import Caller
from ffdl_batch.domain.job.views import ArrayView
from ffdl_batch.domain.job_state import RequestedAction
from ffdl_batch.services.job_control.stop import get_array, stop_array

log = logging.getLogger(__name__)

router = APIRouter(prefix=PREFIX)


@router.get("/arrays/{array_id}", response_model=ArrayReply, responses=answers(404), operation_id="array")
async def read_array(array_id: str, here: CaughtUp, caller: Asking) -> PlainReply:
    """Return how many elements of an array are in each state. `/jobs?array=` lists them."""
    return PlainReply(
        _reply(here, await in_thread(here.limits.quick, get_array, here.platform.storage, caller, array_id))
    )


@router.get("/arrays/{array_id}/wait", response_model=ArrayReply, responses=answers(404), operation_id="wait_array")
async def wait_for_array(
    array_id: str,
    here: CaughtUp,
    caller: Asking,
    request: Request,
    wait_s: WaitSeconds = LONGEST_WAIT_S,
) -> PlainReply:
    """Return the array when all of its elements have ended, after `wait_s`, or when the daemon stops."""

    async def look() -> ArrayReply:
        return _reply(here, await in_thread(here.limits.quick, get_array, here.platform.storage, caller, array_id))

    return PlainReply(await until_changed(here, request, look, lambda reply: reply.array.ended, wait_s))


@router.post(
    "/arrays/{array_id}/cancel", response_model=ArrayReply, responses=answers(404), operation_id="cancel_array"
)
async def cancel_array(array_id: str, here: CaughtUp, caller: Asking) -> PlainReply:
    """Cancel every element. Idempotent; of the ended elements only halted ones change."""
    array = await in_thread(
        here.limits.slow, stop_array, here.platform.storage, caller, array_id, RequestedAction.CANCEL
    )
    return _changed(here, caller, "cancel", array)


@router.post("/arrays/{array_id}/halt", response_model=ArrayReply, responses=answers(404), operation_id="halt_array")
async def halt_array(array_id: str, here: CaughtUp, caller: Asking) -> PlainReply:
    """Halt every element after a checkpoint. Idempotent; ended elements do not change."""
    array = await in_thread(here.limits.slow, stop_array, here.platform.storage, caller, array_id, RequestedAction.HALT)
    return _changed(here, caller, "halt", array)


def _changed(here: Context, caller: Caller, verb: str, array: ArrayView) -> PlainReply:
    log.info("user %d: %s of %s, %s", caller.uid, verb, array.id, dict(array.states))
    here.changes.bump()
    here.poke()
    return PlainReply(_reply(here, array))


def _reply(here: Context, array: ArrayView) -> ArrayReply:
    return ArrayReply(array, here.platform.adapters.outages(), here.platform.storage.store.outage)
