"""The report of nodes."""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import APIRouter

from ffdl_batch.daemon.replies import PlainReply, when_asked
from ffdl_batch.daemon.request_context import Asking, CaughtUp, in_thread
from ffdl_batch.daemon.routes.jobs import answers
from ffdl_batch.daemon.routes.reports import AT_ONCE
from ffdl_batch.domain.incidents.node_score import NodesReport
from ffdl_batch.domain.job.views import SCHEMA
from ffdl_batch.services.reports.node_failures import report_nodes

router = APIRouter()


@when_asked
@dataclass(frozen=True, slots=True)
class NodesReply:
    """How often nodes failed jobs."""

    nodes: NodesReport
    schema: int = SCHEMA


@router.get("/reports/nodes", response_model=NodesReply, responses=answers(), operation_id="report_nodes")
async def read_nodes(here: CaughtUp, caller: Asking) -> PlainReply:
    """A score for each node that failed jobs, by their incidents, and until when jobs keep off it."""
    del caller  # nodes are everybody's
    return PlainReply(NodesReply(await in_thread(AT_ONCE, report_nodes, here.platform)))
