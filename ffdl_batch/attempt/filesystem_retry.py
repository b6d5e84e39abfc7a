"""Retry operations that a file system refuses temporarily: a file server restarts, or a disk is full."""

from __future__ import annotations

import errno
import os
import sys
import time
from typing import Callable, TypeVar

from ffdl_batch.attempt.file_writer import NO_SPACE

T = TypeVar("T")
AGAIN_S = 1.0
_PASSING = frozenset(
    {errno.EIO, errno.ESTALE, errno.ENOTCONN, errno.ESHUTDOWN, errno.ECONNABORTED, errno.ECONNREFUSED, errno.ETIMEDOUT}
    | {errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENETDOWN, errno.ENETUNREACH, errno.ENODEV, errno.EREMOTEIO}
)
"""Errors of clients (NFS, Lustre, FUSE) while a file server cannot be reached."""


def is_passing(error: OSError, directory: str) -> bool:
    """Return whether the file system, and not the file, explains the error.

    Its number shows that, or that `directory`, which always exists on the file system, cannot be found either.
    """
    return error.errno in _PASSING or not _is_there(directory)


def takes_nothing(error: OSError, directory: str) -> bool:
    """Return whether nothing can be written: the disk or quota is full, or the file system of `directory` is read-only.

    A read-only store of the user usually stays so, and does not count.
    """
    if error.errno == errno.EROFS:
        return str(error.filename or "").startswith(os.path.dirname(directory) + os.sep)
    return error.errno in NO_SPACE


def patiently(
    work: Callable[[], T],
    directory: str,
    patience_s: float,
    pause: Callable[[float], None] = time.sleep,
    *,
    awaits_space: bool = False,
) -> T:
    """Do `work`, and retry for `patience_s` seconds, at least once, while the file system of `directory` does not
    answer.

    With `awaits_space`, also retry while the disk is full or read-only. Raises the OSError of the last try, and what
    `pause` raises.
    """
    end = time.monotonic() + patience_s
    reported = ""
    while True:
        try:
            return work()
        except OSError as error:
            passing = is_passing(error, directory) or (awaits_space and takes_nothing(error, directory))
            if not passing or time.monotonic() >= end:
                raise
            if str(error) != reported:
                reported = str(error)
                sys.stderr.write(f"ffdl-controller: {error}; it is tried again for {patience_s:.0f} s\n")
        pause(AGAIN_S)


def _is_there(directory: str) -> bool:
    try:
        os.stat(directory)
    except OSError:
        return False
    return True
