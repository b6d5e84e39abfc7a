"""uvicorn's server without its own signals, timers and log lines. Daemon and hub use it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from typing import Any

import uvicorn

from ffdl_batch.daemon.connections import PeerProtocol

FINISH_S = 10
"""How long requests may still run when the server stops."""
KEEP_ALIVE_S = 15


def uvicorn_config(
    app: object, protocol: type[PeerProtocol] = PeerProtocol, *, finish_s: int = FINISH_S, **more: Any
) -> uvicorn.Config:
    """Return the configuration of a server that runs `app`; `more` are further options of uvicorn. When it stops,
    requests may still run for `finish_s` seconds."""
    return uvicorn.Config(
        app,  # type: ignore[arg-type]  # an ASGI application; uvicorn's alias is its own
        http=protocol,
        ws="none",
        loop="asyncio",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        date_header=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=finish_s,
        **more,
    )


class QuietServer(uvicorn.Server):
    """uvicorn's server without signal handlers; it can listen on further sockets."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._ended = asyncio.Event()

    def end(self) -> None:
        """Stop serving; return at once. Call in the event loop."""
        self.should_exit = True
        self._ended.set()

    async def main_loop(self) -> None:
        """Wait for :meth:`end`. uvicorn's own method wakes up ten times a second."""
        await self.on_tick(0)
        await self._ended.wait()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Do nothing. uvicorn would raise the signal again at the end, and the process exits with status 0."""
        yield

    async def listen(self, listening: socket.socket) -> None:
        """Accept connections on one more socket."""
        loop = asyncio.get_running_loop()
        protocol = self.config.http_protocol_class

        def create_protocol() -> asyncio.Protocol:
            return protocol(self.config, self.server_state, self.lifespan.state, loop)  # type: ignore[call-arg]

        self.servers.append(await loop.create_server(create_protocol, sock=listening))
