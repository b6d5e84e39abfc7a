"""What a reference to an image means. Pure."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

from ffdl_batch.domain.data.staging_protocol import FaultClass
from ffdl_batch.staging.faults import Fault

_DOCKER, _HUB = "docker.io", "registry-1.docker.io"
_NAME = re.compile(r"[a-z0-9]+(?:[._/-]+[a-z0-9]+)*", re.ASCII)
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}", re.ASCII)
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}", re.ASCII)
_HOST = re.compile(r"[A-Za-z0-9.-]+(?::[0-9]{1,5})?|\[[0-9a-f:]+\](?::[0-9]{1,5})?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Reference:
    """An image: `host` with its port, `name` in the registry, and the tag or the digest that is asked for."""

    scheme: str
    host: str
    name: str
    tag: str = "latest"
    digest: str = ""

    @property
    def wanted(self) -> str:
        """What the registry is asked for."""
        return self.digest or self.tag

    @property
    def is_plain(self) -> bool:
        """Whether it is spoken to without TLS: on this machine alone, as Docker does."""
        bare = self.host.rpartition(":")[0] if re.search(r":[0-9]+$", self.host) else self.host
        if bare == "localhost":
            return True
        try:
            return ipaddress.ip_address(bare.strip("[]")).is_loopback
        except ValueError:
            return False

    @property
    def endpoint(self) -> str:
        """The registry's address."""
        host = _HUB if self.host == _DOCKER else self.host
        return f"{'http' if self.is_plain else 'https'}://{host}"

    def pinned(self, digest: str) -> str:
        """The reference that means this very image, for Apptainer."""
        return f"{self.scheme}://{self.host}/{self.name}@{digest}"


def parse_reference(text: str) -> Reference:
    """As Docker reads it: a first part without a dot, a colon or ``localhost`` is no host. Raises Fault."""
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
        raise Fault(FaultClass.REFUSED, f"{text!r} is no reference to an image")
    return Reference(scheme, host, name, tag, digest)
