"""Send webhooks: one POST with a JSON text, signed if there is a key. It uses only the standard library.

The signature has the usual form: ``X-Ffdl-Signature: sha256=`` and the HMAC-SHA256 (RFC 2104) of the body in hex.
"""

from __future__ import annotations

import hashlib
import hmac
import urllib.error
import urllib.request
from http.client import HTTPException

from ffdl_batch.domain.network_address import without_query

TIMEOUT_S = 20.0
_ANSWER_BYTES = 300
_MAY_PASS = frozenset({408, 425, 429}) | frozenset(range(500, 600))


class WebhookRefused(Exception):
    """The server did not accept the request. `may_pass`: a later try may succeed."""

    def __init__(self, message: str, *, may_pass: bool) -> None:
        super().__init__(message)
        self.may_pass = may_pass


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Follow no redirection: the content is meant for the configured address only."""

    def redirect_request(self, *_redirection: object) -> None:
        """Return None, so that the reply itself is used."""


def post(address: str, body: bytes, notice_id: str, key: bytes = b"", *, named: str = "") -> None:
    """Send `body` to `address`; a status from 200 to 299 means success. Redirections are not followed.

    Raises WebhookRefused, whose message names the address without its query, or as `named`.
    """
    headers = {"Content-Type": "application/json", "User-Agent": "ffdl-batch", "X-Ffdl-Notice": notice_id}
    if key:
        headers["X-Ffdl-Signature"] = "sha256=" + hmac.new(key, body, hashlib.sha256).hexdigest()
    request = urllib.request.Request(address, body, headers, method="POST")  # noqa: S310 - http and https were checked
    try:
        with urllib.request.build_opener(_NoRedirects).open(request, timeout=TIMEOUT_S) as answer:
            answer.read(_ANSWER_BYTES)
    except urllib.error.HTTPError as error:
        with error:
            said = " ".join(error.read(_ANSWER_BYTES).decode("utf-8", "replace").split())
        message = f"{named or without_query(address)} answered {error.code} {error.reason}{': ' if said else ''}{said}"
        raise WebhookRefused(message, may_pass=error.code in _MAY_PASS) from None
    except (OSError, HTTPException, ValueError) as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        raise WebhookRefused(f"{named or without_query(address)} cannot be reached: {reason}", may_pass=True) from None
