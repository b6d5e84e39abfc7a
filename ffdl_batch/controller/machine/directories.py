"""Directories in which learners write, entered one by one: what is swapped for a link meanwhile leads nowhere.

A path is looked up anew by each call that has it, and a learner that still lives, here or on another node, may put a
link in the place of a directory between two of them. A descriptor stays at the directory that was opened.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from typing import Iterable, Iterator, List, Optional, Tuple, Type

from ffdl_batch.attempt.writer import TRIES, make_directory

KEPT = 16
"""Levels whose descriptors stay open. What is deeper is entered anew from the last of them."""
_OPENED = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_SWAPPED = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)

Parts = Tuple[str, ...]


class Gone(Exception):
    """What was there a moment ago is not there any more, or is something else."""


class Directories:
    """The directory `root` and those below it. `root` itself may be reached through links, nothing below it is.

    With `mode` what is missing is made, in the place of links, pipes and sockets; without, it is :class:`Gone`.
    """

    def __init__(self, root: str, mode: Optional[int] = None) -> None:
        """Raises OSError."""
        self.root, self._mode = root, mode
        if mode is not None:
            os.makedirs(root, exist_ok=True)
        self._kept = [os.open(root, _OPENED & ~os.O_NOFOLLOW)]
        self._at: Parts = ()
        self._here = self._kept[0]

    def __enter__(self) -> Directories:
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], *_: object) -> None:
        self._leave(0)
        os.close(self._kept.pop())

    def enter(self, parts: Parts) -> int:
        """The descriptor of the directory, which stays open until the next call. Raises OSError, Gone."""
        shared = 0
        for one, other in zip(self._at, parts):
            if one != other:
                break
            shared += 1
        if shared < len(self._at):
            self._leave(shared)
        for name in parts[len(self._at) :]:
            self._descend(name)
        return self._here

    def path(self, *parts: str) -> str:
        """For messages."""
        return os.path.join(self.root, *parts)

    def _descend(self, name: str) -> None:
        try:
            below = self._open(name)
        except OSError as error:
            error.filename = self.path(*self._at, name)
            raise
        if len(self._at) < KEPT:
            self._kept.append(below)
        elif self._here != self._kept[-1]:
            os.close(self._here)
        self._here = below
        self._at = (*self._at, name)

    def _open(self, name: str) -> int:
        for _ in range(TRIES + 1):
            try:
                return os.open(name, _OPENED, dir_fd=self._here)
            except OSError as error:
                if error.errno not in _SWAPPED:
                    raise
                if self._mode is None:
                    raise Gone(name) from error
            make_directory(name, self._mode, dir_fd=self._here)
        raise OSError(errno.ELOOP, "is no directory", name)

    def _leave(self, depth: int) -> None:
        """Go up to a directory that is at most `depth` below the root, and open."""
        if self._here != self._kept[-1]:
            os.close(self._here)
        while len(self._kept) > depth + 1:
            os.close(self._kept.pop())
        self._here = self._kept[-1]
        self._at = self._at[: len(self._kept) - 1]


def make_below(base: str, names: Iterable[str]) -> str:
    """Real directories, one in the other, below `base`; the path of the last. Raises OSError."""
    parts = tuple(names)
    with Directories(base, 0o777) as tree:
        tree.enter(parts)
    return tree.path(*parts)


def walk(tree: Directories, ignored: Tuple[int, ...] = ()) -> Iterator[Tuple[Parts, int, List["os.DirEntry[str]"]]]:
    """Each directory with its descriptor and what it has but directories, in the order of names; parents first.

    Not to be mixed with other use of `tree`. Directories that vanish are left out, and those whose opening fails with
    an errno of `ignored`. Raises OSError.
    """
    waiting: List[Tuple[Parts, str]] = [((), "")]
    while waiting:
        above, name = waiting.pop()
        parts = (*above, name) if name else ()
        try:
            descriptor = tree.enter(parts)
            with os.scandir(descriptor) as found:
                entries = sorted(found, key=lambda entry: entry.name)
        except Gone:
            continue
        except OSError as error:
            if error.errno in ignored:
                continue
            error.filename = tree.path(*parts)
            raise
        folders = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
        named = set(folders)
        yield parts, descriptor, [entry for entry in entries if entry.name not in named]
        waiting.extend((parts, folder) for folder in folders)


def status_of(name: str, directory: int) -> Optional[os.stat_result]:
    """Of what has this name in the directory, links not followed; None where nothing has. Raises OSError."""
    try:
        return os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return None


def remove_name(name: str, directory: int) -> None:
    """Remove a file or link, where there is one. Raises OSError."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=directory)


def is_file(found: Optional[os.stat_result]) -> bool:
    """Whether there is a regular file."""
    return found is not None and stat.S_ISREG(found.st_mode)
