"""The pages of one job: overview, metrics, and what was submitted; and several jobs compared."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ffdl_batch.client import Client
from ffdl_batch.domain.job.views import EventView, JobView, SupportPart
from ffdl_batch.domain.metrics.series import TIME, Curves, Series
from ffdl_batch.domain.pending.explanation import WhyView
from ffdl_batch.web import charts, sweeps
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
        """Return the page that compares jobs: ``id`` (repeatable) or ``array`` selects them; ``metric`` and ``best``
        say by which values."""

        def read(client: Client) -> tuple[list[JobView], list[Series]]:
            jobs = _compared(client, request)
            return jobs, list(charts.read_metrics(client, [job.id for job in jobs]))

        jobs, series = await self._site.client.run(read)
        choice = _choice(request, series)
        best = sweeps.best_of(series, choice)
        values = {
            "jobs": sweeps.ranked(jobs, best, choice),
            "names": sorted({name for job in jobs for name in job.array_values}),
            "choice": choice,
            "best": best,
            "selected": [pair for pair in request.query_params.multi_items() if pair[0] in ("id", "array")],
        }
        return self._site.render(request, "compare.html", values)

    async def compare_json(self, request: Request) -> Response:
        """Return the curves of the compared jobs as JSON, and the charts of their sweep."""
        is_by_time = request.query_params.get("axis") == TIME

        def read(client: Client) -> tuple[Sequence[JobView], list[Series]]:
            jobs = _compared(client, request)
            return jobs, list(charts.read_metrics(client, [job.id for job in jobs], TIME if is_by_time else ""))

        jobs, series = await self._site.client.run(read)
        choice = _choice(request, series)
        names = {job.id: f"{_values(job) or job.name} ({job.id})" for job in jobs}
        return JSONResponse(
            {
                "sweep": sweeps.scatter(jobs, sweeps.best_of(series, choice), choice),
                "metrics": charts.charts_of(series, names),
                "is_live": any(job.ended_at is None for job in jobs),
            }
        )


def _choice(request: Request, series: Sequence[Series]) -> sweeps.Choice:
    asked = request.query_params
    return sweeps.choose(series, asked.get("metric", ""), asked.get("best", ""))


def _compared(client: Client, request: Request) -> list[JobView]:
    """Return the selected jobs. Raises UnknownJob."""
    array = request.query_params.get("array", "")
    if array:
        return list(client.arrays.elements(array))[:MOST_COMPARED]
    return [client.get(one) for one in dict.fromkeys(request.query_params.getlist("id")[:MOST_COMPARED])]


def _values(job: JobView) -> str:
    return " ".join(f"{name}={value}" for name, value in job.array_values.items())
