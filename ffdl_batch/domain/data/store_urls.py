"""URLs that name store, container and prefix on a command line. Pure."""

from __future__ import annotations

import re
import urllib.parse
from collections.abc import Mapping
from dataclasses import field, replace

from ffdl_batch.domain.data.store_kinds import (
    BUCKETS,
    KINDS,
    StoreAddress,
    StoreKind,
    half_of_pair,
    why_bad,
    why_no_endpoint,
    why_no_region,
    why_unknown,
)
from ffdl_batch.domain.network_address import is_authority
from ffdl_batch.host.fast_dataclass import dataclass

_URL = re.compile(r"([a-z][a-z0-9+.-]*)://([^/]*)(?:/(.*))?", re.IGNORECASE | re.DOTALL)
_OF_HOSTS = frozenset({"sftp", "ssh", "ftp", "smb", "hdfs", "arrow_hdfs", "webhdfs"})
"""Protocols of fsspec whose addresses name a host, not a container."""
_WITH_HOME = ("sftp", "ssh")
_HOME = "~/"


class StoreUrlError(ValueError):
    """A text that names no store; the message hides a password in it."""


@dataclass(frozen=True, slots=True)
class StorePlace:
    """A store without credentials, and a prefix in it."""

    address: StoreAddress
    prefix: str
    user: str = ""
    """The user in the URL; "" = none."""


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """The command-line options beside the URL."""

    endpoint: str = ""
    region: str = ""
    options: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict)
    """Field of the credentials → name of the secret."""


def read_store_url(url: str, options: StoreOptions) -> StorePlace:
    """Return the store and the prefix that `url` and `options` name. Raises StoreUrlError."""
    found = _URL.fullmatch(url)
    if found is None:
        raise StoreUrlError(
            f"{_shown(url)} is not the URL of a store; write for example s3://BUCKET/PREFIX, sftp://HOST/PATH or file:///PATH"
        )
    scheme, place, rest = found[1].lower(), found[2], found[3] or ""
    user, place = _user(place)
    if scheme in ("http", "https"):
        made = _web(scheme, place, rest)
    elif scheme == "file":
        made = _file(place, rest)
    elif scheme in BUCKETS:
        made = _in_bucket(BUCKETS[scheme], scheme, place, rest)
    else:
        made = _by_fsspec(scheme, place, rest)
    if user and made.address.kind is not StoreKind.FSSPEC:
        raise StoreUrlError(f"a {scheme} URL names no user; name a secret, or set the environment's variables")
    return replace(made, address=_with_options(made.address, options), user=user)


def format_store_url(address: StoreAddress, prefix: str) -> str:
    """Return the URL of a prefix of a store, which :func:`read_store_url` reads; without credentials, and without the
    endpoint if the address names no host."""
    if address.kind is StoreKind.HTTP:
        return f"{address.endpoint.rstrip('/')}/{urllib.parse.quote(prefix)}"
    path = f"{address.container.rstrip('/')}/{prefix}" if address.container else prefix
    path = path.rstrip("/") or path
    if address.kind is StoreKind.FILE:
        return f"file://{urllib.parse.quote(path)}"
    if address.kind is not StoreKind.FSSPEC:
        return f"{KINDS[address.kind].schemes[0]}://{path}"
    protocol = address.options.get("protocol", "")
    if protocol in _WITH_HOME and not path.startswith("/"):
        path = f"{_HOME}{path}"
    return f"{protocol}://{address.endpoint}/{path.lstrip('/')}" if address.endpoint else f"{protocol}://{path}"


def _shown(url: str) -> str:
    return repr(re.sub(r"://[^/@]*@", "://***@", url)[:80])


def _user(place: str) -> tuple[str, str]:
    user, at, host = place.rpartition("@")
    if ":" in user:
        raise StoreUrlError("the URL contains a password, which others could read; name a secret instead (--secret)")
    return (user, host) if at else ("", place)


def _web(scheme: str, place: str, rest: str) -> StorePlace:
    if not place or "?" in rest or "#" in rest:
        raise StoreUrlError("the URL of a file on a web server is https://HOST/PATH, without a query")
    _check_host(place)
    return StorePlace(StoreAddress(StoreKind.HTTP, f"{scheme}://{place}"), urllib.parse.unquote(rest).strip("/"))


def _file(place: str, rest: str) -> StorePlace:
    if place not in ("", "localhost") or not rest.strip("/"):
        raise StoreUrlError("the URL of a directory is file:///PATH, with three slashes")
    return StorePlace(StoreAddress(StoreKind.FILE, container=f"/{urllib.parse.unquote(rest).strip('/')}"), "")


def _in_bucket(kind: StoreKind, scheme: str, place: str, rest: str) -> StorePlace:
    if not place:
        raise StoreUrlError(f"the URL names no bucket; write {scheme}://BUCKET/PREFIX")
    return StorePlace(StoreAddress(kind, container=place), rest.strip("/"))


def _by_fsspec(scheme: str, place: str, rest: str) -> StorePlace:
    options = {"protocol": scheme}
    if not place:
        raise StoreUrlError(f"the URL names no {'host' if scheme in _OF_HOSTS else 'container'}")
    if scheme not in _OF_HOSTS:
        return StorePlace(StoreAddress(StoreKind.FSSPEC, container=place, options=options), rest.strip("/"))
    _check_host(place)
    is_home = scheme in _WITH_HOME and f"{rest}/".startswith(_HOME)
    container, prefix = ("", rest.removeprefix("~")) if is_home else ("/", rest)
    address = StoreAddress(StoreKind.FSSPEC, place, container=container, options=options)
    return StorePlace(address, prefix.strip("/"))


def _check_host(place: str) -> None:
    if not is_authority(place):
        raise StoreUrlError(f"{place[:60]!r} is not a host; write HOST or HOST:PORT, and an IPv6 address in brackets")


def _with_options(address: StoreAddress, options: StoreOptions) -> StoreAddress:
    if "@" in options.endpoint:
        raise StoreUrlError("--endpoint contains a user's name or password; name a secret instead (--secret)")
    has_buckets = KINDS[address.kind].has_buckets
    if options.endpoint and has_buckets and why_no_endpoint(options.endpoint):
        raise StoreUrlError(f"--endpoint {why_no_endpoint(options.endpoint)}; write https://HOST[:PORT]")
    if options.endpoint and (address.endpoint or not (has_buckets or address.kind is StoreKind.FSSPEC)):
        raise StoreUrlError("the URL says where the store is; --endpoint is for buckets and containers")
    if options.region and not has_buckets:
        raise StoreUrlError("--region is for s3://, gs:// and swift:// alone")
    if why := why_no_region(address.kind, options.region):
        raise StoreUrlError(f"--region: {why}")
    _check_fields(address, options)
    return replace(
        address,
        endpoint=address.endpoint or options.endpoint,
        region=options.region,
        options={**address.options, **options.options},
    )


def _check_fields(address: StoreAddress, options: StoreOptions) -> None:
    """Raise StoreUrlError for an option or a credential that the store would ignore or refuse."""
    for option, names, is_secret in (("--option", options.options, False), ("--secret", options.secrets, True)):
        if why := why_unknown(address, names, secret=is_secret):
            raise StoreUrlError(f"{option}: {why}")
    for name, value in options.options.items():
        message, cure = why_bad(name, value)
        if message:
            raise StoreUrlError(f"--option {name}: {message}; {cure}")
    one, other = half_of_pair(address.kind, options.secrets)
    if one:
        raise StoreUrlError(f"--secret names a {one} and no {other}; name both, or none")
