"""Limits connections, in total and per user, and identifies each caller by the socket's credentials from the kernel.

Without a limit, idle clients would use all file descriptors, and the loops could not open files. A refusal is logged
once. SO_PEERCRED (socket(7), unix(7)) is read when the connection is made and stored in the ASGI scope of each request,
which no header, path or body can change. :mod:`.peer_gate` decides who is admitted.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
import resource
import select
import time
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, cast

from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from ffdl_batch.daemon.replies import raw_problem_reply
from ffdl_batch.daemon.upgrades import RawStream, Upgrade, with_upgrade
from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.domain.job.views import Problem
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.host.users import read_credentials
from ffdl_batch.services.os_errors import explain

KEPT = 192
"""Descriptors that are reserved for files, pipes of commands, and the database."""
LOG_AGAIN_S = 60.0
REFUSAL_S = 1.0
"""How long a refused client may take to read the reply."""
_RETRY = "Exception in callback BaseSelectorEventLoop._start_serving"


def most_connections(descriptors: int) -> int:
    """Return the maximum number of connections for a process with this limit of descriptors."""
    return descriptors - min(KEPT, descriptors // 2)


class ConnectionLimits:
    """Holds the limits of connections, and logs refusals at a limited rate."""

    def __init__(self, most: int | None = None, most_of_user: int | None = None) -> None:
        """Without `most`, the limit follows from the limit of descriptors. A user may have three quarters of it."""
        self.most = most_connections(resource.getrlimit(resource.RLIMIT_NOFILE)[0]) if most is None else most
        self.most_of_user = self.most - self.most // 4 if most_of_user is None else most_of_user
        self._logged_at = float("-inf")

    def refusal(self, connections: int, of_peer: int, name: str) -> str:
        """Return why the peer `name`, who has `of_peer` of the open connections, is refused another one; "" if it is
        allowed."""
        if connections >= self.most:
            reason = f"the daemon has {self.most} open connections, which is its limit"
        elif of_peer >= self.most_of_user:
            reason = f"{name} has {of_peer} open connections to the daemon, which is the limit per user"
        else:
            return ""
        self._log(reason, OSError(errno.EMFILE, ""))
        return reason

    def refuse(self, transport: asyncio.Transport, reason: str) -> None:
        """Send `reason` as the answer before any request, and close the connection."""
        cure = "try again; end some of its clients, or raise its limit of open files (ulimit -n, LimitNOFILE=)"
        transport.write(raw_problem_reply(Problem("S210", reason, ExitCode.TRY_AGAIN, cure), 503))
        asyncio.get_running_loop().call_later(REFUSAL_S, transport.abort)

    def on_exception(self, loop: asyncio.AbstractEventLoop, context: Mapping[str, Any]) -> None:
        """Handle exceptions that asyncio reports because nothing else handled them.

        If accept finds no free descriptor, asyncio reports it once for each entry of the backlog, and tries again as
        often.
        """
        error = context.get("exception")
        if isinstance(error, MemoryError):
            gc.collect()  # the traceback keeps the data of a failed request in reference cycles
            self._log("a connection was dropped", OSError(errno.ENOMEM, ""))
            return
        if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
            self._log("no connection can be accepted now; the daemon tries again every second", error)
        elif not (isinstance(error, ValueError) and str(context.get("message", "")).startswith(_RETRY)):
            loop.default_exception_handler(dict(context))  # the other case is a retry after the socket was closed

    def _log(self, what: str, error: OSError) -> None:
        if time.monotonic() - self._logged_at >= LOG_AGAIN_S:
            self._logged_at = time.monotonic()
            log.warning("%s: %s", what, explain(error, ""))


log = logging.getLogger(__name__)

MAX_HEAD_BYTES = 64 * 1024
"""Maximum size of the request line with all headers. Trailers and chunk extensions count as well."""
HEAD_S = 60.0
"""Maximum time to receive the head of a request, from connecting or from the first byte after a reply."""
_PEER = "ffdl.peer"
_OF_BODY = (b"content-length", b"transfer-encoding")


@dataclass(frozen=True, slots=True)
class Peer:
    """The process that connected, at that time. `abort` drops the connection immediately."""

    pid: int
    uid: int
    abort: Callable[[], None]
    address: str = ""
    """The address of a peer over TCP, whose pid and uid are 0 and -1."""

    @property
    def is_local(self) -> bool:
        """Whether the kernel identified the peer's user."""
        return not self.address

    @property
    def name(self) -> str:
        """The peer in messages."""
        return f"user {self.uid}" if self.is_local else f"address {self.address}"


def with_peer(scope: Scope, peer: Peer) -> None:
    """Store the peer in a request's scope."""
    scope["extensions"] = {_PEER: peer}


def peer_of(scope: Scope) -> Peer | None:
    """Return the peer that :func:`with_peer` stored; None if there is none."""
    found = scope.get("extensions", {}).get(_PEER)
    return found if isinstance(found, Peer) else None


class PeerProtocol(HttpToolsProtocol):
    """uvicorn's HTTP/1.1 protocol, which also knows its peer, limits request heads and keeps half-closed connections.

    uvicorn's httptools protocol limits neither the size of a head nor its time (`h11_max_incomplete_event_size` is
    for h11, and `timeout_keep_alive` ends with the first byte of a request).
    """

    peer: Peer
    limits: ClassVar[ConnectionLimits] = ConnectionLimits()
    _unparsed = 0
    """Bytes since the parser last completed a head, a piece of a body or a request."""
    _in_body = False
    _head_timer: asyncio.TimerHandle | None = None
    _raw: RawStream | None = None
    """The connection after an upgrade."""

    @property
    def is_answering(self) -> bool:
        """Whether a request was received that is not answered yet."""
        return self.cycle is not None and not self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in the base class
        """Identify the peer; refuse the connection if a limit is reached."""
        self.peer = self.identify(transport)
        name = self.peer.name
        of_peer = sum(one.peer.name == name for one in self.connections if isinstance(one, PeerProtocol))
        refusal = self.limits.refusal(len(self.connections), of_peer, name)
        super().connection_made(transport)
        if refusal:
            transport.pause_reading()
            self.limits.refuse(transport, refusal)
        else:
            self._limit_head_time()

    def identify(self, transport: asyncio.Transport) -> Peer:
        """Return the peer, as the kernel reports it."""
        pid, uid, _ = read_credentials(transport.get_extra_info("socket"))
        return Peer(pid, uid, transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timer of the request head; end an upgraded stream."""
        self._unlimit_head_time()
        if self._raw is not None:
            self._raw.feed_end()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Pass data to the parser in pieces; refuse a request head that is too large."""
        if self._raw is not None:
            self._raw.feed(data)
            return
        if not self._in_body and (self.cycle is None or self.cycle.response_complete):
            self._limit_head_time()
        while data:
            room = MAX_HEAD_BYTES - self._unparsed
            piece, data = data[:room], data[room:]
            self._unparsed += len(piece)
            super().data_received(piece)
            if self.transport.is_closing():
                return
            if self._unparsed >= MAX_HEAD_BYTES:
                self._refuse(431, f"the head of the request is larger than {MAX_HEAD_BYTES // 1024} KiB")
                return

    def on_message_begin(self) -> None:
        """Store the peer in the scope of the request."""
        super().on_message_begin()
        with_peer(cast(Scope, self.scope), self.peer)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Drop trailers, which uvicorn would add to the headers of the request."""
        if not self._in_body:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """End the limits of the request head; offer the upgrade that the request asks for."""
        if self.is_answering:
            raise ValueError("pipelined requests would be queued without limit; this is answered with 400")
        self._unparsed, self._in_body = 0, True
        self._unlimit_head_time()
        if self.parser.should_upgrade() and any(name in _OF_BODY for name, _ in self.headers):
            raise ValueError("httptools would take the body for the next request; this is answered with 400")
        if self.parser.get_method() == b"GET" and (protocol := self._get_upgrade()):
            with_upgrade(cast(Scope, self.scope), Upgrade(protocol.decode("latin-1"), self._start_stream))
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Count the piece of the body as parsed."""
        self._unparsed = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Prepare the limits of the next request head."""
        self._unparsed, self._in_body = 0, False
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Limit the time for the rest of a body whose request is answered, and for the head that follows it."""
        super().on_response_complete()
        if self._in_body and not self.transport.is_closing():
            self._limit_head_time()

    def send_400_response(self, msg: str) -> None:
        """Answer a request that the parser refuses, in the common form of errors."""
        del msg  # all errors of the parser get the same message
        self._refuse(400, "the request is not valid HTTP/1.1")

    def shutdown(self) -> None:
        """End an upgraded stream at the end of the server, which waits until it is closed."""
        super().shutdown()
        if self._raw is not None:
            self._raw.feed_end()

    def _start_stream(self) -> RawStream:
        self._raw = RawStream(self.transport, self.flow, self.cycle)
        return self._raw

    def _should_upgrade(self) -> bool:
        """Return False: the application accepts upgrades, and answers other requests as if they asked for none."""
        return False

    def _unsupported_upgrade_warning(self) -> None:
        """Do nothing: see :meth:`_should_upgrade`."""

    def _limit_head_time(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_S, self._on_late_head)

    def _unlimit_head_time(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _on_late_head(self) -> None:
        if self._unparsed:
            self._refuse(408, f"the head of the request was not complete after {HEAD_S:g} s")
        else:
            self.transport.close()

    def _refuse(self, status: int, message: str) -> None:
        self.transport.write(raw_problem_reply(Problem("C101", message, ExitCode.USAGE), status))
        self.transport.close()

    def eof_received(self) -> bool:  # type: ignore[override]  # asyncio.Protocol says bool | None, uvicorn None
        """Keep a connection whose peer has only finished sending (a relay passes a half-close on) until it is answered.

        A peer that closed altogether shows as POLLHUP on a Unix stream socket.
        """
        if self._raw is not None:
            self._raw.feed_end()
            return True  # what was written is still sent
        if not self.is_answering or self._is_hung_up():
            return False
        self.cycle.keep_alive = False
        return True

    def _is_hung_up(self) -> bool:
        poll = select.poll()
        poll.register(self.transport.get_extra_info("socket").fileno(), 0)
        return any(events & select.POLLHUP for _, events in poll.poll(0))
