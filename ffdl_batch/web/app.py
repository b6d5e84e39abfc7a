"""Assembles the application: routes, static files, and the guard around them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from ffdl_batch.client import AsyncClient, ClientError
from ffdl_batch.client.stores.job_files import OwnPlace
from ffdl_batch.exit_handling import Stop
from ffdl_batch.web.access import STATIC, Guard, Keys
from ffdl_batch.web.actions import Actions
from ffdl_batch.web.cluster import Cluster
from ffdl_batch.web.job_pages import JobPages
from ffdl_batch.web.jobs import JobTable
from ffdl_batch.web.logs import Logs
from ffdl_batch.web.notices import Notices
from ffdl_batch.web.pages import Site
from ffdl_batch.web.reports import Reports
from ffdl_batch.web.results import Results
from ffdl_batch.web.submitting import Submitting


def create_app(client: AsyncClient, keys: Keys, title: str, place: Callable[[], OwnPlace]) -> ASGIApp:
    """Return the application for the daemon of `client`. `title` says whose it is, and `place` from where the output of
    jobs is read."""
    site = Site(client, title, place)
    table, pages, logs, results = JobTable(site), JobPages(site), Logs(site), Results(site)
    actions, submitting, reports = Actions(site), Submitting(site), Reports(site)
    cluster, notices = Cluster(site), Notices(site)

    async def on_error(request: Request, error: Exception) -> Response:
        return site.render_error(request, error)

    routes = [
        Route("/", table.show),
        Route("/live", table.live),
        Route("/act", actions.act, methods=["POST"]),
        Route("/submit", submitting.show),
        Route("/submit", submitting.submit, methods=["POST"]),
        Route("/submit/check", submitting.check, methods=["POST"]),
        Route("/reports", reports.show),
        Route("/notices", notices.show),
        Route("/notices", notices.test, methods=["POST"]),
        Route("/cluster", cluster.show),
        Route("/cluster/pools.json", cluster.pools_json),
        Route("/compare", pages.compare),
        Route("/compare/metrics.json", pages.compare_json),
        Route("/jobs/{job_id}", pages.overview),
        Route("/jobs/{job_id}/log", logs.show),
        Route("/jobs/{job_id}/log/live", logs.live),
        Route("/jobs/{job_id}/log/download", logs.download),
        Route("/jobs/{job_id}/metrics", pages.metrics),
        Route("/jobs/{job_id}/metrics.json", pages.metrics_json),
        Route("/jobs/{job_id}/results", results.show),
        Route("/jobs/{job_id}/results/file", results.download),
        Route("/jobs/{job_id}/submitted", pages.submitted),
        Mount(STATIC.rstrip("/"), StaticFiles(directory=Path(__file__).with_name("static"))),
    ]
    return Guard(Starlette(routes=routes, exception_handlers={ClientError: on_error, Stop: on_error}), keys)
