"""OpenStack Swift, by its HTTP interface, with tokens of v1 or Keystone v3.

No library is used. swiftspec, for fsspec, takes no password and writes no large objects. python-swiftclient would save
the two requests for a token; ranges, conditions and retries would remain.
"""

from __future__ import annotations

import json
import threading
import time
import urllib.parse
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Any, BinaryIO

from ffdl_batch.domain.data.staging_protocol import FaultClass
from ffdl_batch.domain.data.store_kinds import StoreAddress, is_version_1
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.staging.faults import Denied, Fault, TemporaryFailure
from ffdl_batch.staging.stores.http import HttpClient, etag_of, time_of
from ffdl_batch.staging.stores.store import Item, Sent

YOUNG_S = 60.0
"""If a token is refused this soon after it was issued, no other one is requested."""


@dataclass(frozen=True, slots=True)
class Token:
    """`url` is that of the account, with its containers below."""

    url: str
    value: str
    given_at: float


class Tokens:
    """The current token and its successors. Methods may be called from several threads at once."""

    def __init__(
        self,
        address: StoreAddress,
        credentials: Mapping[str, str],
        client: HttpClient,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._address, self._credentials, self._client, self._clock = address, credentials, client, clock
        self._lock = threading.Lock()
        self._token: Token | None = None

    def now(self) -> Token:
        """Return the token, and request it if there is none. Raises TemporaryFailure, Fault."""
        with self._lock:
            if self._token is None:
                endpoint = self._address.endpoint.rstrip("/")
                if not endpoint:
                    raise Fault(FaultClass.TASK, "its address is not given")
                ask = self._by_v1 if is_version_1(endpoint) else self._by_v3
                url, value = ask(endpoint)
                self._token = Token(url.rstrip("/"), value, self._clock())
            return self._token

    def refused(self, token: Token) -> bool:
        """Return whether another token may help, after the store refused this one."""
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
        with self._client.ask("GET", endpoint, asked) as answer:
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
        with self._client.ask("POST", f"{base}/auth/tokens", headers, body) as answer:
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
        raise Fault(FaultClass.REFUSED, f"it answered without {name}, so it is not the address of a Swift store")
    return headers[name]


PAGE = 1000
SEGMENTS = "_segments"
"""Suffix of the container for parts, as with other clients."""


class SwiftStore:
    """One container. Large objects are static large objects (SLO)."""

    most_parts = 900

    def __init__(self, address: StoreAddress, credentials: Mapping[str, str], connections: int) -> None:
        self._container = address.container
        self._client = HttpClient(address, connections, "swift")
        self._tokens = Tokens(address, credentials, self._client)

    def listing(self, prefix: str, start_after: str = "") -> Iterator[list[Item]]:
        """See :class:`ffdl_batch.staging.stores.store.Store`."""
        marker = start_after
        while True:
            found = self._page(self._container, prefix, marker)
            yield [self._listed(entry) for entry in found]
            if len(found) < PAGE:
                return
            marker = found[-1]["name"]

    def _page(self, container: str, prefix: str, marker: str) -> list[dict[str, Any]]:
        asked = {"format": "json", "limit": str(PAGE), "prefix": prefix, "marker": marker}
        with self._ask("GET", container, "", query=asked) as answer:
            data = answer.read()
        return list(json.loads(data)) if data else []

    def _listed(self, entry: Mapping[str, Any]) -> Item:
        if not entry["bytes"]:  # the manifest of a dynamic large object has none of its own
            with suppress(Denied):  # its download is denied, too
                return self.head(entry["name"]) or Item(entry["name"], 0, entry["hash"])
        etag = entry.get("slo_etag", entry["hash"]).strip('"')
        mtime = datetime.fromisoformat(entry["last_modified"]).replace(tzinfo=UTC).timestamp()
        return Item(entry["name"], entry["bytes"], etag, mtime, True, "slo_etag" in entry)

    def head(self, key: str) -> Item | None:
        """See :class:`ffdl_batch.staging.stores.store.Store`."""
        try:
            with self._ask("HEAD", self._container, key) as answer:
                headers = answer.headers
        except Fault as fault:
            if fault.kind is FaultClass.MISSING:
                return None
            raise
        opaque = "X-Static-Large-Object" in headers or "X-Object-Manifest" in headers
        size, mtime = int(headers["Content-Length"]), time_of(headers.get("Last-Modified", ""))
        return Item(key, size, etag_of(headers), mtime, True, opaque)

    @contextmanager
    def read(self, item: Item, start: int, end: int) -> Iterator[Iterator[bytes]]:
        """See :class:`ffdl_batch.staging.stores.store.Store`."""
        token = self._tokens.now()
        with self._renewing(), self._client.read(
            _url(token.url, self._container, item.key), {"X-Auth-Token": token.value}, item, start, end
        ) as chunks:  # fmt: skip
            yield chunks

    def put(self, key: str, sent: Sent) -> str:
        """See :class:`ffdl_batch.staging.stores.store.Store`."""
        return self._put(self._container, key, sent)

    def begin(self, key: str) -> str:
        """See :class:`ffdl_batch.staging.stores.store.StoresInParts`."""
        with self._ask("PUT", self._container + SEGMENTS, "", headers={"Content-Length": "0"}):
            return f"{key}/ffdl-{uuid.uuid4().hex}"

    def put_part(self, key: str, upload: str, number: int, sent: Sent) -> str:
        """See :class:`ffdl_batch.staging.stores.store.StoresInParts`."""
        self._put(self._container + SEGMENTS, f"{upload}/{number:08}", sent)
        return f"{sent.md5}:{sent.size}"

    def complete(self, key: str, upload: str, etags: list[str]) -> str:
        """See :class:`ffdl_batch.staging.stores.store.StoresInParts`."""
        parts = []
        for number, etag in enumerate(etags, 1):
            md5, _, size = etag.partition(":")
            path = f"/{self._container}{SEGMENTS}/{upload}/{number:08}"
            parts.append({"path": path, "etag": md5, "size_bytes": int(size)})
        body = json.dumps(parts).encode()
        with self._ask("PUT", self._container, key, query={"multipart-manifest": "put"}, body=body) as answer:
            return etag_of(answer.headers)

    def abort(self, key: str, upload: str) -> None:
        """See :class:`ffdl_batch.staging.stores.store.StoresInParts`."""
        container = self._container + SEGMENTS
        for entry in self._page(container, f"{upload}/", ""):
            with self._ask("DELETE", container, entry["name"]):
                continue

    def close(self) -> None:
        """See :class:`ffdl_batch.staging.stores.store.Store`."""
        self._client.close()

    def _put(self, container: str, key: str, sent: Sent) -> str:
        headers = {"ETag": sent.md5, "Content-Length": str(sent.size)}
        with self._ask("PUT", container, key, headers=headers, body=sent.body) as answer:
            if etag_of(answer.headers) not in ("", sent.md5):
                raise TemporaryFailure("what the store has is not what was sent")
            return sent.md5

    @contextmanager
    def _ask(
        self,
        method: str,
        container: str,
        key: str,
        *,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        body: BinaryIO | bytes | None = None,
    ) -> Iterator[Any]:
        token = self._tokens.now()
        url = _url(token.url, container, key) + (f"?{urllib.parse.urlencode(query)}" if query else "")
        with self._renewing(), self._client.ask(
            method, url, {"X-Auth-Token": token.value, **(headers or {})}, body, key
        ) as answer:  # fmt: skip
            yield answer

    @contextmanager
    def _renewing(self) -> Iterator[None]:
        """Replace a token that expired. The next attempt uses the new one."""
        token = self._tokens.now()
        try:
            yield
        except Fault as fault:
            if fault.kind is FaultClass.CREDENTIALS and self._tokens.refused(token):
                raise TemporaryFailure("its token has ended") from fault
            raise


def _url(account: str, container: str, key: str) -> str:
    parts = [account, urllib.parse.quote(container, safe="")]
    return "/".join([*parts, urllib.parse.quote(key)] if key else parts)
