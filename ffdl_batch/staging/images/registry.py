"""A registry is asked which image a reference means now: its digest and its size, by version 2 of its API.

Source: the OCI distribution specification 1.1 (manifests, digests) and Docker's token authentication.
"""

from __future__ import annotations

import base64
import hashlib
import json
import platform
import re
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ffdl_batch.domain.data.staging_protocol import FaultClass, StoreAddress, StoreKind
from ffdl_batch.staging.faults import Fault, Passing
from ffdl_batch.staging.images.reference import Reference
from ffdl_batch.staging.stores.http_client import Wire

_INDEXES = ("application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json")
_MANIFESTS = ("application/vnd.oci.image.manifest.v1+json", "application/vnd.docker.distribution.manifest.v2+json")
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_PARAMETER = re.compile(r'([a-z]+)="([^"]*)"')
MOST_BYTES = 8 << 20
"""Of a manifest; registries refuse larger ones."""


@dataclass(frozen=True, slots=True)
class Image:
    """An image for this machine: the digest of its manifest, and the bytes of its layers as they are fetched."""

    digest: str
    bytes: int


class Registry:
    """One registry, asked for one image."""

    def __init__(self, reference: Reference, credentials: Mapping[str, str]) -> None:
        self._reference, self._credentials = reference, credentials
        self._wire = Wire(StoreAddress(StoreKind.HTTP, reference.endpoint), 1, "http")
        self._authorization = ""

    def close(self) -> None:
        """Close connections."""
        self._wire.close()

    def look_up(self) -> Image:
        """The image for this machine's architecture. Raises Fault, Passing."""
        digest, manifest = self._manifest(self._reference.wanted)
        if "manifests" in manifest:
            digest, manifest = self._manifest(_of_this_machine(manifest["manifests"]))
        layers = manifest.get("layers")
        if not isinstance(layers, list):
            raise Fault(FaultClass.REFUSED, "its manifest is of a kind that is not known here")
        return Image(digest, sum(int(layer.get("size", 0)) for layer in layers))

    def _manifest(self, wanted: str) -> tuple[str, dict[str, Any]]:
        """With its digest, which is held against what was asked for."""
        url = f"{self._reference.endpoint}/v2/{self._reference.name}/manifests/{wanted}"
        data = self._get(url, {"Accept": ", ".join((*_INDEXES, *_MANIFESTS))})
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        if wanted.startswith("sha256:") and wanted != digest:
            raise Passing("what came is not what its digest says")
        return digest, _parsed(data)

    def _get(self, url: str, headers: Mapping[str, str]) -> bytes:
        for is_second in (False, True):
            asked = {**headers, **({"Authorization": self._authorization} if self._authorization else {})}
            with self._wire.ask("GET", url, asked, also=() if is_second else (401,)) as answer:
                if answer.status != 401:
                    return bytes(answer.read(MOST_BYTES))
                challenge = answer.headers.get("WWW-Authenticate", "")
            self._authorization = self._authorized(challenge)
        raise AssertionError("the second answer is one or the other")

    def _authorized(self, challenge: str) -> str:
        """What is to be said of who asks, by the registry's own words. Raises Fault, Passing."""
        kind, _, rest = challenge.partition(" ")
        basic = self._basic()
        if kind.lower() == "basic" and basic:
            return basic
        given = dict(_PARAMETER.findall(rest))
        realm = given.pop("realm", "")
        if kind.lower() != "bearer" or not realm.startswith(("https://", "http://")):
            raise Fault(FaultClass.CREDENTIALS, "it wants credentials, and there are none")
        if basic and realm.startswith("http://") and not self._reference.is_plain:
            raise Fault(FaultClass.CREDENTIALS, "it wants the password to be sent without TLS")
        query = urllib.parse.urlencode({name: given[name] for name in ("service", "scope") if name in given})
        with self._wire.ask("GET", f"{realm}?{query}", {"Authorization": basic} if basic else {}) as answer:
            plain = _parsed(bytes(answer.read(MOST_BYTES)))
        return f"Bearer {plain.get('token') or plain.get('access_token') or ''}"

    def _basic(self) -> str:
        if "user_name" not in self._credentials:
            return ""
        pair = f"{self._credentials['user_name']}:{self._credentials.get('password', '')}"
        return f"Basic {base64.b64encode(pair.encode()).decode()}"


def _parsed(data: bytes) -> dict[str, Any]:
    try:
        plain = json.loads(data)
    except ValueError:
        plain = None
    if not isinstance(plain, dict):
        raise Passing("its answer is not JSON")
    return plain


def _of_this_machine(manifests: list[dict[str, Any]]) -> str:
    machine = platform.machine()
    wanted = _ARCHITECTURES.get(machine, machine)
    for one in manifests:
        found = one.get("platform", {})
        if found.get("architecture") == wanted and found.get("os", "linux") == "linux":
            return str(one["digest"])
    raise Fault(FaultClass.MISSING, f"there is none for {wanted}")
