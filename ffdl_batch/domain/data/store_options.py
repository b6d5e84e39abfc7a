"""What each kind of store is told besides its address: options, and the fields of its credentials. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping

from ffdl_batch.domain.data.staging_protocol import StoreAddress, StoreKind

OPTIONS: Mapping[StoreKind, tuple[str, ...]] = {
    StoreKind.S3: ("path_style", "ca_file", "timeout_s"),
    StoreKind.GCS: ("path_style", "ca_file", "timeout_s"),
    StoreKind.SWIFT: ("domain_name", "project_id", "ca_file", "timeout_s"),
    StoreKind.HTTP: ("ca_file", "timeout_s"),
    StoreKind.FSSPEC: ("protocol", "known_hosts", "key_file", "timeout_s"),
    StoreKind.FILE: (),
}
"""Options by kind; in a manifest keys of the connection that go to the store as they are."""
CREDENTIALS: Mapping[StoreKind, tuple[str, ...]] = {
    StoreKind.S3: ("user_name", "password", "session_token"),
    StoreKind.GCS: ("user_name", "password", "token", "service_account"),
    StoreKind.SWIFT: ("user_name", "password"),
    StoreKind.HTTP: ("user_name", "password", "token"),
    StoreKind.FSSPEC: ("user_name", "password", "private_key"),
    StoreKind.FILE: (),
}
"""Fields that are references to secrets."""
FILES = frozenset({"ca_file", "known_hosts", "key_file"})
WITH_REGION = frozenset({StoreKind.S3, StoreKind.GCS, StoreKind.SWIFT})
WITH_ENDPOINT = WITH_REGION | {StoreKind.FSSPEC}
_SFTP = ("sftp", "ssh")
_NEAR = 0.6


def why_unknown(address: StoreAddress, names: Collection[str], *, secret: bool = False) -> str:
    """Why one of these is no option of the store, or with `secret` no field of its credentials; "" = all are. What a
    library of fsspec takes is not known here."""
    known = known_fields(address, secret=secret)
    what = "a credential" if secret else "an option"
    for name in names:
        if known is None or name in known:
            continue
        near = difflib.get_close_matches(name.lower(), known, n=1, cutoff=_NEAR)
        some = ", ".join(known)
        cure = f"did you mean {near[0]}? It has {some}" if near else f"it has {some}" if some else "it has none"
        return f"{name[:60]!r} is not {what} of {_named(address)}; {cure}"
    return ""


def known_fields(address: StoreAddress, *, secret: bool = False) -> tuple[str, ...] | None:
    """The names of its options, or with `secret` of its credentials; None where a library alone knows them."""
    if address.kind is StoreKind.FSSPEC and address.options.get("protocol") not in _SFTP:
        return None
    names = (CREDENTIALS if secret else OPTIONS)[address.kind]
    return tuple(name for name in names if name != "protocol")


def why_bad(name: str, value: str) -> tuple[str, str]:
    """What is wrong with the value of an option, and what to write; two empty texts = nothing."""
    if name == "path_style" and value not in ("true", "false"):
        return f"{value[:60]!r} is neither true nor false", "write true or false"
    if name == "timeout_s" and not (value.isdigit() and 1 <= int(value) <= 3600):
        return f"{value[:60]!r} is no number of seconds", "write a whole number from 1 to 3600"
    return "", ""


def half_of_pair(kind: StoreKind, fields: Collection[str]) -> tuple[str, str]:
    """Which of user_name and password is there without the other, and the other; two empty texts = neither is."""
    for name, other in (("user_name", "password"), ("password", "user_name")):
        if name in fields and other not in fields and kind is not StoreKind.FSSPEC:
            return name, other
    return "", ""


def _named(address: StoreAddress) -> str:
    kind = address.options.get("protocol", "") if address.kind is StoreKind.FSSPEC else address.kind.value
    return {"file": "a directory", "http": "a web server"}.get(kind, f"{kind} stores")
