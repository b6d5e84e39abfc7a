"""What the staging program is told of an image that is to lie in the cache as a SIF file. Runs on Python 3.9.

``python -m ffdl_batch.staging --image FILE`` says what :mod:`ffdl_batch.domain.data.staging_protocol` has: ``cached``,
whose tree has the one file :data:`SIF`, and ``done``; or a note and ``done``, where the image is to be used by its
reference as it is; or ``failed``, where the registry has no such image, or refuses the credentials that it was given.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Mapping

from ffdl_batch.domain.codec import CodecError, from_plain, to_plain
from ffdl_batch.domain.data.staging_protocol import Cache, StageTaskError

SIF = "image.sif"
NO_IMAGE = "S103"
"""The error code of a job whose image is not there."""
NO_RUNTIME = "S105"
"""That of one whose node's program cannot do what the image needs."""
TOKEN_USER = "token"  # noqa: S105 - a user's name
"""Who asks with a token, as in FfDL; registries that give tokens read no name, or this one."""
SCHEMES = ("docker://", "oras://")


@dataclass(frozen=True)
class ImageTask:
    """The image that `reference` names now. `program` is Apptainer; `credentials` maps ``user_name`` and ``password``
    to names of secrets, whose values stand in `secrets_file`; with none the registry is asked as anybody. Without a
    ``user_name`` it is :data:`TOKEN_USER`."""

    reference: str
    cache: Cache
    program: str = "apptainer"
    secrets_file: str = ""
    credentials: Mapping[str, str] = field(default_factory=dict)
    rate_line_s: float = 10.0
    tries: int = 5
    pause_s: float = 1.0


def is_convertible(image: str) -> bool:
    """Whether the image is one that the cache turns into a SIF file."""
    return image.startswith(SCHEMES)


def encode_image_task(task: ImageTask) -> str:
    """The text of the task's file."""
    return json.dumps(to_plain(task), indent=1) + "\n"


def decode_image_task(text: str) -> ImageTask:
    """The task that the text is. Raises StageTaskError."""
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
