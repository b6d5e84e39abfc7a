"""Waits for changes of jobs, once for all views, and only while a view is open."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping

from ffdl_batch.client.api_calls.requests import LONG_POLL_S
from ffdl_batch.client.async_client import AsyncClient
from ffdl_batch.client.errors import ClientError
from ffdl_batch.host.fast_dataclass import dataclass

REST_S = 1.0
"""Minimum time between two news."""
AGAIN_S = 2.0
"""Pause before an unreachable daemon is asked again."""


@dataclass(frozen=True, slots=True)
class News:
    """What is known of the jobs at one time."""

    states: Mapping[str, int]
    """State → number of jobs."""
    trouble: str = ""
    """Why the daemon does not answer."""


class Watching:
    """Passes on the changes of jobs to all who listen."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self._news: News | None = None
        self._changed = asyncio.Event()
        self._listeners = 0
        self._task: asyncio.Task[None] | None = None

    async def news(self) -> AsyncGenerator[News]:
        """Yield the present state, and the next one after each change."""
        self._listeners += 1
        if self._task is None:
            self._news, self._task = None, asyncio.create_task(self._watch())
        try:
            seen = None
            while True:
                changed = self._changed
                if self._news is not None and self._news is not seen:
                    seen = self._news
                    yield seen
                else:
                    await changed.wait()
        finally:
            self._listeners -= 1
            if not self._listeners and self._task is not None:
                self._task.cancel()
                self._task = None

    async def _watch(self) -> None:
        version = None
        while True:
            try:
                counts = await self._client.states(version, 0.0 if version is None else LONG_POLL_S)
            except ClientError as error:
                version = None
                self._publish(News({}, str(error)))
                await asyncio.sleep(AGAIN_S)
                continue
            if counts.version != version:
                version = counts.version
                self._publish(News(counts.states))
                await asyncio.sleep(REST_S)

    def _publish(self, news: News) -> None:
        if self._news is None or news.trouble == "" or news != self._news:
            self._news = news
            self._changed.set()
            self._changed = asyncio.Event()
