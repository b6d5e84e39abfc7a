"""Resolves a framework and its version to an image."""

from __future__ import annotations

import os
from pathlib import Path

from ffdl_batch.config.image_policy import ImageForbidden, permit
from ffdl_batch.config.settings import FrameworkImages, Settings
from ffdl_batch.domain.data.image_reference import NotAReference, parse_reference
from ffdl_batch.domain.job.spec import Framework
from ffdl_batch.host.permissions import with_denial

_DOCKER = "docker://"
_ON_DISKS = ("oci:", "oci-archive:", "docker-archive:", "docker-daemon:")
"""Schemes of Apptainer and skopeo for images that are in no registry; Apptainer 1.4, `apptainer build --help`."""


class UnknownImage(ValueError):
    """The framework or its version has no image that the job may use; the message has the reason and the cure."""

    def __init__(self, message: str, code: str = "S103") -> None:
        super().__init__(message)
        self.code = code


def known_frameworks(settings: Settings) -> dict[str, tuple[str, ...]]:
    """Return framework → named versions; a framework with a template takes any version (shown as ``*``)."""
    return {
        name: (*sorted(images.versions), *(("*",) if images.template or name == "custom" else ()))
        for name, images in sorted(settings.frameworks.items())
    }


def resolve_image(settings: Settings, framework: Framework) -> str:
    """Return an absolute SIF path or a reference with a scheme, which the site permits. Raises UnknownImage."""
    return _permitted(settings, framework, _named(settings, framework))


def _permitted(settings: Settings, framework: Framework, image: str) -> str:
    location = framework.image_location
    is_private = location is not None and bool(location.access_token)
    try:
        return permit(settings.image_policy, image, is_private=is_private)
    except ImageForbidden as error:
        raise UnknownImage(str(error), "C107") from None


def _named(settings: Settings, framework: Framework) -> str:
    """Return the image that the framework means. Raises UnknownImage."""
    location = framework.image_location
    if location is not None and location.registry:  # AISphere's dialect: registry/namespace/name:version
        parts = (location.registry, location.namespace, framework.name)
        return f"docker://{'/'.join(part for part in parts if part)}:{framework.version}"
    images = settings.frameworks.get(framework.name)
    if images is None:
        known = ", ".join(sorted(settings.frameworks))
        raise UnknownImage(f"framework {framework.name!r} is not known here; known are {known}")
    reference = _reference(framework, images)
    if "://" in reference:
        return _possible(reference)
    if reference.startswith(_ON_DISKS):
        raise UnknownImage(
            f"image {reference} is not in a registry; make a SIF file of it (apptainer build NAME.sif {reference}) and "
            "name that by its path"
        )
    if reference.startswith("/") or reference.endswith(".sif"):
        return _existing(settings, Path(reference))
    if reference == framework.version and ("/" in reference or ":" in reference):  # custom: FfDL's OCI reference
        return _possible(f"{_DOCKER}{reference}")
    found = _in_images_dirs(settings, reference)
    if found is None:
        places = " or ".join(settings.images_dirs) or "no images directory (images_dirs is empty)"
        raise UnknownImage(
            f"image {reference}.sif is not in {places}; build it with `make images`, or name an image by path "
            f"or with a scheme, as docker://{reference}"
        )
    return str(found)


def resolve_oci_image(settings: Settings, framework: Framework) -> str:
    """The reference of an image that a cluster pulls, without a scheme. Raises :class:`UnknownImage` for one that is a
    SIF file, too: no cluster can start that."""
    images = settings.frameworks.get(framework.name)
    if images is not None and framework.image_location is None and framework.version in images.oci:
        return _permitted(settings, framework, f"{_DOCKER}{images.oci[framework.version]}").removeprefix(_DOCKER)
    if images is not None and framework.image_location is None:
        reference = _reference(framework, images)
        is_file = reference.endswith(".sif") or not (set(reference) & set("/:"))
        if is_file or reference.startswith("/") or ("://" in reference and not reference.startswith(_DOCKER)):
            raise UnknownImage(
                f"image {reference} of {framework.name} {framework.version} is not one that Kubernetes can pull; name "
                f'one by "{framework.version}" = "registry/name:tag" in [frameworks.{framework.name}.oci]'
            )
    return resolve_image(settings, framework).removeprefix(_DOCKER)


def _possible(reference: str) -> str:
    """The reference. Raises :class:`UnknownImage` where no registry can have such a name (distribution/reference)."""
    if not reference.startswith(_DOCKER):
        return reference
    try:
        parse_reference(reference)
    except NotAReference:
        raise UnknownImage(
            f"image {reference!r} is not a valid reference: write NAME:TAG or NAME@sha256:DIGEST; names are lower case "
            "without spaces"
        ) from None
    return reference


def _reference(framework: Framework, images: FrameworkImages) -> str:
    if framework.version in images.versions:
        return images.versions[framework.version]
    if framework.name == "custom":
        return framework.version
    if images.template:
        return images.template.replace("{version}", framework.version)
    known = ", ".join(sorted(images.versions)) or "none"
    raise UnknownImage(f"framework {framework.name} has no version {framework.version!r} here; known are {known}")


def _in_images_dirs(settings: Settings, name: str) -> Path | None:
    if "/" in name or name in (".", ".."):
        return None
    candidates = (Path(directory) / f"{name}.sif" for directory in settings.images_dirs)
    return next((path for path in candidates if os.path.exists(path)), None)  # noqa: PTH110 - False if it may not be seen


def _existing(settings: Settings, path: Path) -> str:
    if not path.is_absolute():
        found = _in_images_dirs(settings, path.stem)
        if found is None:
            raise UnknownImage(f"image {path} is in none of {', '.join(settings.images_dirs) or 'no directory'}")
        return str(found)
    try:
        if settings.check_images:
            path.stat()
    except (FileNotFoundError, NotADirectoryError):
        raise UnknownImage(f"image {path} does not exist; correct framework.version, or build the image") from None
    except OSError as error:
        message = f"image {path} cannot be reached: {error.strerror}"
        raise UnknownImage(with_denial(message, error)) from error
    return str(path)
