"""The report of nodes."""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import APIRouter

from ffdl_batch.daemon.context import Asking, CaughtUp, in_thread
from ffdl_batch.daemon.job_routes import answers
from ffdl_batch.daemon.replies import PlainReply, when_asked
from ffdl_batch.daemon.report_routes import AT_ONCE
from ffdl_batch.domain.node_score import NodesReport
from ffdl_batch.domain.views import SCHEMA
from ffdl_batch.services.reports.nodes import report_nodes

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
