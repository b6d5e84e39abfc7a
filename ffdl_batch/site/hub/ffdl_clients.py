"""Finds the token in requests of FfDL's clients, which do not send the header that ffdl's own API needs."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from contextlib import suppress
from urllib.parse import parse_qs

from starlette.datastructures import Headers
from starlette.types import Scope

from ffdl_batch.daemon.upgrades import WEBSOCKET, find_upgrade
from ffdl_batch.domain.access import parse_token


def with_bearer_token(scope: Scope) -> Scope:
    """Return a request with its token in the header Authorization, as a bearer token.

    FfDL's clients have it as the password of Basic authentication, in the header X-Watson-Authorization-Token, or, for
    WebSockets of browsers, which cannot set headers, in the query `watson-token`. A request that has none of these is
    returned unchanged.
    """
    token = next((text for text in _candidates(scope) if parse_token(text)), None)
    if token is None:
        return scope
    others = [header for header in scope["headers"] if header[0] != b"authorization"]
    return {**scope, "headers": [*others, (b"authorization", f"Bearer {token}".encode("ascii"))]}


def _candidates(scope: Scope) -> Iterator[str]:
    headers = Headers(scope=scope)
    for value in headers.getlist("authorization"):
        scheme, _, encoded = value.partition(" ")
        if scheme.lower() == "basic":
            with suppress(ValueError):
                yield base64.b64decode(encoded.strip(), validate=True).partition(b":")[2].decode("latin-1")
    yield from headers.getlist("x-watson-authorization-token")
    if find_upgrade(scope, WEBSOCKET):
        yield from parse_qs(scope["query_string"].decode("latin-1")).get("watson-token", [])
