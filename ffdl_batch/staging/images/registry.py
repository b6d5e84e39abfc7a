"""The registry API, version 2: resolve a reference to the digest and size of an image.

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

from ffdl_batch.domain.data.image_reference import DOCKER_HUB, Reference
from ffdl_batch.domain.data.staging_protocol import FaultClass
from ffdl_batch.domain.data.store_kinds import StoreAddress, StoreKind
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.staging.faults import Fault, TemporaryFailure
from ffdl_batch.staging.stores.http import HttpClient, basic_authorization

_HUB = "registry-1.docker.io"


def is_plain(host: str) -> bool:
    """Return whether the registry is used without TLS: only on this machine, as with Docker."""
    bare = host.rpartition(":")[0] if re.search(r":[0-9]+$", host) else host
    if bare == "localhost":
        return True
    try:
        return ipaddress.ip_address(bare.strip("[]")).is_loopback
    except ValueError:
        return False


def endpoint_of(host: str) -> str:
    """Return the registry's address."""
    return f"{'http' if is_plain(host) else 'https'}://{_HUB if host == DOCKER_HUB else host}"


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
        self._client = HttpClient(StoreAddress(StoreKind.HTTP, endpoint_of(reference.host)), 1, "http")
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
        url = f"{endpoint_of(self._reference.host)}/v2/{self._reference.name}/manifests/{wanted}"
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
        if basic and realm.startswith("http://") and not is_plain(self._reference.host):
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
