"""Declares the limits of numbers and words in requests, and the error replies, once for all routes.

A value outside its limits is refused with status 400 before it reaches a service, a file system or a database.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from ffdl_batch.daemon.replies import ErrorReply

MAX_INTEGER = 2**63 - 1
"""The largest integer of SQLite and PostgreSQL, and the largest offset of a file."""
LAST_SECOND = 253402300799.0
"""9999-12-31 23:59:59 UTC, the last time that Python's datetime can show."""

Count = Annotated[int, Field(ge=0, le=MAX_INTEGER)]
Number = Annotated[int, Field(ge=1, le=MAX_INTEGER)]
"""Number of a learner or an attempt."""
AttemptChoice = Number | Literal["all"] | None
"""See :data:`ffdl_batch.domain.job.views.AttemptChoice`."""
Time = Annotated[float, Field(ge=-LAST_SECOND, le=LAST_SECOND, allow_inf_nan=False)]
"""Seconds since the epoch."""
Seconds = Annotated[float, Field(ge=0, le=LAST_SECOND, allow_inf_nan=False)]
Word = Annotated[str, Field(pattern=r"^[^\x00]*$")]
"""Text without NUL, which PostgreSQL cannot store."""

Answers = dict[int | str, dict[str, Any]]


def answers(*statuses: int, model: type = ErrorReply) -> Answers:
    """Return the error replies of a route for OpenAPI. `default` keeps FastAPI from adding its own."""
    described: Answers = {"default": {"model": model, "description": "Any other refusal or failure."}}
    for status in sorted({*ALWAYS, *statuses}):
        described[status] = {"model": model, "description": ERRORS[status]}
    return described


ALWAYS = (400, 401, 403, 500, 503)
ERRORS = {
    400: "The request does not fit this interface.",
    401: "The site's hub has passed on a request without a token, or with one that cannot be used.",
    403: "The caller may not do this.",
    404: "There is no such job, or it is another user's.",
    409: "This is not possible in the job's state.",
    410: "The output no longer exists.",
    413: "The request is too large.",
    422: "The manifest, the options or the archive are wrong.",
    500: "The daemon failed; the traceback is in its log.",
    503: "Nothing was changed; the same request may succeed later (exit code 75).",
}
