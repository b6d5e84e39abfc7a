"""A program in a pod by the API's ``pods/exec``: a WebSocket, with a channel for each stream.

Source: kubernetes/kubernetes, staging/src/k8s.io/apimachinery/pkg/util/remotecommand/constants.go: the first byte of a
message is its channel; the error channel has the Status of the end. v5 can close the input alone; with a server that
speaks v4 only (1.29) it closes with the connection.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ffdl_batch.domain.scheduler_errors import SchedulerUnreachable
from ffdl_kubernetes.attach.owner_streams import Own
from ffdl_kubernetes.client import refusal_of
from ffdl_kubernetes.objects.names import CONTROLLER

if TYPE_CHECKING:
    import httpx2
    from httpx2.websockets import AsyncWebSocketSession

V5, V4 = "v5.channel.k8s.io", "v4.channel.k8s.io"
STDIN, STDOUT, STDERR, ERROR = 0, 1, 2, 3
CLOSE_STDIN = bytes((255, STDIN))
MESSAGE_BYTES = 1 << 20
"""The longest that is taken; servers send 32 KiB."""
LEAVE_S = 12.0
"""How long processes in the pod may take to end after the command ended: the helper ends all that it started."""
TRIES, PAUSE_S = 4, 1.0
BUSY = frozenset({429, 502, 503, 504})


class NotStarted(Exception):
    """The program did not run there; the message has the server's, kubelet's or the runtime's word."""


async def execute(client: httpx2.AsyncClient, namespace: str, pod: str, program: Sequence[str], own: Own) -> int:
    """Run it in the container of the pod's controller with the streams of `own`; its exit status.

    Raises Refused where the server does not let it begin, NotStarted, SchedulerUnreachable, OwnerGone.
    """
    import httpx2
    from httpx2.websockets import HTTPXWSException, WebSocketUpgradeError

    path = f"api/v1/namespaces/{namespace}/pods/{pod}/exec"
    query = {"container": CONTROLLER, "stdin": "true", "stdout": "true", "stderr": "true", "command": list(program)}
    for attempt in range(1, TRIES + 1):
        try:
            async with client.websocket(
                path, params=query, subprotocols=[V5, V4], max_message_size_bytes=MESSAGE_BYTES,
                keepalive_ping_interval_seconds=None,  # owner and helper exchange pings of their own
            ) as session:  # fmt: skip
                outcome = await _Execution(session, own).run()
            break
        except WebSocketUpgradeError as error:
            refused = refusal_of(error.response)
            if refused.status not in BUSY or attempt == TRIES:
                raise refused from error
        except (httpx2.HTTPError, HTTPXWSException) as error:
            raise unreachable(client, error) from error
        await asyncio.sleep(PAUSE_S * attempt)
    if isinstance(outcome, BaseException):
        raise outcome
    return outcome


def unreachable(client: httpx2.AsyncClient, error: Exception) -> SchedulerUnreachable:
    """Return the error of a request that the API server did not answer."""
    server = str(client.base_url).rstrip("/")
    return SchedulerUnreachable(f"the API server {server} cannot be reached: {str(error) or type(error).__name__}")


class _Execution:
    def __init__(self, session: AsyncWebSocketSession, own: Own) -> None:
        self._session, self._own = session, own

    async def run(self) -> int | BaseException:
        """Return the exit status, or the exception that ended the session. It is returned because a session would raise
        it in a group."""
        sending, receiving = asyncio.ensure_future(self._send()), asyncio.ensure_future(self._receive())
        try:
            await asyncio.wait({sending, receiving}, return_when=asyncio.FIRST_COMPLETED)
            if not receiving.done() and self._session.subprotocol == V5:
                await asyncio.wait({receiving}, timeout=LEAVE_S)
        finally:
            for task in (sending, receiving):
                task.cancel()
            _, outcome = await asyncio.gather(sending, receiving, return_exceptions=True)
        return 0 if isinstance(outcome, asyncio.CancelledError) else outcome

    async def _send(self) -> None:
        """Send the owner's input until the owner has gone. A broken connection ends this, too."""
        from httpx2.websockets import HTTPXWSException

        data = self._own.given
        try:
            while data:
                await self._session.send_bytes(bytes((STDIN,)) + data)
                data = await self._own.read()
            if self._session.subprotocol == V5:
                await self._session.send_bytes(CLOSE_STDIN)
        except HTTPXWSException:
            return

    async def _receive(self) -> int:
        """Pass the output on and return the status at the end. Raises NotStarted, OwnerGone, SchedulerUnreachable."""
        from httpx2.websockets import HTTPXWSException, WebSocketDisconnect

        while True:
            try:
                message = await self._session.receive_bytes()
            except WebSocketDisconnect as error:
                raise SchedulerUnreachable(f"the connection to the pod ended: {error.reason or error.code}") from error
            except HTTPXWSException as error:
                raise SchedulerUnreachable("the connection to the pod broke off") from error
            channel, data = message[0], message[1:]
            if channel == STDOUT and data:
                await self._own.write(data)
            elif channel == STDERR:
                sys.stderr.buffer.write(data)
                sys.stderr.buffer.flush()
            elif channel == ERROR and data:
                return exit_status(json.loads(data))


def exit_status(status: dict[str, Any]) -> int:
    """Return the exit status in the Status at the end of a program (kubelet: cri/streaming/remotecommand). Raises
    NotStarted."""
    if status.get("status") == "Success":
        return 0
    if status.get("reason") == "NonZeroExitCode":
        for cause in (status.get("details") or {}).get("causes") or ():
            if cause.get("reason") == "ExitCode" and str(cause.get("message", "")).isdigit():
                return int(cause["message"])
    raise NotStarted(str(status.get("message", "")) or f"the server says {status.get('reason', 'nothing')}")
