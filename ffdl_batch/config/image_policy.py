"""Decide whether the image policy of the site permits an image, and where nodes get it from.

No other setting, and nothing in a manifest, changes the decision about an image.
"""

from __future__ import annotations

import os
from collections.abc import Collection

from ffdl_batch.config.settings import ImagePolicy
from ffdl_batch.domain.data.image_reference import (
    HOST,
    NAME,
    SCHEMES,
    NotAReference,
    Reference,
    is_host,
    normal_host,
    parse_reference,
)

_ASK = "or ask the administrators of the site"


class ImageForbidden(ValueError):
    """The policy forbids the image; the message names the rule and what to do."""


def permit(policy: ImagePolicy, image: str, *, is_private: bool) -> str:
    """Return the image to start: the path of a file without links, or a reference in full, at its mirror if it has one.

    A private image has no mirror: its credentials are for the registry that the manifest names. Raises ImageForbidden.
    """
    if policy == ImagePolicy():
        return image
    if image.startswith("/"):
        real = os.path.realpath(image)
        allowed = [os.path.realpath(one) for one in policy.allow if one.startswith("/")]
        _check_place(policy, image, real, allowed)
        return real
    try:
        reference = parse_reference(image)
    except NotAReference:
        names = ", ".join(f"{scheme}://" for scheme in SCHEMES)
        raise ImageForbidden(
            f"image {image!r}: the site permits only image files and registry images ({names})"
        ) from None
    _check_place(policy, image, reference.place, policy.allow)
    if not reference.is_pinned and any(is_below(reference.place, one) for one in policy.require_digest):
        raise ImageForbidden(
            f"image {image!r} has no digest, which image_policy.require_digest requires; write "
            f"{_with_digest(reference)}"
        )
    return reference.at(reference.place if is_private else _mirrored(policy, reference))


def _check_place(policy: ImagePolicy, image: str, place: str, allowed: Collection[str]) -> None:
    if policy.allow and not any(is_below(place, one) for one in allowed):
        where = "" if place in image else f" ({_shown(place)})"
        permitted = ", ".join(map(_shown, policy.allow))
        raise ImageForbidden(
            f"image {image!r}{where} is not permitted by image_policy.allow; use an image from {permitted}, {_ASK} to "
            "add it"
        )


def _shown(place: str) -> str:
    return place.replace(":///", "://")


def _with_digest(reference: Reference) -> str:
    if reference.scheme == "library":
        return f"{_shown(reference.place)}:sha256.DIGEST"
    return f"{reference.place}@sha256:DIGEST (skopeo inspect prints it)"


def _mirrored(policy: ImagePolicy, reference: Reference) -> str:
    """Return the place of the image at its mirror. Of several entries, the longest one counts."""
    scheme, _, place = reference.place.partition("://")
    for original in sorted(policy.mirrors, key=len, reverse=True):
        if scheme != "library" and is_below(place, original):
            return f"{scheme}://{policy.mirrors[original]}{place.removeprefix(original)}"
    return reference.place


def is_below(place: str, prefix: str) -> bool:
    """Return whether `prefix` is `place` or has it, part by part."""
    return place == prefix or place.startswith(prefix if prefix.endswith("/") else f"{prefix}/")


def read_prefix(text: str) -> str:
    """Return an entry of the table in the form that images are compared with. Raises ValueError with what is wrong."""
    if text.startswith("/"):
        return os.path.normpath(text)
    scheme, sign, rest = text.partition("://")
    scheme = scheme.lower()
    if not sign or scheme not in SCHEMES:
        raise ValueError(f"{text!r} must be an absolute path or start with docker://, oras:// or library://")
    if not rest:
        return f"{scheme}://"
    host, _, name = rest.rstrip("/").partition("/")
    if not is_host(host):
        if scheme == "docker":
            raise ValueError(f"{text!r} has no registry host; write docker://docker.io/{rest} for Docker Hub")
        if scheme == "library":
            host, name = "", rest.rstrip("/")
    host = normal_host(host)
    if (host and not HOST.fullmatch(host)) or (name and not NAME.fullmatch(name)):
        raise ValueError(f"{text!r} is not a valid prefix; write SCHEME://HOST/PATH without tag or digest")
    return f"{scheme}://{host}/{name}".rstrip("/")


def read_place(text: str) -> str:
    """Return HOST[/PATH], an entry of `mirrors`, in the form that images are compared with. Raises ValueError."""
    return read_prefix(f"docker://{text}").partition("://")[2]
