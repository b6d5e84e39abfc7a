"""Files of a web server. HTTP has no listing, so each file has to be named."""

from __future__ import annotations

import urllib.parse
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager

from ffdl_batch.domain.data.staging_protocol import FaultClass
from ffdl_batch.domain.data.store_kinds import StoreAddress
from ffdl_batch.staging.faults import Fault
from ffdl_batch.staging.stores.digests import hex_of_base64
from ffdl_batch.staging.stores.http_client import HttpClient, basic_authorization, etag_of, time_of
from ffdl_batch.staging.stores.store import UNKNOWN, Item, Sent

_DIRECTORY = "it is a directory of the web server, which lists none: what it shows of it is a page for people"

_NO_HEAD = (405, 501)
"""RFC 9110, 15.5.6 and 15.6.2: replies of servers that do not support HEAD."""

_PAGES = (".html", ".htm", ".xhtml")


class HttpStore:
    """Files below one address. Keys are paths without percent encoding."""

    def __init__(self, address: StoreAddress, credentials: Mapping[str, str], connections: int) -> None:
        self._base = "/".join(part.strip("/") for part in (address.endpoint, address.container) if part.strip("/"))
        self._client = HttpClient(address, connections, "http")
        self._headers: dict[str, str] = {}
        if "token" in credentials:
            self._headers["Authorization"] = f"Bearer {credentials['token']}"
        elif basic := basic_authorization(credentials):
            self._headers["Authorization"] = basic

    def listing(self, prefix: str, start_after: str = "") -> Iterator[list[Item]]:
        yield []

    def head(self, key: str) -> Item | None:
        try:
            status, headers, place = self._asked("HEAD", key)
            if status in _NO_HEAD:
                _, headers, place = self._asked("GET", key)
        except Fault as fault:
            if fault.kind is FaultClass.MISSING:
                return None
            raise
        if urllib.parse.urlsplit(place).path.endswith("/"):  # where servers lead on to from a directory's name
            raise Fault(FaultClass.MISSING, _DIRECTORY, key, cure="name a file in it")
        size = int(headers["Content-Length"]) if headers.get("Content-Length", "").isdigit() else UNKNOWN
        if headers.get("Content-Encoding", "identity") != "identity":
            size = UNKNOWN
        ranges = size != UNKNOWN and headers.get("Accept-Ranges", "") == "bytes"
        etag, mtime = etag_of(headers), time_of(headers.get("Last-Modified", ""))
        return Item(key, size, etag, mtime, ranges, True, _digests(headers), doubt=_doubt(key, headers))

    def _asked(self, method: str, key: str) -> tuple[int, Mapping[str, str], str]:
        """Return status, headers and final address of a reply. Its body is not read. Raises as
        :meth:`HttpClient.ask`."""
        also = _NO_HEAD if method == "HEAD" else ()
        with self._client.ask(method, self._url(key), self._headers, key=key, also=also) as answer:
            return answer.status, answer.headers, answer.geturl() or ""

    def read(self, item: Item, start: int, end: int) -> AbstractContextManager[Iterator[bytes]]:
        return self._client.read(self._url(item.key), self._headers, item, start, end)

    def put(self, key: str, sent: Sent) -> str:
        raise Fault(FaultClass.REFUSED, "nothing can be stored on a web server", key)

    def close(self) -> None:
        self._client.close()

    def _url(self, key: str) -> str:
        return f"{self._base}/{urllib.parse.quote(key.lstrip('/'))}"


def _doubt(key: str, headers: Mapping[str, str]) -> str:
    """Return why a page may not be the file: some servers reply with a login page, or an error page, and status 200."""
    kind = headers.get("Content-Type", "").partition(";")[0].strip().lower()
    is_page = kind in ("text/html", "application/xhtml+xml") and not key.lower().endswith(_PAGES)
    return f"comes as {kind}: a page for people, of a login for one, and maybe not the data" if is_page else ""


def _digests(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the digests of RFC 9530 (`Repr-Digest`) and of RFC 1864 (`Content-MD5`)."""
    found: dict[str, str] = {}
    for entry in headers.get("Repr-Digest", "").split(","):
        name, _, value = entry.strip().partition("=")
        if name == "sha-256":
            found["sha256"] = hex_of_base64(value.strip(":"))
    if "Content-MD5" in headers:
        found["md5"] = hex_of_base64(headers["Content-MD5"])
    return {name: value for name, value in found.items() if value}
