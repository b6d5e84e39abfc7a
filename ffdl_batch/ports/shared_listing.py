"""The listing of all users' jobs that the hub of a site shares with the users' daemons."""

from __future__ import annotations

from typing import Protocol

from ffdl_batch.domain.outcome.shared_listing import SharedRows


class SharedListing(Protocol):
    """The hub's listing, as a daemon receives it."""

    def read(self) -> SharedRows | None:
        """Return this user's rows; None if the hub has no listing now, or was not asked because it had none shortly
        before."""
        ...
