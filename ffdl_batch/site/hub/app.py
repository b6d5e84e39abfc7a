"""The hub's ASGI application: identifies the caller of each request, and passes the request on."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import secrets
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from http import HTTPStatus
from pathlib import Path
from typing import Any

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse, Response
from starlette.types import Receive, Scope, Send

from ffdl_batch.daemon.connections import Peer, peer_of
from ffdl_batch.daemon.replies import FFDL_API, PlainReply, problem_reply
from ffdl_batch.daemon.upgrades import WEBSOCKET, find_upgrade, without_upgrade
from ffdl_batch.domain.access import parse_token
from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.domain.job.views import SCHEMA, Problem
from ffdl_batch.domain.launch.attach_protocol import UPGRADE
from ffdl_batch.domain.metrics.prometheus_text import CONTENT_TYPE
from ffdl_batch.ports.capabilities import SharesListing
from ffdl_batch.services.refusals import Refused
from ffdl_batch.site.hub.audit import Audit, Entry
from ffdl_batch.site.hub.bodies import unknown_route
from ffdl_batch.site.hub.callers import Caller, Limits, TrustedProxies, find_role, refuse
from ffdl_batch.site.hub.daemons import Daemons, unavailable
from ffdl_batch.site.hub.ffdl_clients import with_bearer_token
from ffdl_batch.site.hub.listing import JobListing
from ffdl_batch.site.hub.own_routes import OwnRoutes
from ffdl_batch.site.hub.proxy import UPGRADES, AnswerBroken, CallerGone, request_head
from ffdl_batch.site.hub.settings import HubSettings
from ffdl_batch.site.hub.site_metrics import SiteMetrics
from ffdl_batch.site.hub.site_reports import SiteReports
from ffdl_batch.site.hub.store import HubStore
from ffdl_batch.site.hub.tenant_routes import TenantRoutes
from ffdl_batch.site.hub.tenants import LeverKind
from ffdl_batch.site.hub.tokens.device_logins import DeviceLogins
from ffdl_batch.site.hub.tokens.logins import Logins
from ffdl_batch.store import StoreError

log = logging.getLogger(__name__)

_OWN_API = re.compile(rb"/(?:api/v1/.*|v1/.*|metrics|openapi\.json)", re.DOTALL)
_USERS_API = re.compile(rb"/users/([1-9][0-9]{0,9})(/api/v1/.*)", re.DOTALL)
_OF_SITE = re.compile(rb"/site/(?:api/v1/reports/(faults|nodes|usage)|metrics)")
_BEARER = re.compile(r"[Bb]earer +(\S+)", re.ASCII)
OLD_ADMISSION_S = 600.0
"""Interval of the check that daemons with admitted jobs run, and the age of the admissions that it considers."""
LOOKUPS = 8
"""Threads that look up the owners of tokens."""
_KEPT_BYTES = 64 * 1024
_GONE = 499
"""Status in the audit if the caller disconnected before the answer, as in nginx."""
HELD_S = 1.0
"""How long the answer to a request beyond a limit is held."""
_READS = ("GET", "HEAD")
_REFUSALS = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)


class Hub:
    """The application. Use it in one event loop."""

    def __init__(
        self, settings: HubSettings, store: HubStore, audit: Audit, source: SharesListing | None = None
    ) -> None:
        """`source` lists the jobs of all users; None if this hub asks no scheduler. Raises SettingsRefused."""
        self._settings, self._tokens, self._audit = settings, store.tokens, audit
        self._tenants, self._admission, self._gpu_hours = store.tenants, store.admission, store.gpu_hours
        self._site_reports, self._metrics, self._reporting = SiteReports(store), SiteMetrics(store), asyncio.Lock()
        self._daemons = Daemons(Path(settings.run_dir))
        self._limits = Limits(settings)
        self._proxies = TrustedProxies(settings.trusted_proxies)
        self._lookups = ThreadPoolExecutor(LOOKUPS, "lookup")
        self._own_routes = OwnRoutes(
            store.tokens,
            (Logins(settings.certificate), DeviceLogins(settings, store.tenants.daemon_of_guest)),
            self._limits,
            self._daemons,
            JobListing(source, settings.listing_interval_s),
            TenantRoutes(settings, store),
        )

    async def work(self) -> None:
        """Run background tasks until cancelled: read the GPU time of all users for quotas, and start daemons
        that ended without reporting the ends of their jobs."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._gpu_hours.keep_reading())
            tasks.create_task(self._keep_daemons())

    async def _keep_daemons(self) -> None:
        while True:
            await asyncio.sleep(OLD_ADMISSION_S)
            try:
                await self._start_daemons()
            except Exception:
                log.exception("daemons with admitted jobs were not started")

    async def _start_daemons(self) -> None:
        """Start daemons that do not run and have admitted jobs. Raises StoreError, OSError."""
        for uid in await asyncio.to_thread(self._admission.users_before, OLD_ADMISSION_S):
            try:
                (await self._daemons.connect(uid)).close()
            except Refused as error:
                log.warning("cannot start the daemon of user %s, who has admitted jobs: %s", uid, error)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        assert scope["type"] == "http"
        peer = peer_of(scope)
        assert peer is not None
        if peer.address in self._proxies:
            forwarded = Headers(scope=scope).getlist("x-forwarded-for")
            peer = replace(peer, address=self._proxies.client_of(peer.address, forwarded))
        entry = Entry(secrets.token_hex(8), peer.name, f"{scope['method']} {scope['path']}")

        async def send_entry(message: Any) -> None:
            if message["type"] == "http.response.start":
                entry.status = message["status"]
                self._metrics.count_request(scope["method"], entry.status)
                self._write_audit(scope, entry)  # before the caller gets the result
                message["headers"] = [*message["headers"], (b"ffdl-request", entry.request.encode("ascii"))]
                if entry.status == HTTPStatus.SWITCHING_PROTOCOLS:
                    upgrade = find_upgrade(scope, *UPGRADES)
                    assert upgrade is not None
                    upgrade.accept(message["headers"])
                    return
            await send(message)

        began = time.monotonic()
        try:
            await self._answer(scope, receive, send_entry, peer, entry)
        except (CallerGone, AnswerBroken) as error:
            if not entry.status:
                entry.status = _GONE
                self._write_audit(scope, entry)
            if isinstance(error, AnswerBroken):
                log.warning(
                    "request %s: the answer of user %s's daemon broke off: %s", entry.request, entry.user, error
                )
            peer.abort()
            await asyncio.sleep(0)  # uvicorn must notice it, or it reports an incomplete answer
        except Refused as error:
            is_counted = entry.caller is None and error.status != HTTPStatus.TOO_MANY_REQUESTS
            refusal = self._limits.refuse_unidentified(peer.name, error) if is_counted else error
            if refusal.status == HTTPStatus.TOO_MANY_REQUESTS:
                await asyncio.sleep(HELD_S)  # a program that sends without pause costs others little
            await problem_reply(refusal.problem, refusal.status)(scope, receive, send_entry)
        except StoreError as error:
            log.error("%s", error)
            problem = Problem("S210", "the hub's database does not answer", ExitCode.TRY_AGAIN, "try again")
            await problem_reply(problem, 503)(scope, receive, send_entry)
        finally:
            if entry.status == HTTPStatus.SWITCHING_PROTOCOLS:
                entry.seconds = round(time.monotonic() - began, 3)
                self._audit.write(entry)

    def _write_audit(self, scope: Scope, entry: Entry) -> None:
        """Write the request to the audit, unless it only reads the caller's own data, exceeds a limit, polls a login
        that is not complete, or is abandoned by a caller who is not identified."""
        is_without_result = entry.status in (HTTPStatus.ACCEPTED, _GONE) and entry.user is None  # not a daemon's 202
        if entry.status == HTTPStatus.TOO_MANY_REQUESTS or is_without_result:
            return
        is_read = scope["method"] in _READS and entry.role == "owner"
        if is_read and entry.status not in (*_REFUSALS, HTTPStatus.SWITCHING_PROTOCOLS):
            return
        self._audit.write(entry)

    async def _answer(self, scope: Scope, receive: Receive, send: Send, peer: Peer, entry: Entry) -> None:
        path: bytes = scope["raw_path"]
        if path.startswith(b"/api/site/"):
            await self._own_routes.answer(scope, receive, send, peer, entry)
            return
        if path == b"/health" and scope["method"] in _READS:
            await PlainTextResponse("OK")(scope, receive, send)
            return
        own, other, site = (one.fullmatch(path) for one in (_OWN_API, _USERS_API, _OF_SITE))
        if own is None and other is None and (site is None or scope["method"] != "GET"):
            raise unknown_route(scope)
        if path.startswith(FFDL_API.encode("ascii")):
            scope = with_bearer_token(scope)
        elif find_upgrade(scope, WEBSOCKET):
            scope = without_upgrade(scope)
        caller = await self._identify(scope, peer)
        entry.caller = caller.uid
        with self._limits.counted(caller, entry.origin) as note:
            if site is not None:
                await self._act_for(caller, scope, entry, note)
                query = scope["query_string"].decode("ascii", "replace")
                await (await self._reply_about_site(site[1], query))(scope, receive, send)
                return
            user = int(other[1]) if other is not None else caller.uid
            entry.user, entry.role = user, "owner"
            headers = {"FfDL-Request": entry.request}
            if user != caller.uid:
                scope = without_upgrade(scope)  # only owners may enter learners
                headers |= await self._act_for(caller, scope, entry, note)
            elif not caller.has_token:
                raise refuse(
                    403, "requests to your own daemon through the hub need a token", "use it directly: unset FFDL_HUB"
                )
            target = other[2] if other is not None else path
            head = request_head(scope, target, headers, with_token=user == caller.uid)

            async def send_noted(message: Any) -> None:
                # Not the answer of another user's daemon, which may be that user's program.
                if message["type"] == "http.response.start" and user == caller.uid:
                    note(message["status"])
                await send(message)

            await self._daemons.forward(user, scope, receive, send_noted, head)

    async def _reply_about_site(self, report: bytes | None, query: str) -> Response:
        """Return a report about all users, or the site's metrics. One at a time: each may keep a core busy."""
        async with self._reporting:
            if report is None:
                text = await asyncio.to_thread(self._metrics.text)
                return Response(text, media_type=None, headers={"Content-Type": CONTENT_TYPE})
            plain = await asyncio.to_thread(self._site_reports.make, report.decode("ascii"), query)
            return PlainReply({"schema": SCHEMA, **plain})

    async def _identify(self, scope: Scope, peer: Peer) -> Caller:
        """Return the caller: the owner of the token, else the user at the other end of the hub's socket.

        Raises Refused, also (503) for a change while an operator has drained the service.
        """
        given = Headers(scope=scope).getlist("authorization")
        is_change = scope["method"] not in _READS or find_upgrade(scope, UPGRADE) is not None
        if not given and peer.is_local:
            if is_change:
                await asyncio.to_thread(self._refuse_if_drained)
            return Caller(peer.uid)
        cure = "ffdl login, on a login node or with a token"
        if not given:
            raise refuse(401, "the request has no token", cure)
        bearer = _BEARER.fullmatch(given[0]) if len(given) == 1 else None
        token = parse_token(bearer[1]) if bearer is not None else None
        loop = asyncio.get_running_loop()
        # Separate threads: name services, munge and the spawner may occupy the others for many seconds.
        owner = None
        if token is not None:
            owner = await loop.run_in_executor(self._lookups, self._find_owner, token.id, is_change)
        if owner is None or token is None:
            raise refuse(401, "the token is not valid: it was revoked, has expired, or was mistyped", cure)
        return Caller(owner, token.digest)

    def _find_owner(self, token_id: str, is_change: bool) -> int | None:
        """Return the token's owner, None if it is not valid. Raises Refused for a change while the service is
        drained."""
        owner = self._tokens.owner(token_id)
        if owner is not None and is_change:
            self._refuse_if_drained()
        return owner

    def _refuse_if_drained(self) -> None:
        for lever in self._tenants.levers():
            if lever.kind is LeverKind.SERVICE:
                raise unavailable(f"no changes are accepted: {lever.sentence}", "try again later")

    async def _act_for(self, caller: Caller, scope: Scope, entry: Entry, note: Callable[[int], None]) -> dict[str, str]:
        """Return the headers for a request on another user's daemon, if the caller has a role."""
        role = await asyncio.to_thread(find_role, self._settings, caller.uid)
        if role is None:
            raise refuse(403, f"user {caller.uid} is neither operator nor auditor of this site")
        if caller.has_token:
            await self._confirm_token(caller, scope, entry, note)
        entry.role = role.value
        return {"FfDL-Role": role.value, "FfDL-Actor": str(caller.uid)}

    async def _confirm_token(self, caller: Caller, scope: Scope, entry: Entry, note: Callable[[int], None]) -> None:
        """Have the caller's own daemon check the caller's token. Raises Refused if the token does not permit this."""
        token = [header for header in scope["headers"] if header[0] == b"authorization"]
        asked = {**scope, "method": "GET", "query_string": b"", "headers": token}
        head = request_head(asked, b"/api/v1/whoami", {"FfDL-Request": entry.request}, with_token=True)
        pieces: list[bytes] = []
        status = await self._daemons.forward(caller.uid, asked, _never, _collect(pieces), head)
        needed = "read" if scope["method"] in _READS else "write"
        if status != HTTPStatus.OK:
            wrong = refuse(401, "your own daemon does not accept the token", "ffdl login")
            raise self._limits.refuse_unidentified(entry.origin, wrong)
        note(status)
        try:
            scopes = json.loads(b"".join(pieces))["scopes"]
        except (ValueError, TypeError, KeyError) as error:
            raise unavailable(f"the answer of user {caller.uid}'s daemon cannot be read") from error
        if needed not in scopes:
            raise refuse(403, f"the token does not have the scope {needed}", f"ffdl token create --scope {needed}")


async def _never() -> Any:
    await asyncio.Event().wait()


def _collect(pieces: list[bytes]) -> Send:
    """Return a `send` that keeps a small body. Raises Refused for a larger one."""

    async def send(message: Any) -> None:
        pieces.append(message.get("body", b""))
        if sum(map(len, pieces)) > _KEPT_BYTES:
            raise unavailable("the answer of your own daemon is too large")

    return send
