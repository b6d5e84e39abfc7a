"""Admits callers before any route runs: the daemon's own user, root if there is no hub, and what the hub passes on.

The kernel identifies the peer (see :mod:`.connections`). Headers of a request are read only if the peer is the hub:
then they are a token of this daemon's user, or the role and the uid of an operator or auditor.
"""

from __future__ import annotations

import logging
import re

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.routing import Match
from starlette.types import ASGIApp, Receive, Scope, Send

from ffdl_batch.daemon.connections import Peer, peer_of
from ffdl_batch.daemon.error_replies import reply_to
from ffdl_batch.daemon.request_context import Context, context_of, in_thread
from ffdl_batch.domain.access import Role
from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.domain.job.submission import Caller
from ffdl_batch.domain.job.views import Problem
from ffdl_batch.services.authorisation import OPERATIONS, Right, refuse_unless_allowed
from ffdl_batch.services.refusals import Refused
from ffdl_batch.services.tokens import unauthenticated, verify_token

log = logging.getLogger(__name__)

_UID = re.compile(r"[0-9]{1,10}", re.ASCII)
_REQUEST_ID = re.compile(r"[A-Za-z0-9_.-]{1,64}", re.ASCII)
_BEARER = "bearer "
_ROLES = (Role.OPERATOR, Role.AUDITOR)


class PeerGate:
    """Refuses callers who are not admitted, and callers through the hub who lack the right to the operation."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        here = context_of(scope["app"])
        try:
            caller = await _identify(here, scope)
        except Exception as error:  # noqa: BLE001 - reply_to re-raises an unexpected one
            reply = await reply_to(error, Request(scope))
            await reply(scope, receive, send)
            return
        here.note_request()
        # Starlette copies the scope for mounted applications but keeps "state": the caller is put there once.
        scope.setdefault("state", {})["caller"] = caller
        with here.in_use(caller, peer_of(scope)):
            await self._app(scope, receive, send)


async def _identify(here: Context, scope: Scope) -> Caller:
    """Return the caller. Raises Refused, HTTPException if the operation does not exist, and StoreError."""
    peer = peer_of(scope)
    if peer is not None and peer.uid in here.admitted_uids:
        return Caller(peer.uid, is_admin=peer.uid == 0)
    if peer is not None and here.hub is not None and peer.uid == here.hub.uid:
        headers = Headers(scope=scope)
        if not ({"authorization", "ffdl-role"} & set(headers)) and _is_login(scope):
            return Caller(peer.uid, role=Role.HUB)
        caller = await _identify_by_headers(here, headers)
        refuse_unless_allowed(caller, _find_operation(scope))
        return caller
    raise _refuse(here, peer)


async def _identify_by_headers(here: Context, headers: Headers) -> Caller:
    authorization, role, actor, request_id = (
        _only(headers, name) for name in ("Authorization", "FfDL-Role", "FfDL-Actor", "FfDL-Request")
    )
    request_id = request_id if _REQUEST_ID.fullmatch(request_id) else ""
    if role and authorization:
        raise unauthenticated("the request has both a token and a role")
    if role:
        if role not in _ROLES or not _UID.fullmatch(actor):
            raise unauthenticated("the request has an unknown role, or no uid of its actor")
        return Caller(int(actor), is_admin=True, role=Role(role), request_id=request_id)
    if authorization[: len(_BEARER)].lower() != _BEARER:
        raise unauthenticated("the request has no token")
    text = authorization[len(_BEARER) :].strip()
    caller = await in_thread(here.limits.quick, verify_token, here.platform.storage, text, request_id)
    if caller.token_id in here.revoked:  # while it was verified
        raise unauthenticated(f"token {caller.token_id} was revoked")
    return caller


def _only(headers: Headers, name: str) -> str:
    """Return the value of a header, "" if it is missing. Raises Refused if it occurs more than once."""
    found = headers.getlist(name)
    if len(found) > 1:
        raise unauthenticated(f"the request has the header {name} more than once")
    return found[0] if found else ""


def _is_login(scope: Scope) -> bool:
    """Return whether the request has a proof of its own."""
    try:
        return OPERATIONS.get(_find_operation(scope)) is Right.LOGIN
    except HTTPException:
        return False


def _find_operation(scope: Scope) -> str:
    """Return the operation that the router will run: it takes the first route that matches. Raises HTTPException."""
    matches = [(route.matches(scope)[0], route) for route in scope["app"].routes]
    for match, route in matches:
        if match is Match.FULL:
            return str(getattr(route, "operation_id", None) or route.name)
    raise HTTPException(405 if any(match is Match.PARTIAL for match, _ in matches) else 404)


def _refuse(here: Context, peer: Peer | None) -> Refused:
    who = f"user {peer.uid}" if peer else "a caller without kernel credentials"
    log.warning("refused %s (process %s)", who, peer.pid if peer else "unknown")
    message = f"this is the daemon of user {here.platform.storage.uid}; {who} may not use it"
    return Refused(Problem("C101", message, ExitCode.NOT_ALLOWED, "use your own daemon: unset FFDL_SOCKET"), 403)
