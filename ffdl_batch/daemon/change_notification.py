"""Tells waiting requests that something changed, from any thread, without anybody polling."""

from __future__ import annotations

import asyncio
import contextlib


class Changes:
    """A version that counts up with each change. Loops bump it from their threads; requests wait in the event loop.

    Read `version` before the query and wait with it after: a change in between is never missed.
    """

    def __init__(self) -> None:
        self.version = 0
        self.closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._event: asyncio.Event | None = None

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Be told of bumps in `loop` from now on; waiting there does it, too."""
        self._loop = loop
        self._event = asyncio.Event()

    def bump(self) -> None:
        """Something changed; safe in every thread. Without a loop nobody waits, and nothing happens."""
        loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._wake)

    def close(self) -> None:
        """The daemon stops: let everybody go, now and from now on. Call in the loop."""
        self.closed = True
        self._wake()

    async def wait(self, seen: int, timeout_s: float) -> None:
        """Return when the version is not `seen` any more, when the daemon stops, or after `timeout_s`."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self.attach(loop)
        event = self._event
        if self.version != seen or self.closed or event is None or timeout_s <= 0:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await event.wait()

    def _wake(self) -> None:
        self.version += 1
        if self._event is not None:
            self._event.set()
            self._event = asyncio.Event()
