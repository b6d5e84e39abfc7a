"""The log of a job: its last lines, new lines as they are written, a search, and the whole log as a file."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import aclosing
from itertools import islice

from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from ffdl_batch.client import Client, ClientError
from ffdl_batch.domain.job.log_text import Grep, LogText
from ffdl_batch.domain.job.views import JobView
from ffdl_batch.web.jobs import event
from ffdl_batch.web.log_html import to_html
from ffdl_batch.web.pages import Site

LINES = 1000
"""Lines of each learner on the page, and found lines."""
_LINE = Markup('<span class="line"><span class="of">{}</span>{}\n</span>')
Read = dict[tuple[int, int], int]
"""The position up to which lines were read, by (attempt, learner)."""


class Logs:
    """Routes for the log of a job."""

    def __init__(self, site: Site) -> None:
        self._site = site

    async def show(self, request: Request) -> Response:
        """Return the page with the last lines, or with those in which ``text`` is found."""
        job_id, text = request.path_params["job_id"], request.query_params.get("text", "")

        def read(client: Client) -> tuple[JobView, Markup, Read]:
            job, seen = client.get(job_id), Read()
            grep = Grep(text, ignore_case=True, fixed=True) if text else None
            texts = client.log_texts(job.id, tail=LINES, grep=grep, attempt="all" if grep else None)
            return job, to_lines(texts, seen, job.learners), seen

        job, lines, seen = await self._site.client.run(read)
        values = {"job": job, "tab": "log", "lines": lines, "read": write_read(seen), "text": text, "most": LINES}
        return self._site.render(request, "log.html", values)

    async def live(self, request: Request) -> Response:
        """Return new lines as server-sent events ``lines``; at the end of the log, ``end``. ``read`` or the header
        Last-Event-ID says what was read before."""
        read = request.headers.get("last-event-id") or request.query_params.get("read", "")
        return StreamingResponse(
            self._follow(request.path_params["job_id"], read_read(read)), media_type="text/event-stream"
        )

    async def _follow(self, job_id: str, read: Read) -> AsyncIterator[str]:
        yield "retry: 2000\n\n"
        try:
            learners = (await self._site.client.get(job_id)).learners
            async with aclosing(self._site.client.log_texts(job_id, follow=True, read=dict(read))) as texts:  # type: ignore[type-var]
                async for text in texts:
                    yield event("lines", str(to_lines([text], read, learners)), write_read(read))
        except ClientError as error:
            yield event("away", str(error))
            return
        yield event("end", "")

    async def download(self, request: Request) -> Response:
        """Return the logs of all attempts as one file of text."""
        job = await self._site.client.get(request.path_params["job_id"])
        headers = {"Content-Disposition": f'attachment; filename="{job.id}.log"'}
        return StreamingResponse(self._whole(job), media_type="text/plain; charset=utf-8", headers=headers)

    async def _whole(self, job: JobView) -> AsyncIterator[bytes]:
        async for text in self._site.client.log_texts(job.id, attempt="all"):
            mark = f"{text.learner}: " if job.learners > 1 else ""
            lines = "".join(f"{mark}{line.line}\n" for line in text.lines()) if mark else f"{text.text}\n"
            yield lines.encode("utf-8", "backslashreplace")


def to_lines(texts: Iterable[LogText], read: Read, learners: int) -> Markup:
    """Return the lines as HTML, and note in `read` how far they go."""
    parts: list[Markup] = []
    for text in texts:
        read[text.attempt, text.learner] = text.end
        mark = f"{text.learner} " if learners > 1 else ""
        parts += [_LINE.format(mark, to_html(line.line)) for line in islice(text.lines(), 100_000)]
    return Markup("").join(parts)


def write_read(read: Mapping[tuple[int, int], int]) -> str:
    """Return positions as one word."""
    return ",".join(f"{attempt}.{learner}:{end}" for (attempt, learner), end in read.items())


def read_read(text: str) -> Read:
    """Return the positions in a word of :func:`write_read`; {} for other texts."""
    read = Read()
    for part in text.split(",") if text else ():
        try:
            whose, _, end = part.partition(":")
            attempt, _, learner = whose.partition(".")
            read[int(attempt), int(learner)] = int(end)
        except ValueError:
            return Read()
    return read
