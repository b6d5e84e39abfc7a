"""The task of the staging program that stores an image in the cache as a SIF file. Runs on Python 3.9.

``python -m ffdl_batch.staging --image FILE`` prints lines of :mod:`ffdl_batch.domain.data.staging_protocol`:
``cached``, whose tree has the one file :data:`SIF`, and ``done``; or a note and ``done``, if the reference is to be
used as it is; or ``failed``, if the registry has no such image, or refuses the credentials.
"""

from __future__ import annotations

import json
from dataclasses import field
from typing import Mapping

from ffdl_batch.domain.codec import CodecError, from_plain, to_plain
from ffdl_batch.domain.data.staging_protocol import Cache, StageTaskError
from ffdl_batch.host.fast_dataclass import dataclass

SIF = "image.sif"
NO_IMAGE = "S103"
"""Error code of a job whose image does not exist."""
NO_RUNTIME = "S105"
"""Error code of a job whose image needs what the node's program cannot do."""
TOKEN_USER = "token"  # noqa: S105 - a user's name
"""User name for a token, as in FfDL; registries with tokens ignore the name or accept this one."""
SCHEMES = ("docker://", "oras://")


@dataclass(frozen=True)
class ImageTask:
    """The image that `reference` names now."""

    reference: str
    cache: Cache
    program: str = "apptainer"
    """Apptainer."""
    secrets_file: str = ""
    credentials: Mapping[str, str] = field(default_factory=dict)
    """``user_name`` and ``password`` → names of secrets, whose values are in `secrets_file`; empty = the registry is
    asked anonymously. Without a ``user_name`` it is :data:`TOKEN_USER`."""
    rate_line_s: float = 10.0
    tries: int = 5
    pause_s: float = 1.0


def is_convertible(image: str) -> bool:
    """Return whether the cache turns this image into a SIF file."""
    return image.startswith(SCHEMES)


def encode_image_task(task: ImageTask) -> str:
    """Return the text of the task's file."""
    return json.dumps(to_plain(task), indent=1) + "\n"


def decode_image_task(text: str) -> ImageTask:
    """Return the task in the text. Raises StageTaskError."""
    try:
        task = from_plain(ImageTask, json.loads(text))
    except (CodecError, ValueError) as error:
        raise StageTaskError(f"the task cannot be read: {error}") from error
    if not is_convertible(task.reference):
        raise StageTaskError(f"{task.reference!r} is not an image of a registry")
    if not task.cache.directory.startswith("/"):
        raise StageTaskError(f"the cache {task.cache.directory!r} is not absolute")
    if task.tries < 1:
        raise StageTaskError("tries is at least 1")
    return task
