"""References to images of container registries: parse them as Docker and Apptainer do, and write them unambiguously."""

from __future__ import annotations

import re

from ffdl_batch.host.fast_dataclass import dataclass

DOCKER_HUB = "docker.io"
SCHEMES = ("docker", "oras", "library")
_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
NAME = re.compile(rf"{_PART}(?:/{_PART})*", re.ASCII)
"""The grammar of github.com/distribution/reference. It excludes ``..`` and empty parts."""
HOST = re.compile(r"[a-z0-9.-]+(?::[0-9]{1,5})?|\[[0-9a-f:]+\](?::[0-9]{1,5})?", re.ASCII)
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}", re.ASCII)
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}", re.ASCII)


class NotAReference(ValueError):
    """The text cannot name an image of a registry."""


@dataclass(frozen=True, slots=True)
class Reference:
    """An image: `host` with its port, `name` in the registry, and the requested tag or digest."""

    scheme: str
    host: str
    """"" = the library that Apptainer is configured for."""
    name: str
    tag: str = "latest"
    digest: str = ""

    @property
    def wanted(self) -> str:
        """Return the digest, or else the tag."""
        return self.digest or self.tag

    @property
    def is_pinned(self) -> bool:
        """Return whether it names the content of the image. Libraries have digests as tags."""
        return bool(self.digest) or (self.scheme == "library" and self.tag.startswith("sha256."))

    @property
    def place(self) -> str:
        """Return the reference without tag and digest. A library without a host gives three slashes."""
        return f"{self.scheme}://{self.host}/{self.name}"

    def at(self, place: str) -> str:
        """Return the reference to this image at `place`. Apptainer accepts no tag beside a digest."""
        return f"{place.replace(':///', '://')}{'@' if self.digest else ':'}{self.wanted}"

    def pinned(self, digest: str) -> str:
        """Return the reference with the digest, for Apptainer."""
        return f"{self.place}@{digest}"


def parse_reference(text: str) -> Reference:
    """Parse a reference. Raises NotAReference.

    As for Docker, the first part of a docker:// reference is a host only if it has a dot or a colon, or is
    ``localhost``. As for Apptainer, that of an oras:// reference always is, and that of a library:// reference is if
    three parts follow.
    """
    scheme, _, rest = text.partition("://")
    scheme = scheme.lower()
    rest, _, digest = rest.partition("@")
    host, slash, name = rest.partition("/")
    if scheme == "docker" and not (slash and is_host(host)):
        host, name = DOCKER_HUB, rest
    elif scheme == "library" and rest.count("/") < 3:
        host, name = "", rest
    host = normal_host(host)
    name, colon, tag = name.partition(":")
    if scheme == "docker" and host == DOCKER_HUB and "/" not in name:
        name = f"library/{name}"
    has_host = bool(HOST.fullmatch(host)) or (scheme == "library" and not host)
    good = scheme in SCHEMES and has_host and NAME.fullmatch(name) and (not colon or _TAG.fullmatch(tag))
    if not good or (digest and not _DIGEST.fullmatch(digest)):
        raise NotAReference(f"{text!r} is not a reference to an image")
    return Reference(scheme, host, name, tag if colon else "latest", digest)


def is_host(text: str) -> bool:
    """Return whether the first part of a docker:// reference is a host."""
    return "." in text or ":" in text or text == "localhost"


def normal_host(host: str) -> str:
    """Return the host in small letters, and Docker Hub's under one name."""
    host = host.lower()
    return DOCKER_HUB if host == "index.docker.io" else host
