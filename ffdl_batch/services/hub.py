"""Registers tokens at the site's hub, which passes requests with them on to this daemon. It gets ids, never secrets."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException

from ffdl_batch.host.users import read_credentials

PATIENCE_S = 5.0
"""Maximum time for each step of a request to the hub."""
USUAL_SOCKET = "/run/ffdl-hub/hub.sock"
_PATH = "/api/site/v1/tokens/"
_REPLY_BYTES = 64 * 1024


class HubUnavailable(Exception):
    """The hub does not answer, or not now; the text says why."""


class HubRefused(Exception):
    """The hub refuses a token; its text is the hub's."""


@dataclass(frozen=True, slots=True)
class Hub:
    """The hub of the site, as the spawner names it in the daemon's environment."""

    uid: int
    socket: str
    """Where it listens."""

    def register(self, token_id: str, expires_at: float) -> None:
        """Let the hub accept this token until it expires. Raises :class:`HubUnavailable`, :class:`HubRefused`."""
        self._ask("PUT", token_id, json.dumps({"expires_at": expires_at}))

    def forget(self, token_id: str) -> None:
        """Let the hub refuse this token. Raises :class:`HubUnavailable`, :class:`HubRefused`."""
        self._ask("DELETE", token_id)

    def _ask(self, method: str, token_id: str, body: str | None = None) -> None:
        connection = _Connection(self)
        try:
            headers = {"Content-Type": "application/json"} if body is not None else {}
            connection.request(method, _PATH + token_id, body, headers)
            response = connection.getresponse()
            status, reply = response.status, response.read(_REPLY_BYTES)
        except (OSError, HTTPException) as error:
            why = str(error) or type(error).__name__
            raise HubUnavailable(f"the hub does not answer at {self.socket}: {why}") from error
        finally:
            connection.close()
        if 400 <= status < 500 and status != HTTPStatus.TOO_MANY_REQUESTS:
            raise HubRefused(_message(reply) or f"status {status}")
        if not 200 <= status < 300:
            raise HubUnavailable(f"the hub answered with status {status}")


def hub_of(environ: Mapping[str, str]) -> Hub | None:
    """Return the hub that the spawner names; None if it names none. FFDL_HUB_SOCKET is for another place than usual."""
    uid = environ.get("FFDL_HUB_UID", "")
    socket_path = environ.get("FFDL_HUB_SOCKET") or USUAL_SOCKET
    return Hub(int(uid), socket_path) if uid.isascii() and uid.isdecimal() else None


def _message(reply: bytes) -> str:
    """Return the message of an error reply, "" if it has another form."""
    try:
        return str(json.loads(reply)["problem"]["message"])
    except (ValueError, TypeError, KeyError, RecursionError):
        return ""


class _Connection(HTTPConnection):
    """A connection to the hub's socket. The kernel says which user listens there."""

    def __init__(self, hub: Hub) -> None:
        super().__init__("hub", timeout=PATIENCE_S)
        self._hub = hub

    def connect(self) -> None:
        """Connect. Raises OSError, also if another user listens."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(PATIENCE_S)
        self.sock.connect(self._hub.socket)
        if (uid := read_credentials(self.sock).uid) != self._hub.uid:
            raise ConnectionRefusedError(f"user {uid} listens there, and the hub is user {self._hub.uid}")
