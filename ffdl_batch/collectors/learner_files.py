"""Files below the directories that learners write in.

A link or a pipe in the place of a file or directory is not followed, and does not block.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

from ffdl_batch.attempt.reader import DamagedFile, open_regular
from ffdl_batch.host.fast_dataclass import dataclass

MISSING = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EACCES)
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Found:
    """A regular file. `names` is its path from the directory `root`."""

    root: str
    names: tuple[str, ...]
    inode: int
    size: int

    @property
    def path(self) -> str:
        """Return the path, for people and as a key."""
        return str(Path(self.root, *self.names))


def files_below(root: str, wanted: Callable[[str], bool], depth: int, most: int) -> list[Found]:
    """Return the regular files with wanted names, at most `most`, in directories at most `depth` below `root`.

    They are in the order of their paths. Directories that are missing or may not be read are skipped. Raises OSError.
    """
    found: list[Found] = []
    directory = _entered(root, None)
    if directory is not None:
        for file in _walked(root, directory, (), wanted, depth):
            found.append(file)
            if len(found) == most:
                break
    return found


def _walked(
    root: str, directory: int, names: tuple[str, ...], wanted: Callable[[str], bool], depth: int
) -> Iterator[Found]:
    """Closes `directory`."""
    try:
        with os.scandir(directory) as entries:
            listed = sorted(
                (entry.name, is_directory)
                for entry in entries
                if ((is_directory := entry.is_dir(follow_symlinks=False)) and depth) or wanted(entry.name)
            )
        for name, is_directory in listed:
            if is_directory:
                below = _entered(name, directory) if depth else None
                if below is not None:
                    yield from _walked(root, below, (*names, name), wanted, depth - 1)
                continue
            try:
                status = os.stat(name, dir_fd=directory, follow_symlinks=False)
            except FileNotFoundError:
                continue
            if stat.S_ISREG(status.st_mode):
                yield Found(root, (*names, name), status.st_ino, status.st_size)
    finally:
        os.close(directory)


def _entered(name: str, within: int | None) -> int | None:
    try:
        return os.open(name, _DIRECTORY, dir_fd=within)
    except OSError as error:
        if error.errno not in MISSING:
            raise
        return None


def opened(file: Found) -> int | None:
    """Open the file, directory by directory. Return None if it is another file now, or none."""
    within = _entered(file.root, None)
    for name in file.names[:-1]:
        if within is None:
            return None
        below = _entered(name, within)
        os.close(within)
        within = below
    if within is None:
        return None
    try:
        with open_regular(file.names[-1], dir_fd=within) as opening:
            is_it = os.fstat(opening.fileno()).st_ino == file.inode
            return os.dup(opening.fileno()) if is_it else None
    except DamagedFile:
        return None
    except OSError as error:
        if error.errno not in MISSING:
            raise
        return None
    finally:
        os.close(within)
