"""Locks on files that may be removed while they are locked: a lock is valid as long as its file has its name.

A process that dies loses its locks at once. Whether locks of other nodes are visible depends on the file system: on NFS
they are, on Lustre if it is mounted with ``flock``.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress


def lock(path: str, *, exclusive: bool, wait: bool) -> int | None:
    """Return a descriptor that holds the lock; None if others hold it and `wait` is false. Raises OSError."""
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
    """Hold the lock while the body runs. Raises OSError."""
    descriptor = lock(path, exclusive=True, wait=True)
    assert descriptor is not None
    try:
        yield
    finally:
        os.close(descriptor)


def is_free(path: str) -> bool:
    """Return whether no process holds the lock now. Raises OSError."""
    if not os.path.exists(path):
        return True
    descriptor = lock(path, exclusive=True, wait=False)
    if descriptor is None:
        return False
    os.close(descriptor)
    return True


def drop(descriptor: int, path: str) -> None:
    """Release an exclusive lock and remove its file, if it is still its file. Raises OSError."""
    try:
        if _is_named(descriptor, path):
            os.unlink(path)
    finally:
        os.close(descriptor)


def _is_named(descriptor: int, path: str) -> bool:
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(descriptor), os.stat(path, follow_symlinks=False))
    return False
