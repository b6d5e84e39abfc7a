"""What the core asks of those who use a scheduler on a host where nothing of ours is installed: by its own commands.

Whoever writes jobs for a scheduler alone (:mod:`ffdl_batch.ports.export`) may offer it. What is submitted so is the
scheduler's job and nobody else's: no daemon watches it, and nobody starts it again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from ffdl_batch.domain.outcome.observation import Observation

if TYPE_CHECKING:
    from ffdl_batch.ssh.connection import Connector


class SchedulerThere(Protocol):
    """A scheduler on the other side of a connection. All raise SchedulerUnreachable where it is not answered."""

    def is_there(self) -> bool:
        """Whether the host has its commands after a login."""
        ...

    def submit(self, directory: str, script: str, index: str) -> str:
        """The id of the job whose script has this name in `directory`, where it is submitted. A link of the id's name
        in the directory `index` leads to `directory` from then on, also where the answer is lost.

        Raises InvalidRequest where it is refused, SubmissionUncertain where nobody knows.
        """
        ...

    def observe(self, ids: Collection[str]) -> Mapping[str, Observation]:
        """By the id, or by those of an array's tasks (``12_3``, ``12_[4-9]``); left out = nobody knows it any more."""
        ...

    def cancel(self, ids: Collection[str]) -> None:
        """Idempotent. Raises InvalidRequest where it is refused."""
        ...


@runtime_checkable
class WorksThere(Protocol):
    """Who can do it over a connection."""

    def open_there(self, host: str, connector: Connector) -> SchedulerThere:
        """Asks nothing yet. `host` is what messages call it."""
        ...
