"""Locks the networks of jobs on this node, so that only one program at a time changes a network.

The lock is a file of root outside the job's directory. The holder that removes the rest of the job also removes
the lock file. So a process that waited for the lock checks that the path still names the locked file.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from pathlib import Path
from typing import Iterator

from . import slots
from .commands import Trouble
from .settings import Settings

_PATIENCE_S = 15.0


@contextlib.contextmanager
def held(job_id: int, settings: Settings, wait_s: float = _PATIENCE_S) -> Iterator[None]:
    """Hold the lock of the job's network. Raises Trouble if another process holds it for longer than `wait_s`.

    When the epilog runs, the prolog of a dead slurmd may still be running. So may a program that a killed prolog
    started, and therefore such programs inherit the lock.
    """
    path = _path(job_id, settings)
    with _locked(path, wait_s) as descriptor:
        try:
            yield
        finally:
            # The epilog may have just removed the job and its lock before a sweep or a restore of filters got here. If
            # another file is at the path now, it is the lock of another process.
            left = settings.job(job_id).exists() or job_id in slots.claims(settings).values()
            if not left and _is_still(descriptor, path):
                path.unlink(missing_ok=True)


@contextlib.contextmanager
def node_held(settings: Settings) -> Iterator[None]:
    """Hold the lock for the work that is done once per boot."""
    with _locked(settings.run / "locks" / "node", _PATIENCE_S):
        yield


def remove(job_id: int, settings: Settings) -> None:
    """Remove the lock of a job that has nothing else left."""
    _path(job_id, settings).unlink(missing_ok=True)


def _path(job_id: int, settings: Settings) -> Path:
    return settings.run / "locks" / str(job_id)


@contextlib.contextmanager
def _locked(path: Path, wait_s: float) -> Iterator[int]:
    path.parent.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    path.parent.mkdir(mode=0o700, exist_ok=True)
    deadline = time.monotonic() + wait_s
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            os.set_inheritable(descriptor, True)
            _lock(descriptor, path, deadline)
            if _is_still(descriptor, path):
                yield descriptor
                return
        finally:
            os.close(descriptor)


def _lock(descriptor: int, path: Path, deadline: float) -> None:
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if time.monotonic() > deadline:
                raise Trouble(f"another prolog or epilog holds {path}") from error
            time.sleep(0.02)
        else:
            return


def _is_still(descriptor: int, path: Path) -> bool:
    try:
        named = path.stat()
    except FileNotFoundError:
        return False
    opened = os.fstat(descriptor)
    return (named.st_dev, named.st_ino) == (opened.st_dev, opened.st_ino)
