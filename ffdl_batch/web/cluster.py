"""The page of the cluster: what is free and who waits, for a request of the reader's choice, and the pools of elastic
jobs with their sizes over time."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ffdl_batch.client import Client, JobFilter, RequestRefused
from ffdl_batch.client.submissions.manifest_source import read_manifest
from ffdl_batch.client.submissions.submission_builder import Wanted, build_submission
from ffdl_batch.domain.daemon_health import Health
from ffdl_batch.domain.job.elastic import workers_of
from ffdl_batch.domain.job.pool_views import PoolView
from ffdl_batch.domain.job.views import AttemptView, JobView
from ffdl_batch.domain.pending.explanation import Outlook
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.web.pages import Site

_FIELDS = ("partition", "learners", "gpus", "gpu_type", "time")
_RECENT = 100
"""Jobs whose partitions are offered."""
_MOST_JOBS = 40
"""Jobs of a pool whose sizes are drawn."""
_HOUR_S = 3600.0
_NO_MODEL = "0" * 64


@dataclass(frozen=True, slots=True)
class Asked:
    """A request that the page asks about: texts of the form."""

    partition: str = ""
    learners: str = ""
    gpus: str = ""
    gpu_type: str = ""
    time: str = ""


class Cluster:
    """Routes for the cluster."""

    def __init__(self, site: Site) -> None:
        self._site = site

    async def show(self, request: Request) -> Response:
        """Return capacity, queue and start of a request, which the query describes; without a query, of one that needs
        no GPU."""
        asked = _read(request.query_params)

        def read(client: Client) -> tuple[Health, Outlook | None, str, list[str], list[PoolView]]:
            outlook, message = None, ""
            try:
                outlook = _ask(client, asked)
            except RequestRefused as error:
                message = str(error)
            recent = client.list(JobFilter(limit=_RECENT))
            partitions = sorted({name for job in recent for name in job.partition.split(",") if name})
            return client.health(), outlook, message, partitions, client.pools.status()

        health, outlook, message, partitions, pools = await self._site.client.run(read)
        values = {
            "asked": asked, "health": health, "outlook": outlook, "message": message, "partitions": partitions,
            "pools": pools,
        }  # fmt: skip
        return self._site.render(request, "cluster.html", values, 422 if message else 200)

    async def pools_json(self, _: Request) -> Response:
        """Return the GPUs of each job in a pool over time, as curves."""

        def read(client: Client) -> list[dict[str, object]]:
            now = time.time()
            return [_chart(pool, [client.get(job.id) for job in pool.jobs[:_MOST_JOBS]], now) for pool in
                    client.pools.status() if pool.jobs]  # fmt: skip

        charts = await self._site.client.run(read)
        return JSONResponse({"metrics": {"charts": charts, "left_out": 0}, "is_live": True})


def _read(query: QueryParams) -> Asked:
    return Asked(*(query.get(name, "").strip()[:200] for name in _FIELDS))


def _ask(client: Client, asked: Asked) -> Outlook:
    """Return what the backend knows about a request that is not submitted. Raises RequestRefused, ClientError."""
    manifest: dict[str, object] = {
        "name": "request", "framework": {"name": "custom", "version": "python-numpy", "command": "true"},
        "cpus": 1, "memory": "1GiB", "learners": asked.learners or 1, "gpus": asked.gpus or 0,
    }  # fmt: skip
    if asked.gpu_type:
        manifest["gpu_type"] = asked.gpu_type
    options = {name: text for name, text in (("partition", asked.partition), ("time", asked.time)) if text}
    return client.outlook(build_submission(read_manifest(manifest), _NO_MODEL, Wanted(options)))


def _chart(pool: PoolView, jobs: Sequence[JobView], now: float) -> dict[str, object]:
    curves = []
    for job in jobs:
        points = [((at - now) / _HOUR_S, gpus) for at, gpus in sizes_of(job, now)]
        if points:
            label = f"{job.name} ({job.id})"
            curves.append({"label": label, "xs": [x for x, _ in points], "ys": [y for _, y in points]})
    return {
        "title": f"Pool {pool.name}: GPUs by hours from now",
        "axis": "hours",
        "unit": "",
        "curves": curves,
        "is_stepped": True,
    }


def sizes_of(job: JobView, now: float) -> list[tuple[float, float]]:
    """Return the times at which the GPUs of a job changed, and how many it had from then on: 0 between its attempts.
    The last time is `now`, or the end of its last attempt."""
    changes: dict[float, float] = {}
    for attempt in job.attempts:
        steps = list(_steps(attempt, job.gpus))
        changes |= steps
        if steps:
            changes |= {now: steps[-1][1]} if attempt.ended_at is None else {attempt.ended_at: 0.0}
    return sorted(changes.items())


def _steps(attempt: AttemptView, gpus_each: float) -> Iterator[tuple[float, float]]:
    """Yield the times at which an attempt got a size, and its GPUs from then on, as pools count them."""
    if not attempt.learners or attempt.submitted_at is None:
        return
    yield attempt.submitted_at, workers_of(attempt.learners, gpus_each)
    for resize in attempt.resizes:
        yield resize.at, workers_of(resize.learners, gpus_each)
