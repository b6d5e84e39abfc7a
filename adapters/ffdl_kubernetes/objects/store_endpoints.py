"""Where the stores of a job are, as far as a NetworkPolicy can say it. Pure."""

from __future__ import annotations

import ipaddress
import urllib.parse
from collections.abc import Iterable
from dataclasses import dataclass

from ffdl_batch.domain.data.staging_protocol import StoreAddress, StoreKind, Transfer

_PORTS = {"https": 443, "http": 80, "ssh": 22}


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """A host ("" = it is told by the store itself) and a TCP port (0 = so is that)."""

    host: str
    port: int


def places_of(transfers: Iterable[Transfer]) -> tuple[Place, ...]:
    """Each once, in order."""
    return tuple(sorted({_place(one.store) for one in transfers if one.store.kind is not StoreKind.FILE}))


def is_address(host: str) -> bool:
    """Whether it is one, and no name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _place(store: StoreAddress) -> Place:
    """Swift's tokens come with the address of the store, and Google's from another host than the objects."""
    if store.kind is StoreKind.SWIFT:
        return Place("", 0)
    if store.kind is StoreKind.FSSPEC:
        host, port = _split(f"//{store.endpoint}")
        return Place(host, port or _PORTS["ssh"]) if host else Place("", 0)
    if not store.endpoint or (store.kind is StoreKind.GCS and not is_address(_split(store.endpoint)[0])):
        return Place("", _PORTS["https"])
    host, port = _split(store.endpoint if "//" in store.endpoint else f"https://{store.endpoint}")
    return Place(host, port or _PORTS.get(urllib.parse.urlsplit(store.endpoint).scheme, _PORTS["https"]))


def _split(url: str) -> tuple[str, int]:
    parts = urllib.parse.urlsplit(url)
    return parts.hostname or "", parts.port or 0
