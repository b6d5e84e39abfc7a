"""The files of a job: a list, and the download of one file.

A training may write anything, so a file is only ever sent as an attachment of an unknown type: the browser must not
show it as a page of this server.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import BinaryIO
from urllib.parse import quote, urlencode

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from ffdl_batch.client import Client, NotAllowed, RequestRefused, UnknownJob
from ffdl_batch.client.stores.job_files import OnlyWithDaemon, list_output, open_output
from ffdl_batch.domain.data.staging_protocol import Entry
from ffdl_batch.domain.job.views import JobView, OutputView
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.web.pages import Site

KINDS = ("results", "checkpoint", "logs", "model")
MOST = 1000
"""Files on the page."""
MOST_STORED_BYTES = 1 << 30
"""Of a file that is copied from a store before it is sent."""
_CHUNK = 1 << 18


@dataclass(frozen=True, slots=True)
class Listed:
    """The files of a job, as far as they are shown."""

    output: OutputView | None = None
    files: Sequence[Entry] = ()
    is_whole: bool = True
    message: str = ""
    """Why there are none."""


class Results:
    """Routes for the files of a job."""

    def __init__(self, site: Site) -> None:
        self._site = site

    async def show(self, request: Request) -> Response:
        """Return the list of the files of ``kind``."""
        job_id, kind = request.path_params["job_id"], _kind(request)

        def read(client: Client) -> tuple[JobView, Listed]:
            job = client.get(job_id)
            return job, self._list(client, job.id, kind)

        job, listed = await self._site.client.run(read)
        here = f"/jobs/{quote(job.id)}/results"
        rows = [(one, _address(here, kind, one.name)) for one in listed.files]
        values = {
            "job": job, "tab": "results", "kind": kind, "kinds": KINDS, "listed": listed, "rows": rows, "here": here,
        }  # fmt: skip
        return self._site.render(request, "results.html", values)

    def _list(self, client: Client, job_id: str, kind: str) -> Listed:
        try:
            output = client.output.find(job_id, kind)
        except (UnknownJob, NotAllowed):
            raise
        except RequestRefused as error:
            return Listed(message=str(error))
        try:
            return Listed(output, *list_output(output, self._site.place(), MOST))
        except OnlyWithDaemon:
            return Listed(output, message="The files are on the host of the daemon.")

    async def download(self, request: Request) -> Response:
        """Return the file ``name`` of ``kind`` as an attachment."""
        job_id, kind, name = request.path_params["job_id"], _kind(request), request.query_params.get("name", "")

        def read(client: Client) -> BinaryIO:
            return open_output(client.output.find(job_id, kind), self._site.place(), name, MOST_STORED_BYTES)

        try:
            file = await self._site.client.run(read)
        except (OnlyWithDaemon, OSError) as error:
            why = error.strerror if isinstance(error, OSError) and error.strerror else "there is no such file"
            status = 403 if isinstance(error, PermissionError) else 404
            return self._site.render(request, "error.html", {"message": f"{name}: {why}"}, status)
        size = os.fstat(file.fileno()).st_size
        last = name.rpartition("/")[2]
        headers = {
            "Content-Disposition": f"attachment; filename*=UTF-8''{quote(last, safe='')}",
            "Content-Length": str(size),
        }
        return StreamingResponse(_chunks(file, size), media_type="application/octet-stream", headers=headers)


def _kind(request: Request) -> str:
    asked = request.query_params.get("kind", "")
    return asked if asked in KINDS else KINDS[0]


def _address(here: str, kind: str, name: str) -> str:
    """Return the address of a file; "" for a name that is not UTF-8, which no address can have."""
    try:
        return f"{here}/file?{urlencode({'kind': kind, 'name': name})}"
    except UnicodeEncodeError:
        return ""


def _chunks(file: BinaryIO, size: int) -> Iterator[bytes]:
    """Yield the first `size` bytes: a learner may still write. Raises OSError if the file became shorter."""
    with file:
        while size:
            data = file.read(min(size, _CHUNK))
            if not data:
                raise OSError("the file became shorter while it was sent")
            size -= len(data)
            yield data
