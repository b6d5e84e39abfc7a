"""One user's part of a cache: its directories, its locks, and whether it can be trusted.

Locks are on files that may be removed while they are locked: a lock is valid as long as its file has its name. A
process that dies loses its locks at once. Whether locks of other nodes are visible depends on the file system: on NFS
they are, on Lustre if it is mounted with ``flock``.
"""

from __future__ import annotations

import fcntl
import json
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from ffdl_batch.attempt.directory_tree import remove_tree
from ffdl_batch.attempt.file_writer import write_text
from ffdl_batch.domain.codec import CodecError, from_plain, to_plain
from ffdl_batch.domain.untrusted_json import parse_json
from ffdl_batch.host.fast_dataclass import dataclass


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


DIRECTORIES = ("entries", "filling", "locks", "trash")
USAGE = "usage.json"
WANTED_S = 3600.0
"""How long a request for capacity is valid."""


class Unusable(Exception):
    """This cache is not used. The text says why."""


@dataclass(frozen=True, slots=True)
class Usage:
    """What a user publishes: bytes that are held, and bytes for which there was no capacity."""

    bytes: int = 0
    wanted: int = 0
    wanted_at: float = 0.0


@dataclass(frozen=True, slots=True)
class Shelf:
    """The directory `root` of the user `uid` in the cache `directory`."""

    directory: str
    uid: int

    @property
    def root(self) -> str:
        """Others may pass through and read the usage, nothing else."""
        return f"{self.directory}/{self.uid}"

    @property
    def mutex(self) -> str:
        """Held for moments, while a process decides about capacity."""
        return f"{self.root}/locks/.room"

    def entry(self, key: str) -> str:
        """The directory of an entry."""
        return f"{self.root}/entries/{key}"

    def tree(self, key: str) -> str:
        """The files of an entry."""
        return f"{self.entry(key)}/tree"

    def use_lock(self, key: str) -> str:
        """Held by each process that uses the entry. Its time is that of the last use."""
        return f"{self.root}/locks/{key}"

    def fill_lock(self, key: str) -> str:
        """Held by the process that fills the entry. It names the process."""
        return f"{self.root}/filling/{key}.lock"

    def filling(self, key: str, token: str) -> str:
        """The directory that the process with this token fills."""
        return f"{self.root}/filling/{key}.{token}"

    def names(self) -> list[str]:
        """Return the keys of the entries. Raises OSError."""
        return sorted(name for name in os.listdir(f"{self.root}/entries"))

    def fillings(self) -> list[str]:
        """Return the directories of incomplete entries. Raises OSError."""
        room = f"{self.root}/filling"
        return [f"{room}/{name}" for name in sorted(os.listdir(room)) if not name.endswith(".lock")]

    def remove(self, path: str) -> None:
        """Remove something of this part. It is gone from its place at once. Raises OSError."""
        trash = f"{self.root}/trash/{os.urandom(8).hex()}"
        with suppress(FileNotFoundError):
            os.rename(path, trash)
        self.empty_trash()

    def empty_trash(self) -> None:
        """Remove what any process has thrown away. Other processes may do the same."""
        for name in os.listdir(f"{self.root}/trash"):
            with suppress(OSError):
                remove_tree(f"{self.root}/trash/{name}")

    def publish(self, usage: Usage) -> None:
        """Publish the usage. Raises OSError."""
        write_text(f"{self.root}/{USAGE}", json.dumps(to_plain(usage)) + "\n", 0o644, durable=False)


def existing_shelf(directory: str, uid: int) -> Shelf | None:
    """Return the user's part if it exists. Raises Unusable, OSError."""
    shelf = Shelf(directory.rstrip("/"), uid)
    try:
        _require_safe(shelf.directory, uid)
        _require_own(shelf)
    except FileNotFoundError:
        return None
    for room in DIRECTORIES:
        _make(f"{shelf.root}/{room}", 0o700)
    return shelf


def open_shelf(directory: str, uid: int) -> Shelf:
    """Return the user's part, and create it if it is missing. Raises Unusable, OSError."""
    shelf = Shelf(directory.rstrip("/"), uid)
    with suppress(FileExistsError):
        os.makedirs(shelf.directory, mode=0o700)
    _require_safe(shelf.directory, uid)
    _make(shelf.root, 0o711)
    _require_own(shelf)
    for room in DIRECTORIES:
        _make(f"{shelf.root}/{room}", 0o700)
    return shelf


def usages(directory: str) -> Iterator[tuple[int, Usage]]:
    """Yield what each user publishes, by uid. Files of other owners are ignored. Raises OSError."""
    for name in sorted(os.listdir(directory)):
        if not name.isdecimal():
            continue
        with suppress(OSError):
            path = f"{directory}/{name}"
            if os.lstat(path).st_uid == int(name):
                yield int(name), _usage(f"{path}/{USAGE}", int(name))


def _usage(path: str, uid: int) -> Usage:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            if os.fstat(descriptor).st_uid != uid:
                return Usage()
            found = from_plain(Usage, parse_json(file.read(4096)))
    except (OSError, ValueError, CodecError):
        return Usage()
    is_fresh = 0 <= time.time() - found.wanted_at < WANTED_S
    return Usage(max(0, found.bytes), max(0, found.wanted) if is_fresh else 0, found.wanted_at)


def _require_safe(directory: str, uid: int) -> None:
    found = os.stat(directory)
    if not stat.S_ISDIR(found.st_mode):
        raise Unusable(f"{directory} is not a directory")
    if found.st_uid not in (0, uid):
        raise Unusable(f"{directory} belongs to another user; it must be root's, or your own")
    if found.st_mode & 0o022 and not found.st_mode & stat.S_ISVTX:
        raise Unusable(f"others may rename what is in {directory}; it must have mode 1777")


def _require_own(shelf: Shelf) -> None:
    found = os.lstat(shelf.root)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != shelf.uid or found.st_mode & 0o022:
        raise Unusable(f"{shelf.root} is not a directory that user {shelf.uid} alone can write")


def _make(path: str, mode: int) -> None:
    try:
        os.mkdir(path, mode)
    except FileExistsError:
        return
    os.chmod(path, mode)
