"""Trying again what a file system refuses for a while: a file server that restarts, a disk that is full."""

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
"""What clients of file servers report while the server, or the way to it, is gone (NFS, Lustre, FUSE)."""


def is_passing(error: OSError, directory: str) -> bool:
    """Whether a file system that is gone explains the error, not the file: by its number, or because `directory`, which
    is there as long as the file system is, cannot be found either."""
    return error.errno in _PASSING or not _is_there(directory)


def takes_nothing(error: OSError, directory: str) -> bool:
    """Whether nothing can be written now: the disk, or the quota, is full, or the file system of `directory` read-only.

    A store of the user's that is read-only mostly stays so.
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
    """What `work` gives, once the file system of `directory` lets it; it is tried for `patience_s` at least once more.

    With `awaits_space` a disk that is full or read-only is waited for, too. Raises the OSError of the last try, and
    what `pause` raises.
    """
    end = time.monotonic() + patience_s
    told = ""
    while True:
        try:
            return work()
        except OSError as error:
            passing = is_passing(error, directory) or (awaits_space and takes_nothing(error, directory))
            if not passing or time.monotonic() >= end:
                raise
            if str(error) != told:
                told = str(error)
                sys.stderr.write(f"ffdl-controller: {error}; it is tried again for {patience_s:.0f} s\n")
        pause(AGAIN_S)


def _is_there(directory: str) -> bool:
    try:
        os.stat(directory)
    except OSError:
        return False
    return True
