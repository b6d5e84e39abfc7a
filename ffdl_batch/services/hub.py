"""Sends requests of this daemon to the site's hub: it registers the ids of tokens, never their secrets, reads the hub's
listing of the scheduler's jobs, and asks which new jobs may be handed over to a scheduler."""

from __future__ import annotations

import json
import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from typing import Any
from urllib.parse import quote

from ffdl_batch.domain.access import HUB_API
from ffdl_batch.domain.admission import MOST_JOBS, Answer, Claim, encode_claims, read_answers
from ffdl_batch.domain.codec import to_plain
from ffdl_batch.domain.incidents.incident import IncidentRow
from ffdl_batch.domain.outcome.shared_listing import SharedRows
from ffdl_batch.host.backoff import growing_pause
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.host.users import read_credentials

log = logging.getLogger(__name__)

PATIENCE_S = 5.0
"""Maximum time for each step of a request to the hub."""
LONGEST_ANSWER_S = 15.0
"""Maximum time for a whole request. A hub that sends byte by byte must not block a loop of the daemon."""
LONGEST_MESSAGE = 300
USUAL_SOCKET = "/run/ffdl-hub/hub.sock"
_PATH = f"{HUB_API}/tokens/"
_REPLY_BYTES = 64 * 1024
LISTING_PATH, ADMISSIONS_PATH = f"{HUB_API}/listing", f"{HUB_API}/admissions"
INCIDENTS_PATH, CLUSTER_TOKEN_PATH = f"{HUB_API}/incidents", f"{HUB_API}/cluster-token"
MAX_ADMISSIONS_BYTES = 1 << 20
"""Maximum size of a request about MOST_JOBS jobs or MOST_IN_REQUEST incidents, and of its answer."""
MAX_LISTING_BYTES = 4 * 1024**2
"""Maximum size of one user's listing, about 30,000 jobs."""
LISTING_HEADER, AGE_HEADER = "FfDL-Listing", "FfDL-Age-Ms"
"""Headers of the listing: a digest of its rows, and the milliseconds since the scheduler was asked."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 5.0, 60.0
"""Pauses after a failure to get the listing."""


class HubUnavailable(Exception):
    """The hub does not answer, or cannot answer now; the text is the reason."""


class HubRefused(Exception):
    """The hub refuses the request; the text is the hub's message."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status
        """The HTTP status of the answer."""


@dataclass(frozen=True, slots=True)
class Listing:
    """The answer of the hub about a user's jobs."""

    digest: str
    age_s: float
    """How long ago the scheduler was asked."""
    rows: list[str] | None
    """None if the caller has the rows with this digest."""


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

    def listing(self, known: str) -> Listing:
        """Return the jobs of this user as the hub knows them. `known` is the digest of the rows that the caller has.
        Raises :class:`HubUnavailable`, :class:`HubRefused`."""
        status, headers, body = self._exchange("GET", LISTING_PATH, None, {LISTING_HEADER: known}, MAX_LISTING_BYTES)
        try:
            digest, age_ms = headers[LISTING_HEADER.lower()], int(headers[AGE_HEADER.lower()])
            rows = None if status == HTTPStatus.NOT_MODIFIED else list(filter(None, body.decode("utf-8").split("\n")))
        except (KeyError, ValueError) as error:
            raise HubUnavailable(f"the hub's listing cannot be read: {error!r}") from error
        return Listing(digest, max(0, age_ms) / 1000, rows)

    def admit(self, claims: Sequence[Claim], handed: Sequence[str] = ()) -> dict[str, Answer]:
        """Return which of these jobs may be handed over to a scheduler. It has answered about the jobs `handed`. Raises
        :class:`HubUnavailable`, :class:`HubRefused`."""
        reply = self._post(ADMISSIONS_PATH, encode_claims(claims, handed))
        try:
            return read_answers(json.loads(reply))
        except (ValueError, RecursionError) as error:
            raise HubUnavailable(f"the hub's answer cannot be read: {error}") from error

    def live_jobs(self) -> list[str]:
        """Return the jobs of this user that the hub counts as live. Raises as :meth:`admit`."""
        _, _, reply = self._exchange("GET", ADMISSIONS_PATH, None, {}, MAX_LISTING_BYTES)
        try:
            return [str(job) for job in json.loads(reply)["live"]]
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise HubUnavailable(f"the hub's answer cannot be read: {error!r}") from error

    def end_jobs(self, jobs: Sequence[str]) -> None:
        """Let the hub count these jobs no longer. Raises as :meth:`admit`."""
        for start in range(0, len(jobs), MOST_JOBS):
            self._post(f"{ADMISSIONS_PATH}/ended", {"ended": list(jobs[start : start + MOST_JOBS])})

    def newest_incident(self) -> float:
        """Return when this user's newest incident that the hub has was noticed; 0 if it has none. Raises as
        :meth:`admit`."""
        _, _, reply = self._exchange("GET", INCIDENTS_PATH, None, {}, _REPLY_BYTES)
        try:
            return float(json.loads(reply)["newest"])
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise HubUnavailable(f"the hub's answer cannot be read: {error!r}") from error

    def send_incidents(self, rows: Sequence[IncidentRow]) -> None:
        """Let the hub store up to MOST_IN_REQUEST incidents of this user. It ignores those that it has. Raises as
        :meth:`admit`."""
        self._post(INCIDENTS_PATH, {"incidents": to_plain(rows)})

    def cluster_token(self) -> tuple[str, float]:
        """Return a token of the cluster for this daemon of a tenant, and when it expires. Raises as :meth:`admit`."""
        _, _, reply = self._exchange("GET", CLUSTER_TOKEN_PATH, None, {}, _REPLY_BYTES)
        try:
            found = json.loads(reply)
            return str(found["token"]), float(found["expires_at"])
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise HubUnavailable("the hub's answer has no token") from error

    def manage(self, method: str, path: str, plain: Mapping[str, object] | None = None) -> Mapping[str, Any]:
        """Send an operator's request to a route of :mod:`ffdl_batch.site.hub.tenant_routes`; return the answer. Raises
        as :meth:`admit`."""
        body = None if plain is None else json.dumps(plain)
        headers = {} if plain is None else {"Content-Type": "application/json"}
        reply = self._exchange(method, HUB_API + quote(path), body, headers, MAX_LISTING_BYTES)[2]
        try:
            found: Mapping[str, Any] = dict(json.loads(reply))
        except (ValueError, TypeError, RecursionError) as error:
            raise HubUnavailable(f"the hub's answer cannot be read: {error!r}") from error
        return found

    def _post(self, path: str, plain: object) -> bytes:
        headers = {"Content-Type": "application/json"}
        return self._exchange("POST", path, json.dumps(plain), headers, MAX_ADMISSIONS_BYTES)[2]

    def _ask(self, method: str, token_id: str, body: str | None = None) -> None:
        headers = {"Content-Type": "application/json"} if body is not None else {}
        self._exchange(method, _PATH + token_id, body, headers, _REPLY_BYTES)

    def _exchange(
        self, method: str, path: str, body: str | None, headers: Mapping[str, str], most_bytes: int
    ) -> tuple[int, Mapping[str, str], bytes]:
        """Send a request; return status, headers with names in lower case, and body of the answer."""
        connection = _Connection(self)
        guard = threading.Timer(LONGEST_ANSWER_S, connection.abort)
        guard.daemon = True
        guard.start()
        try:
            connection.request(method, path, body, dict(headers))
            response = connection.getresponse()
            status, reply = response.status, response.read(most_bytes + 1)
        except (OSError, HTTPException) as error:
            why = str(error) or type(error).__name__
            raise HubUnavailable(f"the hub does not answer at {self.socket}: {why}") from error
        finally:
            guard.cancel()
            connection.close()
        if 400 <= status < 500 and status != HTTPStatus.TOO_MANY_REQUESTS:
            raise HubRefused(_message(reply) or f"status {status}", status)
        if not (200 <= status < 300 or status == HTTPStatus.NOT_MODIFIED):
            why = _message(reply)
            raise HubUnavailable(f"the hub answered with status {status}" + (f": {why}" if why else ""))
        if len(reply) > most_bytes:
            raise HubUnavailable(f"the hub's answer is larger than {most_bytes} bytes")
        return status, {name.lower(): value for name, value in response.getheaders()}, reply


class HubListing:
    """The hub's listing for a backend: see :class:`ffdl_batch.ports.shared_listing.SharedListing`. After a failure the
    hub is not asked for a while. Safe in every thread."""

    def __init__(self, hub: Hub, now: Callable[[], float] = time.monotonic) -> None:
        self._hub, self._now = hub, now
        self._lock = threading.Lock()
        self._digest, self._rows = "", list[str]()
        self._failures, self._again_at = 0, 0.0
        self._why = ""

    def read(self) -> SharedRows | None:
        """Return this user's rows; None if the hub has none now."""
        with self._lock:
            asked_at = self._now()
            if self._failures and asked_at < self._again_at:
                return None
            try:
                found = self._hub.listing(self._digest)
                if found.rows is None and found.digest != self._digest:
                    raise HubUnavailable("the hub sent no rows, but this daemon does not have the listing")
            except (HubUnavailable, HubRefused) as error:
                self._note_failure(str(error))
                return None
            if self._failures:
                log.info("the hub lists the scheduler's jobs again")
            self._failures, self._why = 0, ""
            if found.rows is not None:
                self._digest, self._rows = found.digest, found.rows
            return SharedRows(self._rows, found.age_s + self._now() - asked_at)

    def _note_failure(self, why: str) -> None:
        self._failures += 1
        spread = secrets.randbelow(1000) / 1000
        pause_s = growing_pause(self._failures, FIRST_PAUSE_S, LONGEST_PAUSE_S, spread)
        self._again_at = self._now() + pause_s
        if why != self._why:
            self._why = why
            log.warning("this daemon queries the scheduler itself, and less often, because of the hub: %s", why)


def hub_of(environ: Mapping[str, str]) -> Hub | None:
    """Return the hub that the spawner names; None if it names none. FFDL_HUB_SOCKET overrides its usual socket."""
    uid = environ.get("FFDL_HUB_UID", "")
    socket_path = environ.get("FFDL_HUB_SOCKET") or USUAL_SOCKET
    return Hub(int(uid), socket_path) if uid.isascii() and uid.isdecimal() else None


def hub_here(environ: Mapping[str, str]) -> Hub:
    """Return the hub of this host, for its operators. Raises :class:`HubUnavailable` if there is none."""
    path = environ.get("FFDL_HUB_SOCKET") or USUAL_SOCKET
    try:
        return Hub(os.stat(path).st_uid, path)  # noqa: PTH116 - a socket, not a file
    except OSError as error:
        raise HubUnavailable(f"this host has no hub: {path}: {error.strerror}") from error


def _message(reply: bytes) -> str:
    """Return the message of an error reply, "" if it has another form."""
    try:
        return str(json.loads(reply)["problem"]["message"])[:LONGEST_MESSAGE]
    except (ValueError, TypeError, KeyError, RecursionError):
        return ""


class _Connection(HTTPConnection):
    """A connection to the hub's socket. The kernel reports which user listens there."""

    def __init__(self, hub: Hub) -> None:
        super().__init__("hub", timeout=PATIENCE_S)
        self._hub = hub
        self._dialed: socket.socket | None = None

    def connect(self) -> None:
        """Connect. Raises OSError, also if another user listens."""
        self.sock = self._dialed = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(PATIENCE_S)
        self.sock.connect(self._hub.socket)
        if (uid := read_credentials(self.sock).uid) != self._hub.uid:
            raise ConnectionRefusedError(f"user {uid} listens there, but the hub runs as user {self._hub.uid}")

    def abort(self) -> None:
        """Shut the connection down while another thread reads from it. That thread gets an error."""
        if self._dialed is not None:
            with suppress(OSError):  # it is not connected
                self._dialed.shutdown(socket.SHUT_RDWR)
