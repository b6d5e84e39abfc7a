"""The pages of one job: overview, metrics, and what was submitted; and several jobs compared."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ffdl_batch.client import Client
from ffdl_batch.domain.job.views import EventView, JobView, SupportPart
from ffdl_batch.domain.metrics.series import TIME, Curves
from ffdl_batch.domain.pending.explanation import WhyView
from ffdl_batch.web import charts
from ffdl_batch.web.pages import Site

MOST_COMPARED = 50
_WAITS = frozenset({"PENDING", "DEPLOYING", "QUEUED"})


class JobPages:
    """Routes for jobs."""

    def __init__(self, site: Site) -> None:
        self._site = site

    async def overview(self, request: Request) -> Response:
        """Return the state of a job, its attempts, incidents, and why it is pending."""
        job_id = request.path_params["job_id"]

        def read(client: Client) -> tuple[JobView, list[EventView], WhyView | None]:
            job = client.get(job_id)
            why = client.why(job.id) if job.state in _WAITS else None
            return job, list(client.events(job.id)), why

        job, events, why = await self._site.client.run(read)
        values = {"job": job, "events": events, "why": why, "tab": "overview", "values": _values(job)}
        return self._site.render(request, "job.html", values)

    async def metrics(self, request: Request) -> Response:
        """Return the page with the curves of a job. Without JavaScript it is a table of their last values."""
        job_id = request.path_params["job_id"]

        def read(client: Client) -> tuple[JobView, Curves, Curves]:
            job = client.get(job_id)
            return job, charts.read_metrics(client, [job.id]), charts.read_usage(client, job.id)

        job, metrics, usage = await self._site.client.run(read)
        values = {"job": job, "tab": "metrics", "series": list(metrics), "usage": list(usage)}
        return self._site.render(request, "metrics.html", values)

    async def metrics_json(self, request: Request) -> Response:
        """Return the curves of a job as JSON; ``axis=time`` plots metrics by time."""
        job_id = request.path_params["job_id"]
        axis = TIME if request.query_params.get("axis") == TIME else ""

        def read(client: Client) -> tuple[JobView, Curves, Curves]:
            job = client.get(job_id)
            return job, charts.read_metrics(client, [job.id], axis), charts.read_usage(client, job.id)

        job, metrics, usage = await self._site.client.run(read)
        return JSONResponse(
            {
                "metrics": charts.charts_of(list(metrics)),
                "usage": charts.charts_of(list(usage)),
                "is_live": job.ended_at is None,
            }
        )

    async def submitted(self, request: Request) -> Response:
        """Return the manifest of a job, and exactly what was sent to the scheduler."""
        job_id = request.path_params["job_id"]

        def read(client: Client) -> tuple[JobView, tuple[SupportPart, ...]]:
            job = client.get(job_id)
            return job, client.output.support(job.id)

        job, parts = await self._site.client.run(read)
        values = {"job": job, "tab": "submitted", "parts": [part for part in parts if part.text or part.left_out]}
        return self._site.render(request, "submitted.html", values)

    async def compare(self, request: Request) -> Response:
        """Return the page that compares jobs: ``id`` (repeatable) or ``array`` selects them."""
        jobs = await self._site.client.run(lambda client: _compared(client, request))
        names = sorted({name for job in jobs for name in job.array_values})
        return self._site.render(request, "compare.html", {"jobs": jobs, "names": names})

    async def compare_json(self, request: Request) -> Response:
        """Return the curves of the compared jobs as JSON."""

        def read(client: Client) -> tuple[Sequence[JobView], Curves]:
            jobs = _compared(client, request)
            axis = TIME if request.query_params.get("axis") == TIME else ""
            return jobs, charts.read_metrics(client, [job.id for job in jobs], axis)

        jobs, metrics = await self._site.client.run(read)
        names = {job.id: f"{_values(job) or job.name} ({job.id})" for job in jobs}
        return JSONResponse(
            {
                "metrics": charts.charts_of(list(metrics), names),
                "is_live": any(job.ended_at is None for job in jobs),
            }
        )


def _compared(client: Client, request: Request) -> list[JobView]:
    """Return the selected jobs. Raises UnknownJob."""
    array = request.query_params.get("array", "")
    if array:
        return list(client.arrays.elements(array))[:MOST_COMPARED]
    return [client.get(one) for one in dict.fromkeys(request.query_params.getlist("id")[:MOST_COMPARED])]


def _values(job: JobView) -> str:
    return " ".join(f"{name}={value}" for name, value in job.array_values.items())
