"""Work of controllers: keys that are to be looked at, now or later, each once at a time."""

from __future__ import annotations

import asyncio
import sys
import traceback
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)


class WorkQueue(Generic[Key]):
    """Keys to be looked at by `step`, in the order in which they came."""

    def __init__(self, step: Callable[[Key], None]) -> None:
        self._step = step
        self._waiting: dict[Key, None] = {}
        self._some = asyncio.Event()
        self.paused = False

    def add(self, key: Key) -> None:
        """Look at it soon."""
        self._waiting[key] = None
        self._some.set()

    def later(self, key: Key, seconds: float) -> None:
        """Look at it in so many seconds."""
        asyncio.get_running_loop().call_later(max(seconds, 0.0), self.add, key)

    async def run(self) -> None:
        """Go on for ever. A step that fails is told and tried again."""
        while True:
            await self._some.wait()
            self._some.clear()
            while self.paused:
                await asyncio.sleep(0.05)
            keys, self._waiting = list(self._waiting), {}
            for at, key in enumerate(keys):
                try:
                    self._step(key)
                except Exception:  # noqa: BLE001 - a fault of the fake must not end it
                    print(traceback.format_exc(), file=sys.stderr, flush=True)
                    self.later(key, 1.0)
                if at % 20 == 19:
                    await asyncio.sleep(0)
            await asyncio.sleep(0)
