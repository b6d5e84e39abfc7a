"""The local directory of a transfer, entered by descriptors: nothing below it is reached through a link.

Learners may write there, and put a link in the place of a directory between two calls.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from types import TracebackType

from ffdl_batch.attempt.directories import Directories, Gone, Parts, walk
from ffdl_batch.staging.faults import Skip
from ffdl_batch.staging.names import PART_NAME

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_OWN = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_SWAPPED = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
TRIES = 10


class Tree:
    """One directory, which may be reached through links itself. Calls may come from several threads at once."""

    def __init__(self, root: str, *, make: bool = False) -> None:
        """Raises OSError."""
        self.root = root
        if make:
            os.makedirs(root, exist_ok=True)
        self._top = os.open(root, _DIRECTORY & ~os.O_NOFOLLOW)

    def __enter__(self) -> Tree:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        os.close(self._top)

    @contextmanager
    def directory(self, parts: Parts, *, make: bool = False) -> Iterator[int]:
        """A descriptor of the directory. What is missing, or is no directory, is made or is Gone. Raises OSError."""
        here = os.dup(self._top)
        try:
            for name in parts:
                below = _enter(name, here, make)
                os.close(here)
                here = below
            yield here
        finally:
            os.close(here)

    def open_file(self, parts: Parts) -> int:
        """A descriptor for reading of a regular file. Raises Gone, OSError."""
        try:
            with self.directory(parts[:-1]) as directory:
                descriptor = os.open(parts[-1], _FILE, dir_fd=directory)
        except OSError as error:
            if error.errno in (*_SWAPPED, errno.ENXIO):
                raise Gone from error
            raise
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise Gone
        return descriptor

    def status(self, parts: Parts) -> os.stat_result | None:
        """Of a regular file; None where there is none. Raises OSError."""
        try:
            with self.directory(parts[:-1]) as directory:
                found = os.stat(parts[-1], dir_fd=directory, follow_symlinks=False)
        except (Gone, FileNotFoundError):
            return None
        return found if stat.S_ISREG(found.st_mode) else None

    def files(
        self,
        above: Parts,
        left_out: Callable[[str, str], None],
        unread: Callable[[str, OSError], None] | None = None,
    ) -> Iterator[tuple[str, os.stat_result]]:
        """Regular files below a directory: names relative to it and status. `left_out` hears of the rest, and why, and
        `unread` of directories that cannot be read.

        Raises OSError where nobody hears of it, and what `unread` does; a directory that vanishes is passed over.
        """
        try:
            with self.directory(above) as top:
                below = Directories(".", dir_fd=top)
        except Gone:
            return
        except OSError as error:
            if unread is None:
                raise
            unread(".", error)
            return
        with below:
            for parts, _, entries in walk(below, unread=unread):
                for name, status in _statuses(entries):
                    path = "/".join((*parts, name))
                    if not stat.S_ISREG(status.st_mode):
                        left_out(path, "it is a link" if stat.S_ISLNK(status.st_mode) else "it is no file")
                    elif not PART_NAME.fullmatch(name):
                        yield path, status

    def place(self, temporary: str, parts: Parts, directory: int) -> None:
        """Give a whole file its name. Raises Skip where a directory has it, and OSError."""
        try:
            os.replace(temporary, parts[-1], src_dir_fd=directory, dst_dir_fd=directory)
        except IsADirectoryError:
            with suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=directory)
            raise Skip("a directory has its name here") from None


def open_own(name: str, directory: int) -> int:
    """A descriptor of a regular file that has no other name, made anew where there is another thing. Raises OSError."""
    for _ in range(TRIES):
        try:
            descriptor = os.open(name, _OWN, 0o666, dir_fd=directory)
        except OSError as error:
            if error.errno not in (errno.ELOOP, errno.ENXIO):
                raise
        else:
            found = os.fstat(descriptor)
            if stat.S_ISREG(found.st_mode) and found.st_nlink == 1:
                return descriptor
            os.close(descriptor)
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=directory)
    raise OSError(errno.ELOOP, "is no file of its own", name)


def _statuses(entries: Iterable[os.DirEntry[str]]) -> Iterator[tuple[str, os.stat_result]]:
    for entry in entries:
        with suppress(FileNotFoundError):
            yield entry.name, entry.stat(follow_symlinks=False)


def _enter(name: str, directory: int, make: bool) -> int:
    for _ in range(TRIES):
        try:
            return os.open(name, _DIRECTORY, dir_fd=directory)
        except OSError as error:
            if error.errno not in _SWAPPED:
                raise
            if not make:
                raise Gone from error
            if error.errno != errno.ENOENT:
                with suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=directory)
        with suppress(FileExistsError):
            os.mkdir(name, 0o777, dir_fd=directory)
    raise OSError(errno.ELOOP, "is no directory", name)
