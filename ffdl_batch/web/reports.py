"""The page of usage, failures and nodes in the last days."""

from __future__ import annotations

import time

from starlette.requests import Request
from starlette.responses import Response

from ffdl_batch.client import Client
from ffdl_batch.domain.incidents.node_score import NodesReport
from ffdl_batch.domain.incidents.report import FaultsReport
from ffdl_batch.domain.metrics.usage_report import UsageReport
from ffdl_batch.web.pages import Site

PERIODS = (1, 7, 30, 90)
"""Days that can be chosen."""
_DAY_S = 86400.0


class Reports:
    """The route for reports."""

    def __init__(self, site: Site) -> None:
        self._site = site

    async def show(self, request: Request) -> Response:
        """Return what was used and what failed in the last ``days``."""
        asked = request.query_params.get("days", "")
        days = next((one for one in PERIODS if str(one) == asked), PERIODS[1])
        now = time.time()

        def read(client: Client) -> tuple[UsageReport, FaultsReport, NodesReport]:
            since = now - days * _DAY_S
            return (
                client.reports.usage(since, now),
                client.reports.faults(since),
                client.reports.nodes(),
            )

        usage, faults, nodes = await self._site.client.run(read)
        values = {
            "days": days, "periods": PERIODS, "usage": usage, "faults": faults, "nodes": nodes,
        }  # fmt: skip
        return self._site.render(request, "reports.html", values)
