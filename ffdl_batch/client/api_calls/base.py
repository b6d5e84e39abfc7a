"""What the client's calls are built on."""

from __future__ import annotations

from abc import ABC, abstractmethod

from ffdl_batch.client.connection.http_client import Wire


class StreamCalls(ABC):
    """Calls that read streams: each has a connection of its own, so that others may come in between."""

    @abstractmethod
    def _open_wire(self) -> Wire:
        """A new connection, which the caller closes."""
