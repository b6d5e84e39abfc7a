"""Read objects of an S3 store from the shared cache of this node, if it has one."""

from __future__ import annotations

import os
import urllib.parse
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from ffdl_batch.domain.data.store_kinds import StoreAddress
from ffdl_batch.staging.faults import ObjectChanged
from ffdl_batch.staging.shared_cache import reader
from ffdl_batch.staging.stores.digests import file_chunks
from ffdl_batch.staging.stores.store import UNKNOWN, Item, library


class SharedReads:
    """Reads of one bucket. The service gets the signature of each read, never a key. What it serves is verified as if
    it came from the store, and asked for once: a second read of the same range goes to the store."""

    def __init__(self, address: StoreAddress, credentials: Mapping[str, str]) -> None:
        self._address, self._credentials = address, credentials
        self._asked: set[int] = set()
        self._serves = (
            "user_name" in credentials
            and bool(address.endpoint)
            and address.options.get("path_style", "true") == "true"
            and os.path.exists(reader.SOCKET)
        )

    @contextmanager
    def read(self, item: Item, start: int, end: int) -> Iterator[Iterator[bytes] | None]:
        """Yield the range of an object; None if the shared cache does not serve it. Raises ObjectChanged, OSError."""
        descriptor = self._descriptor(item, start)
        if descriptor is None:
            yield None
            return
        try:
            yield file_chunks(descriptor, start, item.size if end == UNKNOWN else end)
        except EOFError:
            raise ObjectChanged from None
        finally:
            os.close(descriptor)

    def _descriptor(self, item: Item, start: int) -> int | None:
        if not self._serves or item.size < 1 or not item.etag:
            return None
        read = hash((item.key, item.etag, start))
        if read in self._asked:
            return None
        self._asked.add(read)
        path = urllib.parse.quote(f"/{self._address.container}/{item.key}", safe="/~")
        url = f"{self._address.endpoint.rstrip('/')}{path}"
        found = reader.ask(url, item.etag, item.size, self._signature(url))
        return found if isinstance(found, int) else None

    def _signature(self, url: str) -> dict[str, str]:
        """Return the headers that sign a GET of the URL (Signature Version 4)."""
        keys = library("botocore.credentials", "s3").Credentials(
            self._credentials["user_name"],
            self._credentials.get("password", ""),
            self._credentials.get("session_token"),
        )
        request = library("botocore.awsrequest", "s3").AWSRequest("GET", url)
        region = self._address.region or "us-east-1"
        library("botocore.auth", "s3").S3SigV4Auth(keys, "s3", region).add_auth(request)
        return {name.lower(): str(value) for name, value in request.headers.items()}
