"""Follow the logs of the controllers of running pods: one connection for each pod, all in one thread.

After a connection breaks, a new one begins at the second of the last line, because `sinceTime` has no finer unit; the
listener ignores lines that it knows. When a container has ended and its log was read, the listener is called for the
end.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol

from ffdl_batch.domain.launch.pod_protocol import Frame, decode_frame
from ffdl_batch.domain.scheduler_errors import SchedulerError
from ffdl_batch.domain.untrusted_json import parse_json
from ffdl_batch.host.backoff import growing_pause
from ffdl_kubernetes.connection import load_config, parameters_of
from ffdl_kubernetes.objects.names import CONTROLLER
from ffdl_kubernetes.settings import KubernetesSettings

if TYPE_CHECKING:
    import httpx2

Plain = Mapping[str, Any]
_log = logging.getLogger(__name__)
PAUSE_S = 1.0
STOP_S = 5.0
FOLLOWING = "follow-pod"
"""The name of the tasks that read logs."""
QUIET_S = 60.0
"""Maximum pause after refusals. Pauses begin with PAUSE_S and double."""
SILENT_S = 200.0
"""A controller prints something each minute. A connection without data for this time is broken."""


class Listener(Protocol):
    """Called in the follower's thread."""

    def on_frame(self, pod: str, frame: Frame, at: float) -> None:
        """Handle one line of the pod, printed at `at` (epoch)."""
        ...

    def on_end(self, pod: str) -> None:
        """Handle the end of the log: the controller has ended, or its log is gone."""
        ...


class Follower:
    """Follows pods by name, from :meth:`follow` until the end of their logs or :meth:`forget`."""

    def __init__(self, settings: KubernetesSettings, namespace: Callable[[], str], listener: Listener) -> None:
        self._settings, self._namespace, self._listener = settings, namespace, listener
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._ended: set[str] = set()
        self._known: set[str] = set()
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._client: httpx2.AsyncClient | None = None

    def follow(self, pod: str) -> None:
        """Begin to read the log of the pod's controller, unless it is being read."""
        with self._lock:
            if pod in self._known:
                return
            self._known.add(pod)
            loop = self._running()
        self._submit(loop, self._begin(pod))

    def ended(self, pod: str) -> None:
        """Note that the controller's container has ended, so that the end of its log is final."""
        self._ended.add(pod)

    def forget(self, pod: str) -> None:
        """Stop following a pod that is gone."""
        with self._lock:
            self._known.discard(pod)
            self._ended.discard(pod)
            loop = self._loop
        if loop is not None:
            self._submit(loop, self._drop(pod))

    def stop(self) -> None:
        """End the thread and its connections."""
        with self._lock:
            loop, self._loop = self._loop, None
            thread, self._thread = self._thread, None
        if loop is not None and thread is not None:
            self._submit(loop, self._end())
            thread.join(STOP_S)

    # ---------------------------------------------------------------------------------------------- the thread

    def _running(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=_run, args=(self._loop,), name="follow-pods", daemon=True)
            self._thread.start()
        return self._loop

    @staticmethod
    def _submit(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, loop)

    async def _begin(self, pod: str) -> None:
        self._tasks[pod] = asyncio.get_running_loop().create_task(self._follow(pod), name=FOLLOWING)

    async def _end(self) -> None:
        # Tasks of pods that are gone are in no table any more.
        tasks = {task for task in asyncio.all_tasks() if task.get_name() == FOLLOWING}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._client is not None:
            await self._client.aclose()
        await asyncio.sleep(0)  # the loop releases a closed connection in its next turn
        asyncio.get_running_loop().stop()

    async def _drop(self, pod: str) -> None:
        if (task := self._tasks.pop(pod, None)) is not None:
            task.cancel()

    async def _follow(self, pod: str) -> None:
        since, failures = "", 0
        while True:
            last_time = pod in self._ended
            try:
                async for stamp, line in self._lines(pod, since):
                    since, failures = stamp, 0
                    frame = decode_frame(line)
                    if frame is not None:
                        self._listener.on_frame(pod, frame, epoch_of(stamp))
            except _Gone:
                self._listener.on_end(pod)
                return
            except _Broken:
                last_time = False
            if last_time:
                self._listener.on_end(pod)
                return
            failures = 1 if pod in self._ended else failures + 1
            await asyncio.sleep(growing_pause(failures, PAUSE_S, QUIET_S))

    async def _lines(self, pod: str, since: str) -> AsyncIterator[tuple[str, str]]:
        """Yield times and lines. Raises _Gone if there is no such pod or log, _Broken if the log is cut off."""
        import httpx2

        query = {
            "container": CONTROLLER,
            "follow": "true",
            "timestamps": "true",
            **({"sinceTime": since} if since else {}),
        }
        timeout = httpx2.Timeout(self._settings.request_timeout_s, read=SILENT_S)
        try:
            path = f"api/v1/namespaces/{self._namespace()}/pods/{pod}/log"
            request = self._open().build_request("GET", path, params=query, timeout=timeout)
            async with contextlib.aclosing(await self._send(request)) as reply:
                if reply.status_code == 404:
                    raise _Gone
                if reply.status_code >= 400:
                    raise _Broken
                async for line in reply.aiter_lines():
                    stamp, _, text = line.partition(" ")
                    with contextlib.suppress(ValueError):
                        epoch_of(stamp)
                        yield stamp, text
        except httpx2.HTTPError as error:
            raise _Broken from error
        except (SchedulerError, OSError) as error:  # of credentials and their files
            _log.warning("the log of pod %s cannot be read: %s; it is tried again", pod, error)
            raise _Broken from error

    async def _send(self, request: httpx2.Request) -> httpx2.Response:
        """Return the reply, whose body is still to be read.

        A request that is cancelled is given time to make its connection: httpcore2 2.16 leaves one open if it is
        cancelled during the TLS handshake.
        """
        import httpx2

        sending = asyncio.create_task(self._open().send(request, stream=True))
        try:
            return await asyncio.shield(sending)
        except asyncio.CancelledError:
            await asyncio.wait({sending}, timeout=STOP_S / 2)
            sending.cancel()
            (found,) = await asyncio.gather(sending, return_exceptions=True)
            if isinstance(found, httpx2.Response):
                await found.aclose()
            raise

    def _open(self) -> httpx2.AsyncClient:
        if self._client is None:
            import httpx2

            parameters = parameters_of(load_config(self._settings), self._settings.request_timeout_s)
            # Each running pod has a connection. With httpx's own limit of 100 the others would wait.
            limits = httpx2.Limits(max_connections=None, max_keepalive_connections=0)
            self._client = httpx2.AsyncClient(**parameters, limits=limits)
        return self._client


def _run(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.run_forever()
    finally:
        loop.close()


class _Gone(Exception):
    pass


class _Broken(Exception):
    pass


def epoch_of(stamp: str) -> float:
    """Parse a time in RFC 3339 with nanoseconds, as kubelet writes it. Raises ValueError."""
    return datetime.fromisoformat(stamp).timestamp()


def termination_message(pod: Plain) -> dict[str, Any] | None:
    """Return the controller's termination message, which is a JSON object; None if there is none."""
    for status in pod.get("status", {}).get("initContainerStatuses") or ():
        if status.get("name") == CONTROLLER:
            ended = status.get("state", {}).get("terminated") or status.get("lastState", {}).get("terminated") or {}
            with contextlib.suppress(ValueError):
                found = parse_json(str(ended.get("message") or ""))
                return found if isinstance(found, dict) else None
    return None
