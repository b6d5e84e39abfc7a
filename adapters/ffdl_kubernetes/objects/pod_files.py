"""What a pod is given as files: ConfigMaps and a Secret."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping

from ffdl_batch.domain.data.image_task import TOKEN_USER
from ffdl_batch.domain.job.secret_references import reference
from ffdl_kubernetes.objects.names import Plain, image_secret, metadata, model_part

PART_BYTES = 1000 * 1000
"""Of a model archive in one ConfigMap, which holds 1 MiB (kubernetes.io, "ConfigMaps")."""
HIDDEN = "(not shown)"
"""In plans, in the place of the value of a variable or a secret."""
DOCKER_HUB = "https://index.docker.io/v1/"
"""What credentials of the registry without a name are kept under (kubernetes.io, "Pull an Image from a Private
Registry")."""
DOCKER_CONFIG = ".dockerconfigjson"
MODEL_KEY = "model.zip.{:03d}"
"""Of a part of the model archive."""


def configuration(
    token: str, job_id: str, attempt: int, texts: Mapping[str, str], archive: bytes | None = b""
) -> Plain:
    """Return the ConfigMap with the launch file, the shim, and the model archive if it fits (None = it has its own
    ConfigMaps). Plans have an empty archive."""
    with_model = {} if archive is None else {"binaryData": {MODEL_KEY.format(0): base64.b64encode(archive).decode()}}
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(token, job_id, attempt),
        "immutable": True,
        "data": dict(texts),
        **with_model,
    }


def fits_config_map(texts: Mapping[str, str], size: int) -> bool:
    """Return whether one ConfigMap holds these texts and a model archive of `size` bytes."""
    return sum(len(text.encode()) for text in texts.values()) + size <= PART_BYTES


def private(token: str, job_id: str, attempt: int, texts: Mapping[str, str]) -> Plain:
    """Return the Secret. Plans and printed objects have :data:`HIDDEN` instead of the values, which are added when it
    is sent."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": metadata(token, job_id, attempt),
        "type": "Opaque",
        "stringData": dict(texts),
    }


def hidden(names: Mapping[str, str] | tuple[str, ...]) -> str:
    """Return a file of the Secret with :data:`HIDDEN` for each of the names."""
    return json.dumps(dict.fromkeys(sorted(names), HIDDEN)) + "\n"


def pull_secret(token: str, job_id: str, attempt: int, image: str, credentials: Mapping[str, str]) -> Plain:
    """Return the Secret with which kubelet pulls `image`. `credentials` maps fields of
    :class:`ffdl_batch.domain.data.image_task.ImageTask` to names of secrets. The values are added when it is sent."""
    user = reference(credentials["user_name"]) if "user_name" in credentials else TOKEN_USER
    known = {"username": user, "password": reference(credentials["password"])}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": metadata(image_secret(token), job_id, attempt),
        "type": "kubernetes.io/dockerconfigjson",
        "stringData": {DOCKER_CONFIG: json.dumps({"auths": {registry_of(image): known}})},
    }


def registry_of(image: str) -> str:
    """Return the registry in an image's reference: the first part, if it can be the name of a host."""
    first, slash, _ = image.partition("/")
    return first if slash and (set(first) & set(".:") or first == "localhost") else DOCKER_HUB


def model_parts(token: str, job_id: str, attempt: int, archive: bytes) -> list[Plain]:
    """ConfigMaps with a model archive that has no room beside the launch file."""
    starts = range(0, number_of_parts(len(archive)) * PART_BYTES, PART_BYTES)
    return [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": metadata(model_part(token, number), job_id, attempt),
            "immutable": True,
            "binaryData": {
                MODEL_KEY.format(number): base64.b64encode(archive[start : start + PART_BYTES]).decode("ascii")
            },
        }
        for number, start in enumerate(starts)
    ]


def number_of_parts(size: int) -> int:
    """Return how many ConfigMaps an archive of `size` bytes needs."""
    return max(1, -(-size // PART_BYTES))
