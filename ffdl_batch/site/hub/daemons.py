"""Connect to a user's daemon. If it does not run, ask the spawner to start it."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from pathlib import Path

from starlette.types import Receive, Scope, Send

from ffdl_batch.client.connection.site_daemon import ask_spawner
from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.domain.job.views import Problem
from ffdl_batch.host.backoff import growing_pause
from ffdl_batch.host.users import read_credentials
from ffdl_batch.services.refusals import Refused
from ffdl_batch.site.hub.proxy import Body, NotAnswered, forward

TRIES = 2
START_S = 60.0
"""Time in which a daemon must accept a connection."""


def unavailable(message: str, cure: str = "try again") -> Refused:
    """Return the error for a daemon that cannot be reached now."""
    return Refused(Problem("S210", message, ExitCode.TRY_AGAIN, cure), 503)


class Daemons:
    """The daemons below a directory of the spawner. Use it in one event loop."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._asking: dict[int, asyncio.Task[tuple[str, str]]] = {}

    async def connect(self, uid: int) -> socket.socket:
        """Return a connection to the user's daemon. The kernel confirms that this user listens. Raises Refused."""
        place = self._run_dir / "users" / str(uid) / "daemon.sock"
        deadline = asyncio.get_running_loop().time() + START_S
        attempt = 0
        while True:
            attempt += 1
            why = ""
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                connection.setblocking(False)
                failure = connection.connect_ex(os.fspath(place))
                if failure == 0:
                    return self._checked(connection, uid)
            except BaseException:
                connection.close()
                raise
            connection.close()
            if failure in (errno.ENOENT, errno.ECONNREFUSED):
                why = await self._ensure(uid)
            elif failure != errno.EAGAIN:  # EAGAIN: its backlog is full
                why = os.strerror(failure)
            if asyncio.get_running_loop().time() >= deadline:
                raise unavailable(f"the daemon of user {uid} does not answer" + (f": {why}" if why else ""))
            if why or failure == errno.EAGAIN:
                await asyncio.sleep(growing_pause(attempt, 0.05, 2.0))

    async def admit(self, uid: int) -> None:
        """Have the spawner check the account, also if the daemon runs: it may have been locked since it was started.
        Raises Refused."""
        deadline = asyncio.get_running_loop().time() + START_S
        attempt = 0
        while why := await self._ensure(uid):
            if asyncio.get_running_loop().time() >= deadline:
                raise unavailable(f"the account of user {uid} cannot be checked: {why}")
            attempt += 1
            await asyncio.sleep(growing_pause(attempt, 0.05, 2.0))

    async def forward(self, uid: int, scope: Scope, receive: Receive, send: Send, head: bytes) -> int:
        """Pass a request on to the user's daemon; return the status of the answer. Raises Refused, CallerGone,
        AnswerBroken. If a daemon ends before it answers, the request is sent to the next one."""
        body = Body(receive)
        for _ in range(TRIES):
            try:
                return await forward(scope, body.receiver(), send, await self.connect(uid), head)
            except NotAnswered as error:
                why = str(error)
                if not body.is_kept:
                    break
        raise unavailable(f"the daemon of user {uid} did not answer: {why}")

    def _checked(self, connection: socket.socket, uid: int) -> socket.socket:
        """Return the connection if `uid` listens: a user may pass the socket on to another user. Raises Refused."""
        if (found := read_credentials(connection).uid) != uid:
            connection.close()
            raise Refused(
                Problem("C101", f"user {found} listens at the socket of user {uid}", ExitCode.NOT_ALLOWED), 403
            )
        return connection

    async def _ensure(self, uid: int) -> str:
        """Ask the spawner once for all waiting requests of the user. Return why to ask it again, or ""."""
        if uid not in self._asking:
            task = asyncio.ensure_future(asyncio.to_thread(ask_spawner, self._run_dir / "spawner.sock", uid))
            self._asking[uid] = task
            task.add_done_callback(lambda _: self._asking.pop(uid, None))
        kind, rest = await asyncio.shield(self._asking[uid])
        if kind == "refused":
            raise Refused(Problem("C101", f"the spawner refuses user {uid}: {rest}", ExitCode.NOT_ALLOWED), 403)
        return "" if kind == "ok" else rest
