"""The table of jobs, with filters and pages, and its news."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from ffdl_batch.client import Client, JobFilter
from ffdl_batch.domain.job.views import JobCounts, JobView
from ffdl_batch.web.pages import STATES, Site

ROWS = 100


class JobTable:
    """Routes for the table of jobs."""

    def __init__(self, site: Site) -> None:
        self._site = site

    async def show(self, request: Request) -> Response:
        """Return a page of the table: ``state`` (repeatable), ``text``, ``array`` and ``after`` select the jobs."""
        asked = request.query_params
        chosen = tuple(state for state in asked.getlist("state") if state in STATES)
        array = asked.get("array", "")
        which = JobFilter(
            states=chosen,
            text=asked.get("text", "").strip(),
            array=array,
            after=asked.get("after", ""),
            limit=ROWS + 1,
            is_collapsed=not array,
        )

        def read(client: Client) -> tuple[list[JobView], JobCounts]:
            return client.list(which), client.states()

        jobs, counts = await self._site.client.run(read)
        outages, database_outage = self._site.client.outages, self._site.client.database_outage
        following = ""
        if len(jobs) > ROWS and not array:
            pairs = [("state", state) for state in chosen]
            pairs += [("text", which.text)] if which.text else []
            following = "?" + urlencode([*pairs, ("after", jobs[ROWS - 1].id)])
        values = {
            "jobs": jobs if array else jobs[:ROWS],
            "counts": counts.states,
            "chosen": chosen,
            "text": which.text,
            "array": array,
            "is_first": not which.after,
            "following": following,
            "outages": outages,
            "database_outage": database_outage,
        }
        return self._site.render(request, "jobs.html", values)

    async def live(self, _: Request) -> Response:
        """Return server-sent events: ``changed`` with the number of jobs by state, and ``away`` with the reason if the
        daemon does not answer."""
        return StreamingResponse(self._events(), media_type="text/event-stream")

    async def _events(self) -> AsyncIterator[str]:
        yield "retry: 2000\n\n"
        async with aclosing(self._site.watching.news()) as all_news:
            async for news in all_news:
                if news.trouble:
                    yield event("away", news.trouble)
                else:
                    yield event("changed", dict(news.states))


def event(name: str, data: object, number: str = "") -> str:
    """Return a server-sent event whose data is JSON."""
    head = f"id: {number}\n" if number else ""
    return f"{head}event: {name}\ndata: {json.dumps(data)}\n\n"
