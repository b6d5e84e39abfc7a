"""Who asks a Swift store: the address of the account's objects, and a token, by v1 or by Keystone v3."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ffdl_batch.domain.data.staging_protocol import FaultClass, StoreAddress
from ffdl_batch.staging.faults import Fault
from ffdl_batch.staging.stores.http_client import Wire

YOUNG_S = 60.0
"""A token that is refused this soon after it was given is refused for good."""


@dataclass(frozen=True, slots=True)
class Token:
    """`url` is of the account, whose containers lie below it."""

    url: str
    value: str
    given_at: float


class Tokens:
    """The token at hand, and the next one. Calls may come from several threads at once."""

    def __init__(
        self,
        address: StoreAddress,
        credentials: Mapping[str, str],
        wire: Wire,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._address, self._credentials, self._wire, self._clock = address, credentials, wire, clock
        self._lock = threading.Lock()
        self._token: Token | None = None

    def now(self) -> Token:
        """The token, asked for where there is none. Raises Passing, Fault."""
        with self._lock:
            if self._token is None:
                endpoint = self._address.endpoint.rstrip("/")
                if not endpoint:
                    raise Fault(FaultClass.TASK, "its address is not given")
                ask = self._by_v1 if endpoint.endswith(("/v1.0", "/v1")) else self._by_v3
                url, value = ask(endpoint)
                self._token = Token(url.rstrip("/"), value, self._clock())
            return self._token

    def refused(self, token: Token) -> bool:
        """Whether it is worth trying with another one, after the store refused this one."""
        with self._lock:
            is_old = self._clock() - token.given_at > YOUNG_S
            if self._token is token and is_old:
                self._token = None
            return is_old

    def _by_v1(self, endpoint: str) -> tuple[str, str]:
        asked = {
            "X-Auth-User": self._credentials.get("user_name", ""),
            "X-Auth-Key": self._credentials.get("password", ""),
        }
        with self._wire.ask("GET", endpoint, asked) as answer:
            answer.read()
            return _required(answer.headers, "X-Storage-Url"), _required(answer.headers, "X-Auth-Token")

    def _by_v3(self, endpoint: str) -> tuple[str, str]:
        options = self._address.options
        user: dict[str, Any] = {"password": self._credentials.get("password", "")}
        if options.get("domain_name"):
            user |= {"name": self._credentials.get("user_name", ""), "domain": {"name": options["domain_name"]}}
        else:
            user |= {"id": self._credentials.get("user_name", "")}
        asked: dict[str, Any] = {"identity": {"methods": ["password"], "password": {"user": user}}}
        if options.get("project_id"):
            asked["scope"] = {"project": {"id": options["project_id"]}}
        base = endpoint if endpoint.endswith("/v3") else f"{endpoint}/v3"
        body, headers = json.dumps({"auth": asked}).encode(), {"Content-Type": "application/json"}
        with self._wire.ask("POST", f"{base}/auth/tokens", headers, body) as answer:
            catalog, value = json.loads(answer.read())["token"].get("catalog", []), answer.headers
            return self._account(catalog), _required(value, "X-Subject-Token")

    def _account(self, catalog: list[dict[str, Any]]) -> str:
        for service in catalog:
            for found in service["endpoints"] if service["type"] == "object-store" else []:
                region = found.get("region_id") or found.get("region")
                if found["interface"] == "public" and self._address.region in ("", region):
                    return str(found["url"])
        where = f" in region {self._address.region}" if self._address.region else ""
        raise Fault(FaultClass.MISSING, f"its catalog has no object store{where}")


def _required(headers: Mapping[str, str], name: str) -> str:
    if name not in headers:
        raise Fault(FaultClass.REFUSED, f"it answered without {name}, so it is no Swift store's address")
    return headers[name]
