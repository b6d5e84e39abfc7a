"""Admits browsers: only the user's own, after a one-time address, with a cookie that this process alone knows.

Other users of the machine, pages of other sites that the same browser shows, and servers that later get the same port
must get nothing. So each request is checked for the user at the other end of the connection (the kernel knows it), for
its Host, for the cookie, and for the Origin if it changes anything. Name and value of the cookie are new in each start,
because browsers send cookies of localhost to every port.
"""

from __future__ import annotations

import hmac
import os
import secrets
from http.cookies import CookieError, SimpleCookie
from urllib.parse import quote

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ffdl_batch.daemon.connections import peer_of

OPEN = "/open"
"""Path of the one-time address."""
STATIC = "/static/"
_SAFE = frozenset({"GET", "HEAD"})
_LOCAL = frozenset({"localhost", "127.0.0.1", "[::1]"})
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
}


class Keys:
    """The cookie of this process, and the tokens that are exchanged for it."""

    def __init__(self) -> None:
        self.name = f"ffdl-{secrets.token_hex(6)}"
        self._value = secrets.token_urlsafe(32)
        self._token = ""

    def new_token(self) -> str:
        """Return a token that :meth:`redeem` accepts once. Earlier ones become invalid."""
        self._token = secrets.token_urlsafe(32)
        return self._token

    def redeem(self, token: str) -> bool:
        """Return whether the token is valid; afterwards it is not."""
        is_valid = bool(self._token) and _equal(token, self._token)
        if is_valid:
            self._token = ""
        return is_valid

    def set_cookie(self, response: Response) -> None:
        """Let the browser send the cookie with its next requests, until it is closed."""
        response.set_cookie(self.name, self._value, httponly=True, samesite="strict", path="/")

    def admits(self, cookies: str) -> bool:
        """Return whether a header Cookie has the cookie."""
        try:
            found = SimpleCookie(cookies).get(self.name)
        except CookieError:
            return False
        return found is not None and _equal(found.value, self._value)


class Guard:
    """Refuses requests before they reach the application, and restricts what a browser may do with the answers."""

    def __init__(self, app: ASGIApp, keys: Keys) -> None:
        self._app, self._keys = app, keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""

        async def send_restricted(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(_HEADERS)
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        answer = self._refuse(scope) or self._open(scope) or self._require_cookie(scope) or self._app
        await answer(scope, receive, send_restricted)

    def _refuse(self, scope: Scope) -> Response | None:
        """Return the answer to other users and other sites; None for the user's own requests."""
        peer, headers = peer_of(scope), Headers(scope=scope)
        if peer is None or peer.uid != os.geteuid():
            return _refusal(403, "This page belongs to another user.")
        host = headers.get("host", "")
        if host.rpartition(":")[0] not in _LOCAL and host not in _LOCAL:
            return _refusal(421, "This page is served at localhost only.")
        if scope["method"] not in _SAFE and headers.get("origin") != f"http://{host}":
            return _refusal(403, "This request comes from another page.")
        return None

    def _open(self, scope: Scope) -> Response | None:
        """Return the answer to the one-time address; None for other paths."""
        if scope["path"] != OPEN:
            return None
        if not self._keys.redeem(Request(scope).query_params.get("token", "")):
            return _refusal(
                403, "This address was used before, or is out of date. Press Enter in the terminal of ffdl web."
            )
        response = RedirectResponse("/", 303)
        self._keys.set_cookie(response)
        return response

    def _require_cookie(self, scope: Scope) -> Response | None:
        """Return the answer to a browser that has not opened the one-time address; None for others, and for files of
        the program, which are public."""
        if scope["path"].startswith(STATIC) or self._keys.admits(Headers(scope=scope).get("cookie", "")):
            return None
        return _refusal(403, "Press Enter in the terminal of ffdl web, and open the address that it prints.")


def address(port: int, token: str) -> str:
    """Return the one-time address at a port of localhost."""
    return f"http://localhost:{port}{OPEN}?token={quote(token)}"


def _refusal(status: int, text: str) -> Response:
    return Response(f"{text}\n", status, media_type="text/plain")


def _equal(given: str, known: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "replace"), known.encode("ascii"))
