"""Enters directories in which learners write one by one, so that a directory that is replaced by a link leads nowhere.

Each call with a path resolves the path again. A learner that is still running, here or on another node, may replace a
directory with a link between two calls. A descriptor keeps referring to the directory that was opened.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from typing import TYPE_CHECKING, Callable, Iterable, Iterator, List, Optional, Tuple, Type

from ffdl_batch.attempt.file_writer import TRIES, make_directory
from ffdl_batch.attempt.reader import DamagedFile, open_directory
from ffdl_batch.domain.launch.placeholders import LaunchFileError, fill

if TYPE_CHECKING:
    from ffdl_batch.domain.launch.launch_file import LaunchFile

KEPT = 16
"""Levels whose descriptors stay open. Deeper directories are entered again from the last of these levels."""
_OPENED = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_SWAPPED = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)

Parts = Tuple[str, ...]


class Gone(Exception):
    """The directory does not exist any more, or was replaced by something else."""


class Directories:
    """The directory `root` and those below it. `root` itself may be reached through links. Below it no link is
    followed.

    If `root` is in the directory `below`, neither `root` nor a directory between the two may be a link, because
    learners can replace directories of their job.

    With `mode`, missing directories are created, and links, pipes and sockets are replaced. Without it, they raise
    :class:`Gone`. With `unlock`, the owner gets all permissions of each directory below `root` that is entered.
    """

    def __init__(
        self,
        root: str,
        mode: Optional[int] = None,
        *,
        below: str = "",
        dir_fd: Optional[int] = None,
        unlock: bool = False,
    ) -> None:
        """Open `root`, relative to the directory `dir_fd` if one is given. Raises OSError."""
        self.root, self._mode, self._unlock = root, mode, unlock
        if mode is not None:
            os.makedirs(root, exist_ok=True)
        self._kept = [_open_root(root, below, dir_fd)]
        self._deep: List[Tuple[int, int]] = []
        """Device and inode of each directory on the current path below the kept ones."""
        self._at: Parts = ()
        self._here = self._kept[0]

    def __enter__(self) -> Directories:
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all descriptors."""
        self._leave(0)
        os.close(self._kept.pop())

    def enter(self, parts: Parts) -> int:
        """Return the descriptor of the directory. It stays open until the next call. Raises OSError, Gone."""
        shared = self._at
        while parts[: len(shared)] != shared:
            shared = shared[:-1]
        if len(shared) < len(self._at):
            self._leave(len(shared))
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
        else:
            self._deep.append(_identity(below))
            if self._here != self._kept[-1]:
                os.close(self._here)
        self._here = below
        self._at = (*self._at, name)

    def _open(self, name: str) -> int:
        for _ in range(TRIES + 1):
            try:
                if self._unlock:
                    unlock(name, self._here)
                return os.open(name, _OPENED, dir_fd=self._here)
            except OSError as error:
                if error.errno not in _SWAPPED:
                    raise
                if self._mode is None:
                    raise Gone(name) from error
            make_directory(name, self._mode, dir_fd=self._here)
        raise OSError(errno.ELOOP, "is not a directory", name)

    def _leave(self, depth: int) -> None:
        """Go up to an open directory that is at most `depth` below the root."""
        while len(self._at) > depth >= KEPT:
            if not self._go_up():
                break
        if len(self._at) == depth:
            return
        if self._here != self._kept[-1]:
            os.close(self._here)
        while len(self._kept) > depth + 1:
            os.close(self._kept.pop())
        self._deep.clear()
        self._here = self._kept[-1]
        self._at = self._at[: len(self._kept) - 1]

    def _go_up(self) -> bool:
        """Go up one level. Return False if the parent is no longer the directory that was entered, because it may have
        been moved."""
        if len(self._deep) < 2:
            return False
        try:
            above = os.open("..", _OPENED, dir_fd=self._here)
        except OSError:
            return False
        if _identity(above) != self._deep[-2]:
            os.close(above)
            return False
        os.close(self._here)
        self._deep.pop()
        self._here, self._at = above, self._at[:-1]
        return True


def roots_of(launch: LaunchFile, directory: str) -> Tuple[str, ...]:
    """Return the absolute paths by which learners may know their results or checkpoints: the directory on the node, the
    same without links, and the value of $RESULT_DIR or $CHECKPOINT_DIR in their container."""
    variable = "CHECKPOINT_DIR" if directory == launch.checkpoints else "RESULT_DIR"
    inside = ""
    with contextlib.suppress(LaunchFileError):  # it differs between learners
        inside = fill(launch.learner.env.get(variable, ""), {})
    return tuple(dict.fromkeys(path for path in (directory, os.path.realpath(directory), inside) if path))


def is_in(path: str, directory: str) -> bool:
    """Return whether the path is below the directory. Only the names are compared."""
    return bool(directory) and path.startswith(directory + os.sep)


def _open_root(root: str, below: str, dir_fd: Optional[int]) -> int:
    if not is_in(root, below):
        return os.open(root, _OPENED & ~os.O_NOFOLLOW, dir_fd=dir_fd)
    try:
        return open_directory(root, below=below)
    except DamagedFile as error:
        raise NotADirectoryError(errno.ENOTDIR, f"{error.why}, and not the directory of the job", root) from error


def unlock(name: str, dir_fd: Optional[int], *, follow: bool = False) -> None:
    """Let the owner of a directory read, write and enter it, if this process is the owner. Raises OSError.

    The directory may deny even that it is opened for reading, and fchmod(2) does not take a descriptor of O_PATH.
    """
    flags = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    descriptor = os.open(name, flags, dir_fd=dir_fd)
    try:
        found = os.fstat(descriptor)
        if found.st_mode & stat.S_IRWXU != stat.S_IRWXU and found.st_uid == os.geteuid():
            os.chmod(f"/proc/self/fd/{descriptor}", stat.S_IMODE(found.st_mode) | stat.S_IRWXU)
    finally:
        os.close(descriptor)


def _identity(descriptor: int) -> Tuple[int, int]:
    found = os.fstat(descriptor)
    return found.st_dev, found.st_ino


def make_below(base: str, names: Iterable[str]) -> str:
    """Make nested directories below `base`, never through links, and return the path of the last. Raises OSError."""
    parts = tuple(names)
    with Directories(base, 0o777) as tree:
        tree.enter(parts)
    return tree.path(*parts)


def walk(
    tree: Directories,
    *,
    unread: Optional[Callable[[str, OSError], None]] = None,
    after: Optional[Callable[[Parts], None]] = None,
) -> Iterator[Tuple[Parts, int, List["os.DirEntry[str]"]]]:
    """Yield each directory with its descriptor and its entries that are not directories, in the order of names; parents
    first.

    Time and memory grow with the number of entries and with the depth, which is not limited. Do not use `tree` in
    another way during the walk. Directories that vanish are skipped. If a directory cannot be read, `unread` is called
    with its path relative to the root and the error, and may raise. Without `unread`, OSError is raised. `after` is
    called with each directory when everything below it has been yielded.
    """
    parts: Parts = ()
    waiting: List[List[str]] = []
    """For each directory on the current path, its subdirectories that have not been visited, in reverse order."""
    while True:
        folders: List[str] = []
        try:
            descriptor = tree.enter(parts)
            with os.scandir(descriptor) as found:
                entries = sorted(found, key=lambda entry: entry.name)
        except Gone:
            pass
        except OSError as error:
            error.filename = tree.path(*parts)
            if unread is None:
                raise
            unread("/".join(parts) or ".", error)
        else:
            folders = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
            named = set(folders)
            yield parts, descriptor, [entry for entry in entries if entry.name not in named]
        waiting.append(folders[::-1])
        while not waiting[-1]:
            if after is not None:
                after(parts)
            waiting.pop()
            if not waiting:
                return
            parts = parts[:-1]
        parts = (*parts, waiting[-1].pop())


def empty_directory(path: str, *, dir_fd: Optional[int] = None) -> None:
    """Remove everything in a directory without following links, also in directories that are read-only. Raises the
    first OSError after everything else is removed."""
    errors: List[OSError] = []

    def attempt(remove: Callable[..., None], name: str, directory: int) -> None:
        try:
            remove(name, dir_fd=directory)
        except FileNotFoundError:
            pass
        except OSError as error:
            errors.append(error)

    unlock(path, dir_fd, follow=True)
    with Directories(path, dir_fd=dir_fd, unlock=True) as tree:

        def leave(parts: Parts) -> None:
            with contextlib.suppress(Gone):
                if parts:
                    attempt(os.rmdir, parts[-1], tree.enter(parts[:-1]))

        for _, descriptor, entries in walk(tree, unread=lambda _, error: errors.append(error), after=leave):
            for entry in entries:
                attempt(os.unlink, entry.name, descriptor)
    if errors:
        raise errors[0]


def remove_tree(path: str) -> None:
    """Remove a directory and everything in it, or a file or link, if there is one. Raises OSError.

    :func:`shutil.rmtree` raises RecursionError for a tree that is as deep as a learner can make it.
    """
    try:
        os.unlink(path)
    except FileNotFoundError:
        return
    except (IsADirectoryError, PermissionError):  # EPERM: unlink(2) of a directory according to POSIX
        empty_directory(path)
        os.rmdir(path)


def status_of(name: str, directory: int) -> Optional[os.stat_result]:
    """Return the status of the entry with this name, links not followed; None if it does not exist. Raises OSError."""
    try:
        return os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return None


def remove_name(name: str, directory: int) -> None:
    """Remove a file or link if it exists. Raises OSError."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=directory)


def is_file(found: Optional[os.stat_result]) -> bool:
    """Return whether the status is that of a regular file."""
    return found is not None and stat.S_ISREG(found.st_mode)
