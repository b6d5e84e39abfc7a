"""Images: each is the machine's own file system, but for those that cannot be had."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from fnmatch import fnmatch

from tests.fakes.kubernetes.kinds import Obj

_NAME = re.compile(r"^[a-z0-9]+([._/:@-][A-Za-z0-9_]+|[._-]{2}[a-z0-9]+)*$")


class PullFailed(Exception):
    """`reason` is that of the waiting container."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass
class Images:
    """`missing` are patterns of names that no registry has; `known` maps names to their configuration (``env``,
    ``entrypoint``, ``cmd``, ``user``, ``group``, ``cwd``); `present` are patterns of those that need no pull."""

    missing: list[str] = field(default_factory=list)
    known: dict[str, Obj] = field(default_factory=dict)
    present: list[str] = field(default_factory=lambda: ["*"])

    def get(self, name: str, policy: str) -> Obj:
        """The configuration of an image; :class:`PullFailed`."""
        if not _NAME.match(name):
            why = f'couldn\'t parse image name "{name}": invalid reference format'
            message = f'Failed to apply default image tag "{name}": {why}'
            raise PullFailed("InvalidImageName", message)
        missing = any(fnmatch(name, pattern) for pattern in self.missing)
        here = not missing and any(fnmatch(name, pattern) for pattern in self.present)
        if policy == "Never" and not here:
            message = f'Container image "{name}" is not present with pull policy of Never'
            raise PullFailed("ErrImageNeverPull", message)
        if missing:
            full = _full(name)
            message = (
                f'rpc error: code = NotFound desc = failed to pull and unpack image "{full}": failed to resolve '
                f'reference "{full}": {full}: not found'
            )
            raise PullFailed("ErrImagePull", message)
        return self.known.get(name, {})


def _full(name: str) -> str:
    first, slash, _ = name.partition("/")
    if not slash:
        name = f"docker.io/library/{name}"
    elif "." not in first and ":" not in first and first != "localhost":
        name = f"docker.io/{name}"
    return name if ":" in name.rsplit("/", 1)[-1] or "@" in name else f"{name}:latest"
