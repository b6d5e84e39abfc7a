"""The kinds of data stores, one row each: how manifests and URLs name them, their options and credentials. Pure.

To add a kind: a member of :class:`StoreKind` and a row of `KINDS` here, a member of
:class:`ffdl_batch.domain.job.spec.StoreType` for the manifest, and a class in `ffdl_batch/staging/stores` that
:func:`ffdl_batch.staging.run_context.open_store` returns. Runs on Python 3.9.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import field
from enum import Enum

from ffdl_batch.domain.network_address import is_authority, parse_url
from ffdl_batch.domain.number_text import whole_number
from ffdl_batch.host.fast_dataclass import dataclass


class StoreKind(str, Enum):
    """The protocol of a store."""

    S3 = "s3"
    SWIFT = "swift"
    GCS = "gcs"
    HTTP = "http"
    FILE = "file"
    FSSPEC = "fsspec"
    """Any protocol of the library fsspec. The option `protocol` names it."""


@dataclass(frozen=True)
class StoreAddress:
    """A store and the container (bucket) in it."""

    kind: StoreKind
    endpoint: str = ""
    """The URL of the service ("" = the kind's public one). For fsspec ``HOST[:PORT]``."""
    region: str = ""
    container: str = ""
    """The bucket; of file stores and SFTP a directory (a relative one is below the user's home); of HTTP ""."""
    options: Mapping[str, str] = field(default_factory=dict)
    """See `Traits.options`. fsspec's library gets those that we do not know."""
    credentials: Mapping[str, str] = field(default_factory=dict)
    """Field of `Traits.credentials` -> name of the secret. Without any, stores are asked anonymously, and SFTP with the
    user's own keys. fsspec's library gets fields that we do not know."""


@dataclass(frozen=True)
class Traits:
    """What is known about a kind of store."""

    name: str
    """In messages."""
    types: tuple[str, ...] = ()
    """Types of data stores in manifests that are always of this kind."""
    schemes: tuple[str, ...] = ()
    """Schemes of URLs of its buckets. We write the first."""
    options: tuple[str, ...] = ()
    """``path_style`` (``true``, the default with an endpoint, or ``false``), ``timeout_s`` (for a connection on which
    nothing arrives), ``protocol``, ``domain_name``, ``project_id``, and the files ``ca_file``, ``known_hosts``,
    ``key_file``."""
    credentials: tuple[str, ...] = ()
    """``user_name`` and ``password`` (S3: access key and secret key), ``session_token``, ``token``, ``service_account``
    (the text of a JSON file), ``private_key`` (its text; `password` is the key's then)."""
    has_buckets: bool = False
    """Whether the first part of a container is a bucket. Then the store also has an endpoint and a region."""
    has_default_endpoint: bool = False


KINDS: dict[StoreKind, Traits] = {
    StoreKind.S3: Traits(
        "s3 stores",
        ("mount_cos", "s3_datastore"),
        ("s3",),
        ("path_style", "ca_file", "timeout_s"),
        ("user_name", "password", "session_token"),
        has_buckets=True,
        has_default_endpoint=True,
    ),
    StoreKind.GCS: Traits(
        "gcs stores",
        ("gcs_datastore",),
        ("gs", "gcs"),
        ("path_style", "ca_file", "timeout_s"),
        ("user_name", "password", "token", "service_account"),
        has_buckets=True,
        has_default_endpoint=True,
    ),
    StoreKind.SWIFT: Traits(
        "swift stores",
        ("swift_datastore",),
        ("swift",),
        ("domain_name", "project_id", "ca_file", "timeout_s"),
        ("user_name", "password"),
        has_buckets=True,
    ),
    StoreKind.HTTP: Traits(
        "a web server",
        ("http_datastore",),
        (),
        ("ca_file", "timeout_s"),
        ("user_name", "password", "token"),
    ),
    StoreKind.FSSPEC: Traits(
        "",
        ("fsspec_datastore",),
        (),
        ("protocol", "known_hosts", "key_file", "timeout_s"),
        ("user_name", "password", "private_key"),
    ),
    StoreKind.FILE: Traits("a directory"),
}
BY_TYPE: dict[str, StoreKind] = {name: kind for kind, traits in KINDS.items() for name in traits.types}
BUCKETS: dict[str, StoreKind] = {scheme: kind for kind, traits in KINDS.items() for scheme in traits.schemes}
"""Kinds by the scheme of a bucket's URL."""
FILES = frozenset({"ca_file", "known_hosts", "key_file"})
_SFTP = ("sftp", "ssh")
FSSPEC_PROTOCOLS = frozenset({
    "abfs", "adl", "arrow_hdfs", "async_wrapper", "asynclocal", "asyncwrapper", "az", "blockcache", "box", "cached",
    "dask", "data", "dbfs", "dir", "dropbox", "dvc", "file", "filecache", "ftp", "gcs", "gdrive", "generic", "gist",
    "git", "github", "gs", "hdfs", "hf", "http", "https", "jlab", "jupyter", "lakefs", "libarchive", "local",
    "memory", "oci", "ocilake", "oss", "pyscript", "reference", "root", "s3", "s3a", "sftp", "simplecache", "smb",
    "ssh", "tar", "tos", "tosfs", "wandb", "webdav", "webhdfs", "zip",
})  # fmt: skip
"""Protocols in the registry of fsspec 2026.9. Other packages can add some."""
_NEAR = 0.6
_REGION = re.compile(r"[A-Za-z0-9._-]+", re.ASCII)
"""botocore accepts less. Some S3 servers have regions with names that AWS does not allow."""


def why_unknown(address: StoreAddress, names: Collection[str], *, secret: bool = False) -> str:
    """Why one of these is no option of the store, or with `secret` no field of its credentials; "" = all are. What a
    library of fsspec takes is not known here."""
    known = known_fields(address, secret=secret)
    what = "a credential" if secret else "an option"
    for name in names:
        if known is None or name in known:
            continue
        import difflib  # controllers load this module, and ask for no such thing

        near = difflib.get_close_matches(name.lower(), known, n=1, cutoff=_NEAR)
        some = ", ".join(known)
        cure = f"did you mean {near[0]}? It has {some}" if near else f"it has {some}" if some else "it has none"
        return f"{name[:60]!r} is not {what} of {_named(address)}; {cure}"
    return ""


def known_fields(address: StoreAddress, *, secret: bool = False) -> tuple[str, ...] | None:
    """The names of its options, or with `secret` of its credentials; None where a library alone knows them."""
    if address.kind is StoreKind.FSSPEC and address.options.get("protocol") not in _SFTP:
        return None
    traits = KINDS[address.kind]
    names = traits.credentials if secret else traits.options
    return tuple(name for name in names if name != "protocol")


def why_bad(name: str, value: str) -> tuple[str, str]:
    """What is wrong with the value of an option, and what to write; two empty texts = nothing."""
    if name == "path_style" and value not in ("true", "false"):
        return f"{value[:60]!r} is neither true nor false", "write true or false"
    if name == "timeout_s" and not whole_number(value, 3600):
        return f"{value[:60]!r} is not a number of seconds", "write a whole number from 1 to 3600"
    return "", ""


def is_version_1(auth_url: str) -> bool:
    """Return whether a Swift address gives tokens of the first version, which knows no projects and domains."""
    return auth_url.rstrip("/").endswith(("/v1.0", "/v1"))


def why_no_endpoint(url: str) -> str:
    """Return why `url` is not the address of a store; "" = it is."""
    found = parse_url(url)
    is_address = found is not None and found.scheme in ("http", "https") and is_authority(found.authority)
    if found is None or not is_address or found.has_query or not url.isprintable():
        return f"{url[:60]!r} is not the address of a store"
    return ""


def why_no_region(kind: StoreKind, name: str) -> str:
    """Return why no request to a store can be signed for a region of this name; "" = it can."""
    if not name or kind not in (StoreKind.S3, StoreKind.GCS) or _REGION.fullmatch(name):
        return ""
    return f"{name[:60]!r} is not the name of a region"


def half_of_pair(kind: StoreKind, fields: Collection[str]) -> tuple[str, str]:
    """Return the credential that has no effect without another, and the other; two empty texts = all are complete."""
    for name, other in (("user_name", "password"), ("password", "user_name"), ("session_token", "user_name")):
        if name in fields and other not in fields and kind is not StoreKind.FSSPEC:
            return name, other
    return "", ""


def _named(address: StoreAddress) -> str:
    return KINDS[address.kind].name or f"{address.options.get('protocol', '')} stores"
