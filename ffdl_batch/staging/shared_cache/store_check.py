"""Requests to stores with a reader's own signature. Contacts only stores that the administrator has named."""

from __future__ import annotations

import http.client
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Any

from ffdl_batch.domain.network_address import parse_url
from ffdl_batch.domain.untrusted_json import parse_json
from ffdl_batch.host.fast_dataclass import dataclass

SIGNATURE = ("authorization", "x-amz-content-sha256", "x-amz-date", "x-amz-security-token")
"""The headers that a reader may set."""
REQUEST_BYTES = 16384
TIMEOUT_S = 30.0
CHUNK_BYTES = 1 << 20
_PATH = re.compile(r"/[!-~]{1,4096}")
_VALUE = re.compile(r"[ -~]{1,8192}")
_ETAG = re.compile(r"[!#-~]{1,200}")


class Refused(Exception):
    """The object is not served. The text says why."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """An object that a reader asks for, at a store that the administrator has named."""

    store: str
    path: str
    etag: str
    size: int
    headers: Mapping[str, str]


def parse_request(data: bytes, stores: Sequence[str]) -> Wanted:
    """Return the request. Raises Refused."""
    try:
        found = parse_json(data)
        url, etag, size, headers = (found[name] for name in ("url", "etag", "size", "headers"))
    except (ValueError, KeyError, TypeError):
        raise Refused("the request cannot be read") from None
    if not (isinstance(url, str) and isinstance(etag, str) and type(size) is int and isinstance(headers, dict)):
        raise Refused("the request cannot be read")
    store = next((one for one in stores if url.startswith(f"{one}/")), None)
    if store is None:
        raise Refused("this store is not one of the cache")
    path = url[len(store) :]
    if not _PATH.fullmatch(path) or "?" in path or "#" in path or not _ETAG.fullmatch(etag) or size < 1:
        raise Refused("the cache does not serve objects of this kind")
    if "authorization" not in headers or any(
        name not in SIGNATURE or not isinstance(value, str) or not _VALUE.fullmatch(value)
        for name, value in headers.items()
    ):
        raise Refused("the request has no signature, or other headers")
    return Wanted(store, path, etag, size, headers)


def require_access(wanted: Wanted) -> None:
    """Read one byte of the object as the reader. Raises Refused unless the store gives it, in this version and size."""
    with _answer(wanted, {"Range": "bytes=0-0"}, 206) as answer:
        if answer.getheader("Content-Range", "").rpartition("/")[2] != str(wanted.size):
            raise Refused("the object has another size")
        answer.read(1)


def read_object(wanted: Wanted, write: Callable[[bytes], None]) -> None:
    """Read the whole object as the reader. Raises Refused, also if it comes incompletely."""
    with _answer(wanted, {}, 200) as answer:
        if answer.getheader("Content-Length") != str(wanted.size):
            raise Refused("the object has another size")
        came = 0
        while data := answer.read(min(CHUNK_BYTES, wanted.size + 1 - came)):
            came += len(data)
            write(data)
        if came != wanted.size:
            raise Refused("the answer broke off")


@contextmanager
def _answer(wanted: Wanted, headers: Mapping[str, str], status: int) -> Iterator[Any]:
    url = parse_url(wanted.store)
    assert url is not None, "the administrator's addresses are checked at the start"
    kind = http.client.HTTPSConnection if url.scheme == "https" else http.client.HTTPConnection
    with closing(kind(url.host, url.port or None, timeout=TIMEOUT_S)) as connection:
        try:
            every = {**wanted.headers, **headers, "If-Match": f'"{wanted.etag}"', "Host": url.authority}
            connection.request("GET", wanted.path, headers=every)
            answer = connection.getresponse()
            if answer.status != status:
                raise Refused(f"the store answered {answer.status}")
            if answer.getheader("ETag", "").strip('"') != wanted.etag:
                raise Refused("the object has changed")
            yield answer
        except (OSError, http.client.HTTPException) as error:
            raise Refused(f"the store does not answer: {type(error).__name__}") from error
