"""The report of faults."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Query

from ffdl_batch.daemon.replies import PlainReply, when_asked
from ffdl_batch.daemon.request_context import Asking, CaughtUp, in_thread
from ffdl_batch.daemon.routes.jobs import answers
from ffdl_batch.daemon.routes.parameters import Time
from ffdl_batch.daemon.routes.reports import AT_ONCE, AllUsers
from ffdl_batch.domain.incidents.report import FaultsReport
from ffdl_batch.domain.job.views import SCHEMA
from ffdl_batch.services.reports.incident_report import FaultsAsked, report_faults

router = APIRouter()


@when_asked
@dataclass(frozen=True, slots=True)
class FaultsReply:
    """What failed."""

    faults: FaultsReport
    schema: int = SCHEMA


@router.get("/reports/faults", response_model=FaultsReply, responses=answers(422), operation_id="report_faults")
async def read_faults(
    here: CaughtUp,
    caller: Asking,
    since: Annotated[Time, Query(description="Start of the period, exclusive.")],
    until: Annotated[Time | None, Query(description="End of the period; default: now.")] = None,
    rows_after: Annotated[
        Time | None, Query(description="Show in full only incidents noticed after this; default: `since`.")
    ] = None,
    all_users: AllUsers = False,
) -> PlainReply:
    """Incidents of a period, what they come to, and how that compares with the period before."""
    asked = FaultsAsked(since, until, all_users, rows_after)
    return PlainReply(FaultsReply(await in_thread(AT_ONCE, report_faults, here.platform, caller, asked)))
