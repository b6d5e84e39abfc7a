"""Receives and reads the bodies of requests to the hub itself, and refuses unknown routes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import TypeVar

from starlette.types import Receive, Scope

from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.domain.job.views import Problem
from ffdl_batch.services.refusals import Refused
from ffdl_batch.site.hub.proxy import CallerGone

SMALL_BYTES, SMALL_S = 32 * 1024, 10.0
"""Default maximum size of a body, and seconds to receive it. Enough for two munge credentials."""
T = TypeVar("T")


async def read_small(receive: Receive, most_bytes: int = SMALL_BYTES) -> bytes:
    """Return a body. Raises Refused if it is too large, and CallerGone if the caller disconnects or the body is not
    complete after SMALL_S seconds."""
    body, more = b"", True
    try:
        async with asyncio.timeout(SMALL_S):
            while more:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise CallerGone
                body, more = body + message.get("body", b""), message.get("more_body", False)
                if len(body) > most_bytes:
                    raise Refused(Problem("C101", f"the body is larger than {most_bytes} bytes", ExitCode.USAGE), 413)
    except TimeoutError as error:
        raise CallerGone from error
    return body


def read_json(body: bytes, read: Callable[[object], T]) -> T:
    """Return what `read` returns for the JSON of a body. Raises Refused if the body is not JSON, or if `read` raises
    ValueError."""
    try:
        return read(json.loads(body))
    except (ValueError, RecursionError) as error:
        raise Refused(Problem("C101", f"the body cannot be read: {error}", ExitCode.USAGE), 422) from error


def unknown_route(scope: Scope) -> Refused:
    """Return the error for a request that the hub has no route for."""
    return Refused(Problem("C101", f"the hub has no {scope['method']} {scope['path']}", ExitCode.USAGE), 404)
