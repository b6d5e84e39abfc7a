"""Accept as many connections as the descriptors permit, and a limited number from one address.

Each connection may need a second descriptor, for the user's daemon. Connections that are being opened (TLS) or refused
have their own share of descriptors; any more are closed immediately.
"""

from __future__ import annotations

import asyncio
import errno
import functools
import resource
import socket
import ssl
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import uvicorn

from ffdl_batch.daemon.connections import ConnectionLimits, PeerProtocol, most_connections
from ffdl_batch.daemon.quiet_server import QuietServer
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.host.users import read_credentials
from ffdl_batch.site.hub.callers import TrustedProxies
from ffdl_batch.site.spawner import is_subordinate

_LACKS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_PAUSE_S = 1.0
HANDSHAKE_S = 10.0
"""How long the handshake of TLS may take."""


@dataclass(frozen=True, slots=True)
class Shares:
    """Maximum numbers of connections. An open one needs two descriptors, one that is being opened needs one."""

    remote: int
    local: int
    opening: int
    """At each of the two sockets."""

    @classmethod
    def of(cls, descriptors: int) -> Shares:
        """Return the shares for a process with this limit of descriptors."""
        usable = most_connections(descriptors)
        return cls(remote=usable // 4, local=usable * 3 // 16, opening=usable // 16)

    @classmethod
    def of_process(cls) -> Shares:
        """Return the shares for this process."""
        return cls.of(resource.getrlimit(resource.RLIMIT_NOFILE)[0])


@functools.lru_cache(4096)
def _is_subordinate(uid: int | None, minute: int) -> bool:
    """Return whether this is one of the thousands of uids that a user has in user namespaces; none has a daemon."""
    del minute  # the file is read again then
    with suppress(OSError):
        return uid is not None and is_subordinate(uid)
    return False


class HubLimits(ConnectionLimits):
    """Limits each user and each address to a quarter of the connections. Trusted proxies, which connect for many
    clients, are limited only by the total."""

    def __init__(self, most: int, proxies: TrustedProxies) -> None:
        super().__init__(most, max(1, most // 4))
        self._proxies = proxies

    def refusal(self, connections: int, of_peer: int, name: str) -> str:
        """See the base class."""
        return super().refusal(connections, 0 if name.removeprefix("address ") in self._proxies else of_peer, name)


class HubServer(QuietServer):
    """A server that bounds connections before their protocol begins."""

    def __init__(self, config: uvicorn.Config, opening: int, proxies: TrustedProxies) -> None:
        super().__init__(config)
        self._most_opening, self._proxies = opening, proxies
        self._opening: Counter[str] = Counter()
        self._tasks: set[asyncio.Task[None]] = set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """See :class:`uvicorn.Server`."""
        await super().startup(sockets=[])
        for listening in sockets or ():
            self._start(self._accept(listening))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """See :class:`uvicorn.Server`."""
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await super().shutdown(sockets)

    def _start(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accept(self, listening: socket.socket) -> None:
        loop, protocol = asyncio.get_running_loop(), self.config.http_protocol_class
        assert isinstance(protocol, type) and issubclass(protocol, PeerProtocol)
        listening.setblocking(False)

        def create_protocol() -> asyncio.Protocol:
            return protocol(self.config, self.server_state, self.lifespan.state, loop)

        while True:
            try:
                connection, address = await loop.sock_accept(listening)
            except OSError as error:  # accept(2): errors of a connection that has gone, and a lack of descriptors
                if error.errno in _LACKS:
                    protocol.limits.on_exception(loop, {"message": "accept failed", "exception": error})
                    await asyncio.sleep(_PAUSE_S)
                continue
            uid = None if address else read_credentials(connection).uid
            name = str(address[0] if address else uid)
            if self._may_open(name, protocol.limits) and not _is_subordinate(uid, int(loop.time() // 60)):
                self._opening[name] += 1
                self._start(self._open(connection, name, create_protocol))
            else:
                connection.close()
            await asyncio.sleep(0)  # let other tasks run: sock_accept does not yield while connections wait

    def _may_open(self, name: str, limits: ConnectionLimits) -> bool:
        """Return whether one more connection may be opened. Those that are refused with an answer count, too."""
        opening = self._opening.total() + max(0, len(self.server_state.connections) - limits.most)
        is_bounded = self.config.ssl is not None and name not in self._proxies  # without TLS, opening does not wait
        share = max(1, self._most_opening // 4) if is_bounded else self._most_opening
        return opening < self._most_opening and self._opening[name] < share

    async def _open(self, connection: socket.socket, name: str, protocol: Callable[[], asyncio.Protocol]) -> None:
        try:
            with suppress(OSError, ssl.SSLError, TimeoutError):  # the caller's failures
                await asyncio.get_running_loop().connect_accepted_socket(
                    protocol,
                    connection,
                    ssl=self.config.ssl,
                    ssl_handshake_timeout=HANDSHAKE_S if self.config.ssl else None,
                )
        finally:
            self._opening[name] -= 1
            if not self._opening[name]:
                del self._opening[name]
