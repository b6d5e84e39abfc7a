"""The report of nodes: how often each failed jobs. Nothing is asked of a scheduler."""

from __future__ import annotations

from ffdl_batch.domain.incidents.node_score import NodesReport
from ffdl_batch.services.platform import Platform


def report_nodes(platform: Platform) -> NodesReport:
    """The scores as of now, of all jobs in the database: they name nodes, and nobody's jobs."""
    rules = platform.settings.nodes
    scores = platform.lemons.scores()
    return NodesReport(platform.store.now(), tuple(scores), rules.threshold if rules.exclude_lemons else None)
