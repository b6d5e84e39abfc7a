"""What an entry is called: a digest of what the store says it has. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable

from ffdl_batch.domain.data.staging_protocol import StoreAddress
from ffdl_batch.staging.journal import Planned

KEY_FORMAT = 1


def key_of(store: StoreAddress, prefix: str, directories: Iterable[str], planned: Iterable[Planned]) -> str | None:
    """The key of a listing (in the order of names); None where the version of an object is not known.

    Endpoint and container are in it on purpose: a store that says it has the same as another one gets its own entry.
    """
    place = (KEY_FORMAT, store.kind.value, store.endpoint.rstrip("/"), store.region, store.container, prefix.strip("/"))
    digest = hashlib.sha256(json.dumps((place, sorted(directories))).encode())
    for one in planned:
        if not is_version(one.item.etag) or one.item.size < 0:
            return None
        digest.update(json.dumps((one.name, one.item.size, one.item.etag)).encode() + b"\n")
    return digest.hexdigest()


def is_version(etag: str) -> bool:
    """Whether the ETag names one content; weak ones (RFC 9110, 8.8.1) do not."""
    return bool(etag) and not etag.startswith("W/")
