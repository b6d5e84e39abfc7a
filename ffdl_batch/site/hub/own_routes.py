"""The hub's own routes: its health, tokens that daemons register, logins, the listing of jobs, and tenants."""

from __future__ import annotations

import asyncio
import json
import math
import re
import time
from collections.abc import MutableMapping
from http import HTTPStatus
from typing import Any

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ffdl_batch import __version__
from ffdl_batch.daemon.connections import Peer
from ffdl_batch.daemon.replies import PlainReply
from ffdl_batch.domain.access import HUB_API
from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.domain.job.views import SCHEMA, Problem
from ffdl_batch.services.hub import AGE_HEADER, LISTING_HEADER, LISTING_PATH
from ffdl_batch.services.refusals import Refused
from ffdl_batch.site.hub.audit import Entry
from ffdl_batch.site.hub.bodies import read_small, unknown_route
from ffdl_batch.site.hub.callers import Caller, Limits, refuse
from ffdl_batch.site.hub.daemons import Daemons
from ffdl_batch.site.hub.listing import JobListing
from ffdl_batch.site.hub.proxy import request_head
from ffdl_batch.site.hub.tenant_routes import TenantRoutes
from ffdl_batch.site.hub.tokens.device_logins import DeviceLogins
from ffdl_batch.site.hub.tokens.logins import Logins, read_login
from ffdl_batch.site.hub.tokens.token_index import IndexRefused, TokenIndex

LONGEST_S = 367 * 86400
"""Maximum lifetime of a token: a year, and a margin for clocks that differ."""
_TOKENS = re.compile(HUB_API + r"/tokens/([0-9a-z]{12})", re.ASCII)
_LOGIN = re.compile(HUB_API + r"/logins/([A-Za-z0-9_-]{32})", re.ASCII)
_DEVICE_LOGIN = re.compile(HUB_API + r"/device-logins/([A-Za-z0-9_-]{32})", re.ASCII)


class OwnRoutes:
    """Answers requests that are for the hub itself. Use it in one event loop."""

    def __init__(
        self,
        tokens: TokenIndex,
        logins: tuple[Logins, DeviceLogins],
        limits: Limits,
        daemons: Daemons,
        listing: JobListing,
        tenant_routes: TenantRoutes,
    ) -> None:
        self._tokens, self._limits, self._daemons = tokens, limits, daemons
        self._logins, self._device_logins = logins
        self._listing, self._tenant_routes = listing, tenant_routes

    async def answer(self, scope: Scope, receive: Receive, send: Send, peer: Peer, entry: Entry) -> None:
        """Answer one request. Raises Refused, CallerGone, AnswerBroken, StoreError."""
        method, path = scope["method"], scope["path"]
        if (method, path) == ("GET", f"{HUB_API}/health"):
            entry.role = "owner"  # the answer contains nothing about a user
            offers = {"device_logins": self._device_logins.are_offered}
            await PlainReply({"schema": SCHEMA, "version": __version__, **offers})(scope, receive, send)
        elif method == "POST" and path.startswith((f"{HUB_API}/logins", f"{HUB_API}/device-logins")):
            self._limits.check_address(peer.name)
            await self._answer_login(scope, receive, send, peer, entry)
        elif (method, path) == ("GET", LISTING_PATH) and peer.is_local:
            await self._list_jobs(scope, receive, send, peer, entry)
        elif method in ("PUT", "DELETE") and peer.is_local and (found := _TOKENS.fullmatch(path)) is not None:
            await self._register(found[1], scope, receive, send, peer, entry)
        elif peer.is_local and self._tenant_routes.has(path):
            entry.caller = peer.uid
            with self._limits.counted(Caller(peer.uid), peer.name):
                await self._tenant_routes.answer(scope, receive, send, entry)
        else:
            raise unknown_route(scope)

    async def _answer_login(self, scope: Scope, receive: Receive, send: Send, peer: Peer, entry: Entry) -> None:
        path = scope["path"]
        if path == f"{HUB_API}/logins":
            await PlainReply({"schema": SCHEMA, **self._logins.begin(peer.name)})(scope, receive, send)
        elif (found := _LOGIN.fullmatch(path)) is not None:
            await self._login(found[1], scope, receive, send, peer, entry)
        elif path == f"{HUB_API}/device-logins":
            login = _read_text(await read_small(receive), "login")
            begun = await self._device_logins.begin(peer.name, login)
            await PlainReply({"schema": SCHEMA, **begun})(scope, receive, send)
        elif (found := _DEVICE_LOGIN.fullmatch(path)) is not None:
            await self._poll_device_login(found[1], scope, receive, send, peer, entry)
        else:
            raise unknown_route(scope)

    async def _register(
        self, token_id: str, scope: Scope, receive: Receive, send: Send, peer: Peer, entry: Entry
    ) -> None:
        """Register or remove a token of the user at the other end of the hub's socket."""
        entry.caller, entry.user, entry.role = peer.uid, peer.uid, "daemon"
        with self._limits.counted(Caller(peer.uid), peer.name):
            if scope["method"] == "PUT":
                expires_at = _read_expiry(await read_small(receive))
                try:
                    await asyncio.to_thread(self._tokens.put, token_id, peer.uid, expires_at)
                except IndexRefused as error:
                    raise refuse(409, str(error)) from error
            else:
                await asyncio.to_thread(self._tokens.remove, token_id, peer.uid)
            await PlainReply({"schema": SCHEMA})(scope, receive, send)

    async def _list_jobs(self, scope: Scope, receive: Receive, send: Send, peer: Peer, entry: Entry) -> None:
        """Answer with the jobs of the user at the other end of the hub's socket, or 304 if the caller has them."""
        entry.caller, entry.user, entry.role = peer.uid, peer.uid, "owner"
        with self._limits.counted(Caller(peer.uid), peer.name):
            own = await self._listing.read(peer.uid)
            is_known = Headers(scope=scope).get(LISTING_HEADER) == own.digest
            headers = {LISTING_HEADER: own.digest, AGE_HEADER: str(math.ceil(own.age_s * 1000))}
            if is_known:
                reply = Response(None, 304, headers)
            else:
                reply = Response(own.body, 200, headers, media_type="text/plain")
            await reply(scope, receive, send)

    async def _login(self, nonce: str, scope: Scope, receive: Receive, send: Send, peer: Peer, entry: Entry) -> None:
        """Verify the first credential, and pass the second one on to the daemon of its user."""
        to_hub, to_daemon = read_login(await read_small(receive))
        self._logins.take(nonce)
        uid = await asyncio.to_thread(self._logins.verify, nonce, to_hub)
        await self._pass_login(uid, b"/api/v1/logins", {"credential": to_daemon}, (scope, receive, send), peer, entry)

    async def _poll_device_login(
        self, key: str, scope: Scope, receive: Receive, send: Send, peer: Peer, entry: Entry
    ) -> None:
        """Have the token of a login stored by the daemon of the user that the OpenID provider names.

        The hub itself names the account. Another user may have confirmed the login, and that user's daemon may lie.
        """
        found = await self._device_logins.poll(key)
        if isinstance(found, float):
            await PlainReply({"schema": SCHEMA, "interval_s": found}, status_code=202)(scope, receive, send)
            return
        uid, login = found
        account, statuses = await asyncio.to_thread(self._tenant_routes.account_of, uid), list[int]()

        async def send_refusal(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                statuses.append(message["status"])
            if statuses[0] >= HTTPStatus.BAD_REQUEST:
                await send(message)

        ends = scope, receive, send_refusal
        await self._pass_login(uid, b"/api/v1/trusted-logins", {"login": login}, ends, peer, entry)
        if statuses[0] < HTTPStatus.BAD_REQUEST:
            await PlainReply({"schema": SCHEMA, "account": account})(scope, receive, send)

    async def _pass_login(
        self, uid: int, path: bytes, plain: object, ends: tuple[Scope, Receive, Send], peer: Peer, entry: Entry
    ) -> None:
        """Have the user's daemon store the token of a login, if the spawner admits the account."""
        entry.caller, entry.user, entry.role = uid, uid, "owner"
        scope, receive, send = ends
        with self._limits.counted(Caller(uid), peer.name):
            await self._daemons.admit(uid)
            body = json.dumps(plain).encode("ascii")
            headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
            asked = {**scope, "query_string": b"", "headers": headers}
            head = request_head(asked, path, {"FfDL-Request": entry.request}, with_token=False)
            await self._daemons.forward(uid, asked, _once(body, receive), send, head)


def _once(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that yields `body`, then what `receive` yields."""
    messages = iter(({"type": "http.request", "body": body, "more_body": False},))

    async def receive_next() -> dict[str, object]:
        return next(messages, None) or dict(await receive())

    return receive_next


def _read_text(body: bytes, key: str) -> str:
    try:
        found = json.loads(body)[key]
    except (ValueError, TypeError, KeyError, RecursionError):
        found = None
    if not isinstance(found, str):
        raise Refused(Problem("C101", f"{key} must be a text", ExitCode.USAGE), 422)
    return found


def _read_expiry(body: bytes) -> float:
    try:
        expires_at = float(json.loads(body)["expires_at"])
    except (ValueError, TypeError, KeyError, RecursionError, OverflowError):
        expires_at = 0.0
    now = time.time()
    if not now < expires_at < now + LONGEST_S:
        raise Refused(Problem("C101", "expires_at must be a time within a year", ExitCode.USAGE), 422)
    return expires_at
