"""Translates a data store of the manifest to an address for the staging program. Pure.

FfDL's object stores are S3, except `swift_datastore`, and except `softlayer_objectstore` and `bluemix_objectstore` if
their address is one that gives Swift's tokens. An `fsspec_datastore` is a directory `path` of a store that fsspec
reaches by the `protocol`; other keys of its connection are options of that library.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from ffdl_batch.domain.data.store_kinds import (
    BUCKETS,
    BY_TYPE,
    FILES,
    KINDS,
    StoreAddress,
    StoreKind,
    half_of_pair,
    why_bad,
    why_no_endpoint,
    why_no_region,
)
from ffdl_batch.domain.job.spec import DataStore, StoreType
from ffdl_batch.domain.network_address import is_authority, parse_url

_BY_ADDRESS = frozenset({StoreType.SOFTLAYER_OBJECTSTORE, StoreType.BLUEMIX_OBJECTSTORE})
"""Types that are S3 or Swift; the address decides."""
REMOTE = frozenset(map(StoreType, BY_TYPE)) | _BY_ADDRESS | {StoreType.INMEM_DATASTORE}
"""Types that are services; the others are directories."""
_NO_OPTIONS = frozenset({"type", "name", "mode", "host", "path"})
_WITH_HOST = frozenset({"sftp", "ssh"})
_PROTOCOL = re.compile(r"[a-z][a-z0-9+.-]*")
_BETTER: Mapping[str, StoreType] = {
    **dict.fromkeys(("file", "local", "dir"), StoreType.DIRECTORY),
    **{scheme: StoreType(KINDS[kind].types[-1]) for scheme, kind in BUCKETS.items()},
    "s3a": StoreType.S3_DATASTORE,
    **dict.fromkeys(("http", "https"), StoreType.HTTP_DATASTORE),
}
"""Protocols of fsspec that have a type of their own."""
_REFERENCE = re.compile(r"\$\{(secret|env|file):([^{}\s]+)\}")
_SWIFT_PATH = re.compile(r"/(auth|v1|v1\.0|v2\.0|v3)(/|$)")


def stores_with_input(stores: Sequence[DataStore], *, remote: bool) -> tuple[int, ...]:
    """Return the indexes of the stores with input, remote ones or directories, in the order of the launch file."""
    return tuple(
        index
        for index, store in enumerate(stores)
        if store.training_data and (store.effective_type in REMOTE) is remote
    )


class StoreRefused(ValueError):
    """A data store that cannot be used: the field of the manifest, why, and what to write."""

    def __init__(self, path: str, message: str, cure: str = "") -> None:
        super().__init__(message)
        self.path, self.message, self.cure = path, message, cure


def kind_of(store: DataStore) -> StoreKind:
    """Return the kind of a remote store. Raises StoreRefused, with paths below the store."""
    kind = store.effective_type
    if kind is StoreType.INMEM_DATASTORE:
        raise StoreRefused("type", "inmem_datastore was made for FfDL's own tests; it keeps nothing", "write mount_cos")
    if kind in _BY_ADDRESS:
        return StoreKind.SWIFT if _gives_tokens(store.connection) else StoreKind.S3
    return BY_TYPE[kind]


def _gives_tokens(connection: Mapping[str, str]) -> bool:
    """Return whether a store that may be Swift or S3 is Swift."""
    keys = ("domain_name", "project_id")
    url = parse_url(connection.get("auth_url", ""))
    return any(connection.get(key) for key in keys) or (url is not None and bool(_SWIFT_PATH.search(url.path)))


def address_of(store: DataStore) -> StoreAddress:
    """Return the store without a container. Raises StoreRefused, with paths below the store."""
    kind, connection = kind_of(store), store.connection
    if kind is StoreKind.FSSPEC:
        return _by_fsspec(connection)
    region = connection.get("region", "").strip()
    if why := why_no_region(kind, region):
        raise StoreRefused("connection.region", why, "write its name alone, as in region: eu-west-1")
    return StoreAddress(
        kind,
        endpoint=_endpoint(kind, connection.get("auth_url", "").strip()),
        region=region,
        options={key: _option(key, connection[key]) for key in KINDS[kind].options if connection.get(key)},
        credentials=_credentials(kind, connection),
    )


def _by_fsspec(connection: Mapping[str, str]) -> StoreAddress:
    protocol, host, kind = connection.get("protocol", "").strip(), connection.get("host", "").strip(), StoreKind.FSSPEC
    at = "connection.protocol"
    if not protocol:
        raise StoreRefused(at, "the protocol of the store is not set", "write protocol: sftp, or another of fsspec's")
    if not _PROTOCOL.fullmatch(protocol):
        raise StoreRefused(at, f"{protocol[:60]!r} is not a protocol", "write its name alone, as in protocol: sftp")
    if protocol in _BETTER:
        better = _BETTER[protocol]
        raise StoreRefused(at, f"{protocol} has a type of store of its own", f"write type: {better}")
    if not host and protocol in _WITH_HOST:
        raise StoreRefused("connection.host", "the store's host is not set", "write host: HOST[:PORT]")
    if host and not is_authority(host):
        raise StoreRefused("connection.host", f"{host[:60]!r} is not a host", "write host: HOST[:PORT]")
    if ".." in connection.get("path", "").split("/"):
        raise StoreRefused("connection.path", "the path leads upwards", "write the directory in the store without ..")
    others = {key: value for key, value in connection.items() if value and key not in _NO_OPTIONS}
    options = {key: value for key, value in others.items() if not _REFERENCE.fullmatch(value)}
    credentials = {**_credentials(kind, connection), **{key: secret_of(others[key]) for key in others.keys() - options}}
    return StoreAddress(
        kind,
        host,
        container=connection.get("path", "").strip(),
        options={key: _option(key, value) for key, value in options.items()},
        credentials=credentials,
    )


def place_in(store: DataStore, container: str) -> tuple[StoreAddress, str]:
    """Return the store with the container of the manifest, and the prefix in it: the part after the bucket's name, or
    all of it for a web server and for fsspec. Raises StoreRefused, with paths below the store."""
    address = address_of(store)
    parts = [part for part in container.split("/") if part not in ("", ".")]
    if ".." in parts or not parts:
        raise StoreRefused("", f"{container!r} is not a container of a store", "write the name of a bucket")
    if not KINDS[address.kind].has_buckets:
        return address, "/".join(parts)
    found = StoreAddress(
        address.kind, address.endpoint, address.region, parts[0], address.options, address.credentials
    )  # fmt: skip
    return found, "/".join(parts[1:])


def place_of_results(stores: Sequence[DataStore], job_id: str) -> tuple[StoreAddress, str] | None:
    """Return the remote store that a job's results are stored in, and their prefix in it; None if they are stored in
    none."""
    for store in stores:
        if store.training_results and store.effective_type in REMOTE:
            try:
                address, above = place_in(store, store.training_results)
            except StoreRefused:  # the job is refused with it
                return None
            return address, f"{above}/{job_id}" if above else job_id
    return None


def _endpoint(kind: StoreKind, url: str) -> str:
    path = "connection.auth_url"
    if _REFERENCE.fullmatch(url):
        raise StoreRefused(path, "the address contains a name or a password", "write user_name and password instead")
    if not url and KINDS[kind].has_default_endpoint:
        return ""
    if not url:
        raise StoreRefused(path, "the address of the store is not set", "write auth_url: https://...")
    if why_no_endpoint(url):
        raise StoreRefused(path, why_no_endpoint(url), "write auth_url: https://HOST[:PORT]")
    return url


def _option(key: str, value: str) -> str:
    path, value = f"connection.{key}", value.strip()
    message, cure = why_bad(key, value)
    if not message and key in FILES and not value.startswith("/"):
        message, cure = f"{value[:60]!r} is not absolute", "write the file's absolute path on the nodes"
    if message:
        raise StoreRefused(path, message, cure)
    return value


def _credentials(kind: StoreKind, connection: Mapping[str, str]) -> dict[str, str]:
    found = {key: connection[key] for key in KINDS[kind].credentials if connection.get(key)}
    for key, value in found.items():
        if not _REFERENCE.fullmatch(value):
            raise StoreRefused(f"connection.{key}", f"{key} is not a reference to a secret", "write ${secret:NAME}")
    key, other = half_of_pair(kind, found)
    if key:
        raise StoreRefused(f"connection.{key}", f"there is a {key} and no {other}", f"write {other}, too, or none")
    return {key: secret_of(value) for key, value in found.items()}


def secret_of(reference: str) -> str:
    """Return the name under which the attempt's file of secrets has the value of a reference."""
    found = _REFERENCE.fullmatch(reference)
    assert found is not None
    return found[2] if found[1] == "secret" else f"{found[1]}:{found[2]}"
