"""The listing of all users' jobs that the hub of a site shares with the users' daemons."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class SharedRows:
    """The rows of one user."""

    rows: Sequence[str]
    """One row for each live job, in a form that only the backend reads. The same object as before if they have not
    changed."""
    age_s: float
    """How long ago the scheduler was asked."""


class SharedListing(Protocol):
    """The listing as a daemon gets it."""

    def read(self) -> SharedRows | None:
        """Return this user's rows; None if the hub has no listing now, or was not asked because it had none a moment
        ago."""
        ...
