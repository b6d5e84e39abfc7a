"""Declares the limits of numbers and words in requests, once for all routes.

A value outside its limits is refused with status 400 before it reaches a service, a file system or a database.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

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
