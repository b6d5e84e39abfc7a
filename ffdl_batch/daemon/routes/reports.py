"""Routes for reports about many jobs: usage, faults and nodes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated

from anyio import CapacityLimiter
from fastapi import Query
from starlette.concurrency import iterate_in_threadpool
from starlette.responses import StreamingResponse

from ffdl_batch.daemon.openapi import Routes
from ffdl_batch.daemon.replies import AgreementReply, PlainReply, UsageReply
from ffdl_batch.daemon.request_context import Asking, CaughtUp, in_thread, with_files
from ffdl_batch.daemon.routes import PREFIX
from ffdl_batch.daemon.routes.logs import LINES, StreamReply
from ffdl_batch.daemon.routes.parameters import Seconds, Time, answers
from ffdl_batch.domain.codec import to_plain
from ffdl_batch.domain.incidents.node_score import NodesReport
from ffdl_batch.domain.incidents.report import FaultsReport
from ffdl_batch.domain.job.views import SCHEMA
from ffdl_batch.domain.metrics.usage_report import JobUse
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.services.reports.accounting_comparison import find_agreement
from ffdl_batch.services.reports.incident_report import FaultsAsked, report_faults, report_nodes
from ffdl_batch.services.reports.usage import Period, job_uses, report_usage

router = Routes(prefix=PREFIX)
AT_ONCE = CapacityLimiter(2)
"""Limits the reports that are made at the same time, because each keeps a core busy."""
_LINES = 200
Since = Annotated[Time, Query(description="Start of the period.")]
Until = Annotated[Time, Query(description="End of the period, exclusive.")]
AllUsers = Annotated[bool, Query(description="Jobs of all users; for administrators.")]


@router.get("/reports/usage", response_model=UsageReply, responses=answers(422), operation_id="report_usage")
async def read_usage(
    here: CaughtUp, caller: Asking, since: Since, until: Until, all_users: AllUsers = False
) -> PlainReply:
    """Return the sums, distributions, efficiency and waste of a period."""
    period = Period(since, until, all_users)
    return PlainReply(
        UsageReply(
            await with_files(here, AT_ONCE, report_usage, here.platform.storage, here.platform.settings, caller, period)
        )
    )


@router.get(
    "/reports/usage/jobs",
    response_class=StreamingResponse,
    responses={
        200: {
            "description": "One JSON object per line: the usage of one job.",
            "content": {LINES: {"schema": {"type": "string"}}},
        },
        **answers(422),
    },
    operation_id="report_usage_jobs",
)
async def stream_job_uses(
    here: CaughtUp, caller: Asking, since: Since, until: Until, all_users: AllUsers = False
) -> StreamingResponse:
    """Stream the jobs of a period in the order of submission; the last line has their number."""
    with here.open_stream() as end:
        rows = await in_thread(
            AT_ONCE, job_uses, here.platform.storage, here.platform.settings, caller, Period(since, until, all_users)
        )
    return StreamReply(iterate_in_threadpool(_lines(rows)), LINES, end)


def _lines(rows: Iterator[JobUse]) -> Iterator[bytes]:
    """Yield the lines in portions, because each portion costs a change of threads."""
    count, portion = 0, bytearray()
    for count, row in enumerate(rows, 1):
        portion += _encode({"use": to_plain(row)})
        if count % _LINES == 0:
            yield bytes(portion)
            portion.clear()
    yield bytes(portion) + _encode({"end": count})


def _encode(plain: object) -> bytes:
    return json.dumps(plain, ensure_ascii=True, separators=(",", ":")).encode("ascii") + b"\n"


@router.get(
    "/reports/usage/agreement", response_model=AgreementReply, responses=answers(422), operation_id="usage_agreement"
)
async def read_agreement(
    here: CaughtUp,
    caller: Asking,
    since: Since,
    until: Until,
    tolerance_s: Annotated[Seconds, Query(description="Largest tolerated difference for each run, in seconds.")] = 30.0,
    all_users: AllUsers = False,
) -> PlainReply:
    """Return our figures and the accounting's for each job of the period."""
    period = Period(since, until, all_users)
    return PlainReply(
        AgreementReply(
            await in_thread(
                AT_ONCE, find_agreement, here.platform.storage, here.platform.adapters, caller, period, tolerance_s
            )
        )
    )


@dataclass(frozen=True, slots=True)
class FaultsReply:
    """The fault report of a period."""

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
    """Return the incidents of a period, their sums, and the comparison with the period before."""
    asked = FaultsAsked(since, until, all_users, rows_after)
    return PlainReply(FaultsReply(await in_thread(AT_ONCE, report_faults, here.platform.storage, caller, asked)))


@dataclass(frozen=True, slots=True)
class NodesReply:
    """The scores of nodes that failed jobs."""

    nodes: NodesReport
    schema: int = SCHEMA


@router.get("/reports/nodes", response_model=NodesReply, responses=answers(), operation_id="report_nodes")
async def read_nodes(here: CaughtUp, caller: Asking) -> PlainReply:
    """Return a score for each node that failed jobs, and until when the node is excluded."""
    del caller  # all users share the nodes
    platform = here.platform
    found = await in_thread(AT_ONCE, report_nodes, platform.storage.store, platform.settings, platform.node_exclusion)
    return PlainReply(NodesReply(found))
