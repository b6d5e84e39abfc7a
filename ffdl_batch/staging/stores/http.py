"""HTTP requests of all stores that speak HTTP, and the store of files of a web server.

There is one pool of connections for each store, and one mapping of HTTP statuses to failures. A web server has no
listing, so each file has to be named.
"""

from __future__ import annotations

import base64
import email.utils
import urllib.parse
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, BinaryIO

from ffdl_batch.domain.data.staging_protocol import FaultClass
from ffdl_batch.domain.data.store_kinds import StoreAddress
from ffdl_batch.domain.network_address import parse_url
from ffdl_batch.staging.faults import Denied, Fault, ObjectChanged, TemporaryFailure
from ffdl_batch.staging.stores.digests import hex_of_base64
from ffdl_batch.staging.stores.store import CHUNK_BYTES, UNKNOWN, Item, Sent, library

REDIRECTS = 5
_MESSAGE_CHARACTERS = 200


class HttpClient:
    """Connections to one store."""

    def __init__(self, address: StoreAddress, connections: int, extra: str) -> None:
        self._urllib3 = library("urllib3", extra)
        timeout_s = float(address.options.get("timeout_s", "60"))
        proxy = _proxy(address.endpoint)
        options: dict[str, Any] = {
            "num_pools": 4,
            "maxsize": connections,
            "timeout": self._urllib3.Timeout(connect=min(timeout_s, 15), read=timeout_s),
            "retries": self._urllib3.Retry(
                total=None, connect=0, read=0, status=0, other=0, redirect=REDIRECTS, respect_retry_after_header=False
            ),
            "ca_certs": address.options.get("ca_file") or None,
        }
        self._pool = self._urllib3.ProxyManager(proxy, **options) if proxy else self._urllib3.PoolManager(**options)

    def close(self) -> None:
        """Close connections."""
        self._pool.clear()

    @contextmanager
    def ask(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: BinaryIO | bytes | None = None,
        key: str = "",
        *,
        also: tuple[int, ...] = (),
    ) -> Iterator[Any]:
        """Yield a reply with success, or with one of the statuses `also`. Its body is not read yet. Raises
        TemporaryFailure, Fault, ObjectChanged."""
        answer = None
        try:
            answer = self._pool.request(
                method, url, headers={"Accept-Encoding": "identity", **headers}, body=body, preload_content=False
            )
            if answer.status >= 300 and answer.status not in also:
                reply = answer.read(_MESSAGE_CHARACTERS, decode_content=True).decode("utf-8", "replace")
                text = f"it answered {answer.status} {answer.reason or ''}".rstrip()
                words = " ".join(reply.split())
                raise failure_of_status(answer.status, f"{text} ({words})" if words else text, key)
            yield answer
        except self._urllib3.exceptions.HTTPError as error:
            raise self._failed(error) from error
        except OSError as error:
            raise TemporaryFailure(str(error) or type(error).__name__) from error
        finally:
            if answer is not None:
                answer.close() if answer.length_remaining else answer.release_conn()

    @staticmethod
    def _failed(error: Exception) -> Exception:
        cause = getattr(error, "reason", None) or error
        require_trusted(cause)
        if type(error).__name__ in ("LocationParseError", "URLSchemeUnknown", "LocationValueError"):
            return Fault(FaultClass.TASK, "its address cannot be used")
        return TemporaryFailure(str(cause) or type(cause).__name__)

    @contextmanager
    def read(self, url: str, headers: Mapping[str, str], item: Item, start: int, end: int) -> Iterator[Iterator[bytes]]:
        """Yield a range of an object. Raises ObjectChanged if the object has changed."""
        asked = dict(headers)
        if item.etag and not item.etag.startswith("W/"):
            asked["If-Match"] = f'"{item.etag}"'
        wanted = byte_range(item, start, end)
        if wanted:
            asked["Range"] = wanted
        with self.ask("GET", url, asked, key=item.key) as answer:
            if item.etag and etag_of(answer.headers) not in ("", item.etag):
                raise ObjectChanged
            if wanted and answer.status != 206:
                raise Fault(FaultClass.REFUSED, "the server does not give parts of files any more", item.key)
            yield answer.stream(CHUNK_BYTES, decode_content=False)


def failure_of_status(status: int, text: str, key: str) -> Exception:
    """Return the exception for a reply with this HTTP status. For all stores that speak HTTP, S3 included."""
    if status in (412, 416):
        return ObjectChanged()
    if status == 403 and key:
        return Denied(text, key)
    if status in (401, 403, 407):
        return Fault(FaultClass.CREDENTIALS, text, key)
    if status in (404, 410):
        return Fault(FaultClass.MISSING, text, key)
    if status in (413, 507):
        return Fault(FaultClass.FULL, text, key)
    if status >= 500 or status in (408, 409, 422, 425, 429, 498):
        return TemporaryFailure(text)
    return Fault(FaultClass.REFUSED, text, key)


def require_trusted(error: Exception) -> None:
    """Raise Fault if the connection failed because of the server's certificate."""
    if "CERTIFICATE_VERIFY_FAILED" in str(error):
        raise Fault(FaultClass.REFUSED, "its certificate is not one that this machine trusts") from error


def basic_authorization(credentials: Mapping[str, str]) -> str:
    """Return the value of the Authorization header (RFC 7617); "" without a user name."""
    if "user_name" not in credentials:
        return ""
    pair = f"{credentials['user_name']}:{credentials.get('password', '')}"
    return f"Basic {base64.b64encode(pair.encode()).decode()}"


def byte_range(item: Item, start: int, end: int) -> str:
    """Return the value of the Range header; "" for the whole object."""
    return "" if start == 0 and end in (UNKNOWN, item.size) else f"bytes={start}-{end - 1}"


def etag_of(headers: Mapping[str, str]) -> str:
    """Return the ETag without its quotes."""
    return headers.get("ETag", "").replace('"', "")


def time_of(text: str) -> float:
    """Return the seconds of an HTTP date; 0 if it is not one."""
    try:
        return email.utils.parsedate_to_datetime(text).timestamp()
    except (TypeError, ValueError):
        return 0.0


def _proxy(endpoint: str) -> str:
    """Return the proxy that the node's environment names for this address, or ""."""
    import urllib.request

    url = parse_url(endpoint)
    if url is None or not url.host or urllib.request.proxy_bypass(url.host):
        return ""
    return urllib.request.getproxies().get(url.scheme, "")


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
        """See :class:`ffdl_batch.staging.stores.store.Store`."""
        yield []

    def head(self, key: str) -> Item | None:
        """See :class:`ffdl_batch.staging.stores.store.Store`."""
        try:
            status, headers, place = self._asked("HEAD", key)
            if status in _NO_HEAD:
                _, headers, place = self._asked("GET", key)
        except Fault as fault:
            if fault.kind is FaultClass.MISSING:
                return None
            raise
        url = parse_url(place)
        if url is not None and url.path.endswith("/"):  # where servers lead on to from a directory's name
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
        """See :class:`ffdl_batch.staging.stores.store.Store`."""
        return self._client.read(self._url(item.key), self._headers, item, start, end)

    def put(self, key: str, sent: Sent) -> str:
        """See :class:`ffdl_batch.staging.stores.store.Store`."""
        raise Fault(FaultClass.REFUSED, "nothing can be stored on a web server", key)

    def close(self) -> None:
        """See :class:`ffdl_batch.staging.stores.store.Store`."""
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
