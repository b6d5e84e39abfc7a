"""Image references, and the registry API, version 2: resolve a reference to the digest and size of an image.

Source: the OCI distribution specification 1.1 (manifests, digests) and Docker's token authentication.
"""

from __future__ import annotations

import hashlib
import ipaddress
import json
import platform
import re
import urllib.parse
from collections.abc import Mapping
from typing import Any

from ffdl_batch.domain.data.staging_protocol import FaultClass
from ffdl_batch.domain.data.store_kinds import StoreAddress, StoreKind
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.staging.faults import Fault, TemporaryFailure
from ffdl_batch.staging.stores.http import HttpClient, basic_authorization

_DOCKER, _HUB = "docker.io", "registry-1.docker.io"
_NAME = re.compile(r"[a-z0-9]+(?:[._/-]+[a-z0-9]+)*", re.ASCII)
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}", re.ASCII)
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}", re.ASCII)
_HOST = re.compile(r"[A-Za-z0-9.-]+(?::[0-9]{1,5})?|\[[0-9a-f:]+\](?::[0-9]{1,5})?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Reference:
    """An image: `host` with its port, `name` in the registry, and the requested tag or digest."""

    scheme: str
    host: str
    name: str
    tag: str = "latest"
    digest: str = ""

    @property
    def wanted(self) -> str:
        """Return the digest, or else the tag."""
        return self.digest or self.tag

    @property
    def is_plain(self) -> bool:
        """Return whether the registry is used without TLS: only on this machine, as with Docker."""
        bare = self.host.rpartition(":")[0] if re.search(r":[0-9]+$", self.host) else self.host
        if bare == "localhost":
            return True
        try:
            return ipaddress.ip_address(bare.strip("[]")).is_loopback
        except ValueError:
            return False

    @property
    def endpoint(self) -> str:
        """Return the registry's address."""
        host = _HUB if self.host == _DOCKER else self.host
        return f"{'http' if self.is_plain else 'https'}://{host}"

    def pinned(self, digest: str) -> str:
        """Return the reference with the digest, for Apptainer."""
        return f"{self.scheme}://{self.host}/{self.name}@{digest}"


def parse_reference(text: str) -> Reference:
    """Parse it as Docker does: a first part without a dot, a colon or ``localhost`` is not a host. Raises Fault."""
    scheme, _, rest = text.partition("://")
    rest, _, digest = rest.partition("@")
    host, slash, name = rest.partition("/")
    if not slash or not ("." in host or ":" in host or host == "localhost"):
        host, name = _DOCKER, rest
    name, colon, tag = name.partition(":")
    if host in (_DOCKER, "index.docker.io"):
        host = _DOCKER
        name = name if "/" in name else f"library/{name}"
    tag = tag if colon else "latest"
    good = _HOST.fullmatch(host) and _NAME.fullmatch(name) and _TAG.fullmatch(tag)
    if not good or (digest and not _DIGEST.fullmatch(digest)):
        raise Fault(FaultClass.REFUSED, f"{text!r} is not a reference to an image")
    return Reference(scheme, host, name, tag, digest)


_INDEXES = ("application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json")
_MANIFESTS = ("application/vnd.oci.image.manifest.v1+json", "application/vnd.docker.distribution.manifest.v2+json")
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_PARAMETER = re.compile(r'([a-z]+)="([^"]*)"')
MOST_BYTES = 8 << 20
"""Maximum size of a manifest. Registries refuse larger ones."""


@dataclass(frozen=True, slots=True)
class Image:
    """An image for this machine: the digest of its manifest, and the bytes of its compressed layers."""

    digest: str
    bytes: int


class Registry:
    """One registry, for one image."""

    def __init__(self, reference: Reference, credentials: Mapping[str, str]) -> None:
        self._reference, self._credentials = reference, credentials
        self._client = HttpClient(StoreAddress(StoreKind.HTTP, reference.endpoint), 1, "http")
        self._authorization = ""

    def close(self) -> None:
        """Close connections."""
        self._client.close()

    def look_up(self) -> Image:
        """Return the image for this machine's architecture. Raises Fault, TemporaryFailure."""
        digest, manifest = self._manifest(self._reference.wanted)
        if "manifests" in manifest:
            digest, manifest = self._manifest(_of_this_machine(manifest["manifests"]))
        layers = manifest.get("layers")
        if not isinstance(layers, list):
            raise Fault(FaultClass.REFUSED, "its manifest is of a kind that is not known here")
        return Image(digest, sum(int(layer.get("size", 0)) for layer in layers))

    def _manifest(self, wanted: str) -> tuple[str, dict[str, Any]]:
        """Return a manifest and its digest, which must match a requested digest."""
        url = f"{self._reference.endpoint}/v2/{self._reference.name}/manifests/{wanted}"
        data = self._get(url, {"Accept": ", ".join((*_INDEXES, *_MANIFESTS))})
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        if wanted.startswith("sha256:") and wanted != digest:
            raise TemporaryFailure("what came is not what its digest says")
        return digest, _parsed(data)

    def _get(self, url: str, headers: Mapping[str, str]) -> bytes:
        for is_second in (False, True):
            asked = {**headers, **({"Authorization": self._authorization} if self._authorization else {})}
            with self._client.ask("GET", url, asked, also=() if is_second else (401,)) as answer:
                if answer.status != 401:
                    return bytes(answer.read(MOST_BYTES))
                challenge = answer.headers.get("WWW-Authenticate", "")
            self._authorization = self._authorized(challenge)
        raise AssertionError("the second answer is one or the other")

    def _authorized(self, challenge: str) -> str:
        """Return the Authorization header that the registry's challenge asks for. Raises Fault, TemporaryFailure."""
        kind, _, rest = challenge.partition(" ")
        basic = basic_authorization(self._credentials)
        if kind.lower() == "basic" and basic:
            return basic
        given = dict(_PARAMETER.findall(rest))
        realm = given.pop("realm", "")
        if kind.lower() != "bearer" or not realm.startswith(("https://", "http://")):
            raise Fault(FaultClass.CREDENTIALS, "it wants credentials, and there are none")
        if basic and realm.startswith("http://") and not self._reference.is_plain:
            raise Fault(FaultClass.CREDENTIALS, "it wants the password to be sent without TLS")
        query = urllib.parse.urlencode({name: given[name] for name in ("service", "scope") if name in given})
        with self._client.ask("GET", f"{realm}?{query}", {"Authorization": basic} if basic else {}) as answer:
            plain = _parsed(bytes(answer.read(MOST_BYTES)))
        return f"Bearer {plain.get('token') or plain.get('access_token') or ''}"


def _parsed(data: bytes) -> dict[str, Any]:
    try:
        plain = json.loads(data)
    except ValueError:
        plain = None
    if not isinstance(plain, dict):
        raise TemporaryFailure("its answer is not JSON")
    return plain


def _of_this_machine(manifests: list[dict[str, Any]]) -> str:
    machine = platform.machine()
    wanted = _ARCHITECTURES.get(machine, machine)
    for one in manifests:
        found = one.get("platform", {})
        if found.get("architecture") == wanted and found.get("os", "linux") == "linux":
            return str(one["digest"])
    raise Fault(FaultClass.MISSING, f"there is none for {wanted}")
