"""The files of a shared cache: contents by SHA-256, and links from objects of stores to contents.

    <directory>/blobs/<sha256>       a content, mode 0400
    <directory>/objects/<digest>     a symbolic link to the content of one version of an object
    <directory>/filling/             contents that are not complete; emptied at each start

A content appears by one rename after it has been synchronised. The directory is closed to all other users: they get
open descriptors. Each content is compared with its name before its first use after a start.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import stat
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress

CHUNK_BYTES = 1 << 20
_NAME = re.compile(r"[0-9a-f]{64}")


class Blobs:
    """The files. Methods that change names must not be called from several threads at once."""

    def __init__(self, directory: str, step: Callable[[str], None]) -> None:
        """`step` is called before each step that a kill may separate from the next one. Raises OSError."""
        self._directory, self._step = directory, step
        found = os.lstat(directory)
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
            raise PermissionError(f"{directory} must be a directory of this process's user with mode 0700")
        self._lock = os.open(f"{directory}/lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for name in ("blobs", "objects", "filling"):
            with suppress(FileExistsError):
                os.mkdir(f"{directory}/{name}", 0o700)
        self.content: dict[str, str] = {}
        """Digest of an object -> SHA-256 of its content."""
        self._objects: defaultdict[str, set[str]] = defaultdict(set)
        self._checked: set[str] = set()
        self._recover()

    def _recover(self) -> None:
        for name in os.listdir(f"{self._directory}/filling"):
            os.unlink(f"{self._directory}/filling/{name}")
        kept = {name for name in os.listdir(f"{self._directory}/blobs") if _NAME.fullmatch(name)}
        for name in os.listdir(f"{self._directory}/objects"):
            content = os.path.basename(os.readlink(f"{self._directory}/objects/{name}"))
            if content in kept:
                self.content[name] = content
                self._objects[content].add(name)
            else:
                os.unlink(f"{self._directory}/objects/{name}")
        for name in os.listdir(f"{self._directory}/blobs"):
            if name not in self._objects:
                os.unlink(f"{self._directory}/blobs/{name}")

    def sizes(self) -> dict[str, int]:
        """Return the size of each content, the least recently used first. Raises OSError."""
        found = {name: os.lstat(f"{self._directory}/blobs/{name}") for name in self._objects}
        return {name: found[name].st_size for name in sorted(found, key=lambda name: (found[name].st_mtime, name))}

    def fill(self, read: Callable[[Callable[[bytes], None]], None]) -> tuple[str, str]:
        """Write what `read` passes to its argument. Return the path and the SHA-256. May be called from several
        threads. Raises what `read` raises, OSError."""
        path = f"{self._directory}/filling/{os.urandom(16).hex()}"
        digest = hashlib.sha256()
        try:
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o400), "wb") as file:

                def write(data: bytes) -> None:
                    digest.update(data)
                    file.write(data)
                    file.flush()
                    self._step("part written")

                read(write)
                os.fsync(file.fileno())
        except BaseException:
            os.unlink(path)
            raise
        self._step("content complete")
        return path, digest.hexdigest()

    def place(self, path: str, content: str, name: str) -> None:
        """Give a content its name, and link the object to it. Raises OSError."""
        os.rename(path, f"{self._directory}/blobs/{content}")
        self._step("content placed")
        try:
            self._sync("blobs")
            os.symlink(f"../blobs/{content}", f"{self._directory}/objects/{name}")
        except OSError:
            if content not in self._objects:
                os.unlink(f"{self._directory}/blobs/{content}")
            raise
        self._checked.add(content)
        self.content[name] = content
        self._objects[content].add(name)
        self._step("object linked")

    def open(self, content: str) -> int:
        """Return a descriptor of the content for reading. Raises OSError."""
        return os.open(f"{self._directory}/blobs/{content}", os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)

    def is_intact(self, descriptor: int, content: str, size: int) -> bool:
        """Return whether the open file has the content, and this size. May be called from several threads."""
        if os.fstat(descriptor).st_size != size or (content not in self._checked and _sha256(descriptor) != content):
            return False
        self._checked.add(content)
        return True

    def note_use(self, content: str) -> None:
        """Record the time of the last use. Raises OSError."""
        os.utime(f"{self._directory}/blobs/{content}")

    def remove(self, content: str) -> None:
        """Remove a content and the links to it. Raises OSError."""
        for name in self._objects.pop(content, set()):
            os.unlink(f"{self._directory}/objects/{name}")
            del self.content[name]
        self._step("links removed")
        os.unlink(f"{self._directory}/blobs/{content}")
        self._checked.discard(content)

    def close(self) -> None:
        """Let another process use the directory."""
        os.close(self._lock)

    def _sync(self, name: str) -> None:
        descriptor = os.open(f"{self._directory}/{name}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _sha256(descriptor: int) -> str:
    digest, at = hashlib.sha256(), 0
    while data := os.pread(descriptor, CHUNK_BYTES, at):
        digest.update(data)
        at += len(data)
    return digest.hexdigest()
