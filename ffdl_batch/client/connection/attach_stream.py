"""Presents a helper that the user's daemon has started behind a hub as two descriptors of this process.

A thread moves the bytes between a pair of sockets and the connection to the hub, because select(2) does not see bytes
that TLS has already decrypted, and because two threads must not use one TLS connection.
"""

from __future__ import annotations

import json
import select
import socket
import ssl
import threading
from contextlib import suppress

from ffdl_batch.client.connection.http_client import Channel

_BLOCK = 1 << 16
_NOT_NOW = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class AttachStream:
    """See :class:`ffdl_batch.client.attach.Link`."""

    def __init__(self, channel: Channel) -> None:
        self._near, far = socket.socketpair()
        self.source = self.target = self._near.fileno()
        self._end: dict[str, object] = {}
        threading.Thread(target=_join, args=(channel, far), name="hub stream", daemon=True).start()

    def note_end(self, payload: bytes) -> None:
        """Store what the daemon reports about the helper's end."""
        with suppress(ValueError):
            found = json.loads(payload)
            self._end = found if isinstance(found, dict) else {}

    def end_status(self) -> int | None:
        """Return the helper's exit status; None if the stream broke off before."""
        status = self._end.get("status")
        return status if isinstance(status, int) else None

    def error_output(self) -> str:
        """Return the end of the helper's standard error output."""
        return str(self._end.get("errors", ""))

    def interrupt(self, *, can_write: bool) -> None:
        """End the stream, so that a thread that reads from it sees the end. The daemon then ends the helper."""
        del can_write
        with suppress(OSError):  # the other end has closed it
            self._near.shutdown(socket.SHUT_RDWR)

    def close(self, *, can_write: bool) -> None:
        """Close the connection: the daemon then ends the helper. `can_write` is not needed: closing does not wait."""
        del can_write
        self._near.close()


def _join(channel: Channel, far: socket.socket) -> None:
    """Move bytes both ways until one side ends. At most one block waits in each direction."""
    hub = channel.connection
    hub.setblocking(False)
    far.setblocking(False)
    up: bytes | None = None
    down: bytes | None = None
    try:
        while True:
            up, down = up or _take(far), down or _take(hub)
            if b"" in (up, down):
                return
            moved = [_put(hub, up) if up else 0, _put(far, down) if down else 0]
            up, down = up and up[moved[0] :], down and down[moved[1] :]
            if not any(moved):
                _wait({hub: up, far: down})
    except OSError:
        return  # one side has gone; the other one sees the end
    finally:
        far.close()
        channel.close()


def _take(source: socket.socket) -> bytes | None:
    """Return received bytes, b"" at the end, None if there are none now."""
    try:
        return source.recv(_BLOCK)
    except _NOT_NOW:
        return None


def _put(target: socket.socket, data: bytes) -> int:
    """Return the number of bytes that the socket accepted."""
    try:
        return target.send(data)
    except _NOT_NOW:
        return 0


def _wait(pending: dict[socket.socket, bytes | None]) -> None:
    """Wait until a socket can accept its pending bytes, or has bytes to read if the other one has no pending bytes."""
    poll = select.poll()
    (one, for_one), (other, for_other) = pending.items()
    poll.register(one, (select.POLLOUT if for_one else 0) | (0 if for_other else select.POLLIN))
    poll.register(other, (select.POLLOUT if for_other else 0) | (0 if for_one else select.POLLIN))
    poll.poll()
