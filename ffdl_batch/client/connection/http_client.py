"""HTTP over a connected socket, and the JSON of the API.

There is one keep-alive connection. If it breaks before the answer, the request is sent again on a new one. That is safe
for every request: submissions have a key, the others are idempotent.
"""

from __future__ import annotations

import json
import math
import os
import select
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import field, replace
from http import HTTPStatus
from typing import IO, Any, Protocol

from ffdl_batch import __version__
from ffdl_batch.client.connection.http_reply import Reply, send_request
from ffdl_batch.client.errors import ClientError, DaemonUnreachable, NotAllowed, OtherSchema, RequestRefused, UnknownJob
from ffdl_batch.domain.codec import CodecError, from_plain
from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.domain.job.views import SCHEMA, Problem
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.host.users import read_credentials

REQUEST_TIMEOUT_S = 120.0
"""For an ordinary request: a plan may query a slow scheduler about its nodes."""
FIRST_BYTE_S = 10.0
"""Time without an answer after which the wait is reported."""
_POLL_MARGIN_S = 30.0
"""Maximum time for an answer after the daemon stops holding it back."""
STREAM_SILENCE_S = 90.0
"""The daemon sends blank lines. A stream that is silent for this time counts as broken."""
_TRIES = 3
_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 30.0
"""Seconds before the first and the later repetitions of a request that waits for a job."""


@dataclass(frozen=True, slots=True)
class HubLogin:
    """What each request to a hub has in its headers."""

    url: str
    """The hub's address, for messages."""
    netloc: str
    """Its host and port."""
    token: str = field(repr=False)


class Channel(Protocol):
    """A connection to a daemon: a socket, and what must be closed with it."""

    @property
    def login(self) -> HubLogin | None:
        """The login if a hub is at the other end."""
        ...

    @property
    def connection(self) -> socket.socket:
        """The connected socket."""
        ...

    def close(self) -> None:
        """Close the connection and what carries it."""
        ...


@dataclass(frozen=True, slots=True)
class DirectChannel:
    """A connection to the daemon's own socket."""

    connection: socket.socket
    login: HubLogin | None = None

    def close(self) -> None:
        """See :class:`Channel`. It closes the socket even if an interrupted command still holds a reply."""
        number = self.connection.detach()
        if number != -1:
            os.close(number)


@dataclass(frozen=True, slots=True)
class Request:
    """One request."""

    method: str
    path: str
    body: bytes | IO[bytes] | None = None
    body_size: int = 0
    """The size of the body in bytes."""
    content_type: str = "application/json"
    job_id: str = ""
    """The job for the message if the answer is 404."""
    timeout_s: float = REQUEST_TIMEOUT_S
    held_s: float | None = None
    """How long the daemon may hold back its answer until there is news; None if it answers at once."""

    @property
    def longest_s(self) -> float:
        """Maximum time to wait for an answer."""
        return self.timeout_s if self.held_s is None else self.held_s + _POLL_MARGIN_S


def json_request(method: str, path: str, plain: object) -> Request:
    """Return a request with a JSON body."""
    body = json.dumps(plain, separators=(",", ":")).encode("ascii")
    return Request(method, path, body, len(body))


class Wire:
    """Sends requests over a channel that `connect` opens. Not safe for several threads at once.

    `report` gets a line if the daemon is slow to answer. `prefix` is put before the path of each request.
    """

    def __init__(
        self, connect: Callable[[], Channel], report: Callable[[str], None] = lambda _: None, prefix: str = ""
    ) -> None:
        self.outages: Sequence[Any] = ()
        """The backends that did not answer, according to the last reply about backends."""
        self.database_outage: Mapping[str, Any] | None = None
        """The outage of the database in the same reply."""
        self._connect, self._report, self._prefix = connect, report, prefix
        self._channel: Channel | None = None
        self._login: HubLogin | None = None
        self._is_interrupted = False

    def __del__(self) -> None:
        """Close the connection of a client that is dropped without `close`."""
        self.close()

    def close(self) -> None:
        """Close the connection; the next request opens another."""
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()

    def interrupt(self) -> None:
        """Make the request that another thread waits for fail, and all later requests. Any thread may call this."""
        self._is_interrupted = True
        channel = self._channel
        if channel is not None:
            with suppress(OSError):
                channel.connection.shutdown(socket.SHUT_RDWR)

    def ask(self, request: Request) -> Mapping[str, Any]:
        """Return the JSON reply. Raises :class:`ClientError` for a refusal."""
        response = self._send(request)
        body = self._read_whole(response)
        if response.status >= HTTPStatus.BAD_REQUEST:
            raise refusal(response.status, body, request, self._login)
        reply = _decode_reply(body, request)
        if "outages" in reply:
            self.outages, self.database_outage = reply["outages"], reply.get("database_outage")
        return reply

    def ask_until(self, request: Request, deadline: float | None) -> Mapping[str, Any]:
        """Send the request as :meth:`ask` does, repeatedly while the daemon does not answer. `deadline` is in monotonic
        time (None = no limit). Raises :class:`ClientError` at the deadline, and if another try cannot help."""
        pause_s, is_reported = _PAUSE_S, False
        while True:
            left_s = math.inf if deadline is None else deadline - time.monotonic()
            try:
                return self.ask(request)
            except (DaemonUnreachable, RequestRefused) as error:
                if error.problem.exit_code != ExitCode.TRY_AGAIN or left_s <= 0:
                    raise
                if not is_reported:
                    self._report(f"{error}; trying again until the daemon answers")
                is_reported = True
            time.sleep(min(pause_s, left_s))
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def ask_status(self, request: Request) -> int:
        """Return the status of a HEAD request, also 404."""
        response = self._send(request)
        body = self._read_whole(response)
        if response.status >= HTTPStatus.BAD_REQUEST and response.status != HTTPStatus.NOT_FOUND:
            raise refusal(response.status, body, request, self._login)
        return response.status

    def stream(self, request: Request) -> Iterator[bytes]:
        """Yield the lines of an NDJSON reply, without blank ones. Raises ConnectionError if it is incomplete."""
        return self._streamed(request, _lines)

    def pieces(self, request: Request) -> Iterator[bytes]:
        """Yield the bytes of a reply as they arrive. Raises ConnectionError if it is incomplete."""
        return self._streamed(request, Reply.pieces)

    @property
    def is_through_hub(self) -> bool:
        """Whether the last request went through a hub."""
        return self._login is not None

    def upgrade(self, request: Request, protocol: str) -> Channel:
        """Open a separate connection, and have the daemon switch it to `protocol`. The daemon sends nothing before it
        has received something. Raises :class:`ClientError`."""
        channel = self._connect()
        try:
            channel.connection.settimeout(request.longest_s)
            headers = _headers(request, channel.login) | {"Connection": "Upgrade", "Upgrade": protocol}
            send_request(channel.connection, request.method, self._prefix + request.path, headers)
            response = Reply(channel.connection)
            if response.status == HTTPStatus.SWITCHING_PROTOCOLS:
                return channel
            raise refusal(response.status, response.read(), request, channel.login)
        except OSError as error:
            channel.close()
            why = str(error) or type(error).__name__
            raise DaemonUnreachable(f"the daemon did not answer {request.path}: {why}", "try again") from error
        except BaseException:
            channel.close()
            raise

    def _streamed(self, request: Request, read: Callable[[Reply], Iterator[bytes]]) -> Iterator[bytes]:
        response = self._send(request)
        if response.status >= HTTPStatus.BAD_REQUEST:
            raise refusal(response.status, self._read_whole(response), request, self._login)
        whole = False
        try:
            yield from read(response)
            whole = True
        except OSError as error:
            raise ConnectionError(f"the stream broke off: {error}") from error
        finally:
            if not whole:  # the rest of this reply would be read as the next one
                self.close()

    def _send(self, request: Request) -> Reply:
        for attempt in range(1, _TRIES + 1):
            connected = self._open()
            try:
                return self._send_once(connected, request)
            except OSError as error:
                self.close()
                # The daemon may have stopped since the last request, or be stopping now: dial again, which starts one.
                if attempt == _TRIES or isinstance(error, TimeoutError):
                    why = str(error) or type(error).__name__
                    raise DaemonUnreachable(
                        f"the daemon did not answer {request.method} {request.path}: {why}",
                        "try again; to see whether it hangs: ffdl daemon status; to end it: ffdl daemon stop",
                    ) from error
        raise AssertionError("unreachable: the last attempt returns or raises")

    def _open(self) -> socket.socket:
        if self._channel is None and not self._is_interrupted:
            self._channel = self._connect()
            self._login = self._channel.login
        if self._channel is None or self._is_interrupted:
            self.close()
            raise DaemonUnreachable("the call was cancelled", exit_code=ExitCode.INTERRUPTED)
        return self._channel.connection

    def _send_once(self, connected: socket.socket, request: Request) -> Reply:
        if request.body is not None and not isinstance(request.body, bytes):
            request.body.seek(0)
        connected.settimeout(request.longest_s)
        try:
            send_request(
                connected, request.method, self._prefix + request.path, _headers(request, self._login), request.body
            )
        except (BrokenPipeError, ConnectionResetError):
            # The daemon may refuse an upload before it has read all of it: its answer is then waiting.
            if isinstance(request.body, bytes) or request.body is None:
                raise
        self._await_answer(connected, request)
        return Reply(connected, has_body=request.method != "HEAD")

    def _await_answer(self, connected: socket.socket, request: Request) -> None:
        """Wait for the answer, and report a long wait."""
        patience_s, longest_s = (request.held_s or 0.0) + FIRST_BYTE_S, request.longest_s
        if patience_s >= longest_s or _is_readable(connected, patience_s):
            return
        waits = f"has not answered for {patience_s:g} s (it may be waiting for its scheduler)"
        self._report(f"{_name_daemon(connected)} {waits}; waiting up to {longest_s:g} s")
        connected.settimeout(longest_s - patience_s)

    def _read_whole(self, response: Reply) -> bytes:
        try:
            body = response.read()
        except OSError as error:
            self.close()
            raise DaemonUnreachable(f"the daemon's answer broke off: {error}", "try again") from error
        if response.will_close:
            self.close()
        return body


def _headers(request: Request, login: HubLogin | None) -> dict[str, str]:
    headers = {
        "Host": "ffdl" if login is None else login.netloc,
        "User-Agent": f"ffdl-client/{__version__}",
        "Accept": "application/json, application/x-ndjson",
        "Accept-Encoding": "identity",
    }
    if request.body is not None:
        headers |= {"Content-Type": request.content_type, "Content-Length": str(request.body_size)}
    elif request.method in ("POST", "PUT"):
        headers["Content-Length"] = "0"
    if login is not None and login.token:  # none while the user logs in
        headers["Authorization"] = f"Bearer {login.token}"
    return headers


def _is_readable(connected: socket.socket, patience_s: float) -> bool:
    """Return whether there is data, or the end, within `patience_s`. Not by select(2), which limits descriptors."""
    poll = select.poll()
    poll.register(connected, select.POLLIN)
    return bool(poll.poll(patience_s * 1000))


def _name_daemon(connected: socket.socket) -> str:
    """Name the process that listens. At the other end of a relay, that is this process."""
    pid = read_credentials(connected).pid
    return f"the daemon (process {pid})" if pid not in (0, os.getpid()) else "the daemon"


def _lines(response: Reply) -> Iterator[bytes]:
    rest = b""
    for part in response.pieces():
        *lines, rest = (rest + part).split(b"\n")
        yield from (line for line in lines if line.strip())
    if rest.strip():
        yield rest


def _decode_reply(body: bytes, request: Request) -> Mapping[str, Any]:
    try:
        reply = json.loads(body) if body else {"schema": SCHEMA}
    except ValueError as error:
        raise _unreadable(request, str(error)) from error
    if not isinstance(reply, dict):
        raise _unreadable(request, "it is not a mapping")
    if reply.get("schema", SCHEMA) != SCHEMA:
        raise OtherSchema(
            Problem(
                "S106",
                f"the daemon answers in schema {reply['schema']}, this client reads schema {SCHEMA}",
                int(ExitCode.UNAVAILABLE),
                "use the release that the daemon was started from, or stop the daemon and submit again",
            )
        )
    return reply


def _unreadable(request: Request, why: str) -> ClientError:
    return RequestRefused(
        Problem("S106", f"the daemon's answer to {request.method} {request.path} cannot be read: {why}", 1)
    )


def refusal(status: int, body: bytes, request: Request, login: HubLogin | None = None) -> ClientError:
    """Return the exception for an error reply. A reply without a Problem gets one with its status. `login` is the login
    of the hub that was asked."""
    try:
        reply = json.loads(body)
        problem = from_plain(Problem, reply["problem"])
    except (ValueError, KeyError, TypeError, CodecError):
        problem = _problem_of_status(status, body, request)
    if status == HTTPStatus.UNAUTHORIZED and login is not None:
        cure = f"log in again: ffdl login {login.url}"
        return NotAllowed(replace(problem, exit_code=int(ExitCode.NOT_ALLOWED), cure=cure))
    if status == HTTPStatus.FORBIDDEN:
        return NotAllowed(problem)
    if status == HTTPStatus.NOT_FOUND and request.job_id:
        return UnknownJob(problem)
    return RequestRefused(problem)


def _problem_of_status(status: int, body: bytes, request: Request) -> Problem:
    codes: dict[int, ExitCode] = {
        HTTPStatus.UNAUTHORIZED: ExitCode.NOT_ALLOWED,
        HTTPStatus.FORBIDDEN: ExitCode.NOT_ALLOWED,
        HTTPStatus.SERVICE_UNAVAILABLE: ExitCode.TRY_AGAIN,
        HTTPStatus.NOT_FOUND: ExitCode.FAILED,
    }
    said = body[:200].decode("utf-8", "replace").strip()
    message = f"the daemon answered {request.method} {request.path} with status {status}" + (
        f": {said}" if said else ""
    )
    if status == HTTPStatus.NOT_FOUND and request.job_id:
        message = f"there is no job {request.job_id}"
    cure = ""
    if status == HTTPStatus.UNAUTHORIZED:
        message = "the token was not accepted: it has expired or was revoked"
    elif status == HTTPStatus.FORBIDDEN:
        cure = "if the token lacks the scope, create another one: ffdl token create"
    return Problem("S106", message, int(codes.get(status, ExitCode.FAILED)), cure)
