"""Reads the site's secret, from which the keys of jobs' networks are derived. The secret never leaves this node."""

from __future__ import annotations

import errno
import os
import stat

from .commands import Trouble
from .settings import Settings

_LEAST_BYTES, _MOST_BYTES = 32, 4096


def read(settings: Settings) -> bytes:
    """Return the secret. Raises Trouble if it is missing, or if users other than root can read it."""
    path = settings.secret
    cure = "copy the site's secret to it, owner root, mode 600, on every node the same (NETWORK_SECRET of values.env)"
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        why = "is a symbolic link" if error.errno == errno.ELOOP else f"cannot be read ({error.strerror})"
        raise Trouble(f"{path} {why}: {cure}") from error
    with os.fdopen(descriptor, "rb") as file:
        state = os.fstat(descriptor)
        if not stat.S_ISREG(state.st_mode) or state.st_uid != 0 or state.st_mode & 0o077:
            raise Trouble(f"{path} is not a file that root alone can read: {cure}")
        found = file.read(_MOST_BYTES + 1)
    if not _LEAST_BYTES <= len(found) <= _MOST_BYTES:
        raise Trouble(f"{path} must have {_LEAST_BYTES} to {_MOST_BYTES} random bytes: {cure}")
    return found
