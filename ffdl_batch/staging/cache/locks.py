"""Locks of files that may be removed meanwhile: a lock counts as long as its file has its name.

A process that dies loses its locks at once. Whether locks of other nodes are seen depends on the file system; NFS
does, Lustre when it is mounted with ``flock``.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress


def lock(path: str, *, exclusive: bool, wait: bool) -> int | None:
    """A descriptor that holds the lock; None where others hold it and we do not wait. Raises OSError."""
    kind = (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | (0 if wait else fcntl.LOCK_NB)
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(descriptor, kind)
        except BlockingIOError:
            os.close(descriptor)
            return None
        except OSError:
            os.close(descriptor)
            raise
        if _is_named(descriptor, path):
            return descriptor
        os.close(descriptor)


@contextmanager
def locked(path: str) -> Iterator[None]:
    """Alone, as long as the body runs. Raises OSError."""
    descriptor = lock(path, exclusive=True, wait=True)
    assert descriptor is not None
    try:
        yield
    finally:
        os.close(descriptor)


def is_free(path: str) -> bool:
    """Whether nobody holds the lock now. Raises OSError."""
    if not os.path.exists(path):
        return True
    descriptor = lock(path, exclusive=True, wait=False)
    if descriptor is None:
        return False
    os.close(descriptor)
    return True


def drop(descriptor: int, path: str) -> None:
    """Give an exclusive lock back and remove its file, where that is still its file. Raises OSError."""
    try:
        if _is_named(descriptor, path):
            os.unlink(path)
    finally:
        os.close(descriptor)


def _is_named(descriptor: int, path: str) -> bool:
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(descriptor), os.stat(path, follow_symlinks=False))
    return False
