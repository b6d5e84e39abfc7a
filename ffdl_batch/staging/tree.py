"""The local directory of a transfer, opened by descriptors: nothing below it is reached through a link.

Learners may write there, and replace a directory with a link between two calls.
"""

from __future__ import annotations

import errno
import functools
import itertools
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from types import TracebackType

from ffdl_batch.attempt.directory_tree import Directories, Gone, Parts, status_of, unlock, walk
from ffdl_batch.attempt.reader import kind_of
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.host.file_attributes import inner_target, permission_bits, set_permissions
from ffdl_batch.host.permissions import read_umask
from ffdl_batch.staging.faults import Skip, shown
from ffdl_batch.staging.object_names import PART_NAME, part_name, parts_of

_numbers = itertools.count()
_being_made: dict[str, int] = {}
"""Names, with the descriptors of their directories."""


@contextmanager
def half_made(directory: int) -> Iterator[str]:
    """Yield a name in the directory for an incomplete file, which the body renames. Afterwards, a file that still has
    the name is removed."""
    name = part_name(os.uname().nodename, str(os.getpid()), str(next(_numbers)))
    _being_made[name] = directory
    try:
        yield name
    finally:
        _being_made.pop(name)
        with suppress(FileNotFoundError):  # it has its own name now
            os.unlink(name, dir_fd=directory)


def remove_half_made() -> None:
    """Remove incomplete files when the process ends at once. Threads may still run, and are not awaited."""
    for name, directory in list(_being_made.items()):
        with suppress(OSError):
            os.unlink(name, dir_fd=directory)


_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_OWN = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_SWAPPED = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
MayReplace = Callable[[str, os.stat_result], bool]
_TAKEN = "something else has its name here"
TRIES = 10


@dataclass(frozen=True, slots=True)
class TreeEntry:
    """A link, an empty directory, or the mode of a file or directory. `name` is relative to a directory, and ends with
    a slash if it is a directory's. `mode` has permission bits and the sticky bit of a directory, and is -1 if it is
    what the umask gives."""

    name: str
    mode: int = -1
    target: str = ""
    """The target of a link."""


class Tree:
    """One directory, which may be reached through links itself. Methods may be called from several threads at once."""

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
        """Yield a descriptor of the directory. With `make`, create what is missing, else raise Gone. Raises OSError."""
        here = os.dup(self._top)
        try:
            for name in parts:
                below = _enter(name, here, make)
                os.close(here)
                here = below
                if make:  # an earlier run may have made it read-only
                    set_permissions(here, os.fstat(here).st_mode | stat.S_IRWXU)
            yield here
        finally:
            os.close(here)

    def open_file(self, parts: Parts) -> int:
        """Open a regular file for reading. Raises Gone, OSError."""
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
        """Return the status of a regular file; None if there is none. Raises OSError."""
        try:
            with self.directory(parts[:-1]) as directory:
                found = os.stat(parts[-1], dir_fd=directory, follow_symlinks=False)
        except (Gone, FileNotFoundError):
            return None
        return found if stat.S_ISREG(found.st_mode) else None

    def files(
        self,
        above: Parts,
        skipped: Callable[[str, str], None],
        unreadable: Callable[[str, OSError], None] | None = None,
        keep: Callable[[TreeEntry], None] | None = None,
    ) -> Iterator[tuple[str, os.stat_result]]:
        """Yield the regular files below a directory: names relative to it and status. `skipped` gets all others, with
        the reason, and `unreadable` gets directories that cannot be read. `keep` gets links, empty directories, and
        modes that differ from what the umask gives.

        A directory that vanishes is skipped. The directory itself is named by its path. Raises OSError if there is no
        `unreadable`, and what `unreadable` raises.
        """
        if unreadable is not None:
            unreadable = _naming_top(os.path.join(self.root, *above), unreadable)
        try:
            with self.directory(above) as top:
                below = Directories(".", dir_fd=top)
        except Gone:
            return
        except OSError as error:
            if unreadable is None:
                raise
            unreadable(".", error)
            return
        with below:
            for parts, descriptor, entries in _with_directories(below, unreadable, keep):
                for path, name, status in _statuses(parts, entries, unreadable):
                    if keep is not None and (one := _entry(path, status, descriptor)) is not None:
                        keep(one)
                    if stat.S_ISLNK(status.st_mode) and keep is not None:
                        continue
                    if not stat.S_ISREG(status.st_mode):
                        skipped(path, f"it is {kind_of(status.st_mode)}")
                    elif not PART_NAME.fullmatch(name):
                        yield path, status

    def is_free(self, parts: Parts, *, directory: bool = False) -> bool:
        """Return whether neither the name nor one of its directories is taken. With `directory`, an existing directory
        is free. Raises OSError."""
        for depth in range(1, len(parts) + 1):
            try:
                with self.directory(parts[: depth - 1]) as above:
                    found = os.stat(parts[depth - 1], dir_fd=above, follow_symlinks=False)
            except (Gone, FileNotFoundError):
                return True
            if not stat.S_ISDIR(found.st_mode):
                return False
        return directory

    def restore(
        self,
        entries: Iterable[TreeEntry],
        may_replace: MayReplace,
        skipped: Callable[[str], None],
    ) -> Iterator[tuple[str, os.stat_result]]:
        """Restore entries, and yield the names of links and their status. `may_replace` decides, by a link's name and
        the status of what has its name, whether it is replaced. A directory is not replaced. Raises OSError."""
        directories: list[tuple[Parts, int]] = []
        for one in sorted(entries, key=lambda one: (not one.name.endswith("/"), one.name)):
            try:
                parts = parts_of(one.name.rstrip("/"))
                if one.name.endswith("/"):
                    self._require_free(parts)
                    with self.directory(parts, make=True):
                        directories.append((parts, one.mode))
                elif one.target:
                    yield one.name, self._restore_link(parts, one, may_replace)
                else:
                    self._restore_mode(parts, one.mode)
            except Skip as why:
                skipped(f"{shown(one.name)} is left out: {why}")
        for parts, mode in sorted(directories, reverse=True):  # a directory may deny access to those below it
            if mode >= 0:
                with suppress(Gone), self.directory(parts) as descriptor:
                    set_permissions(descriptor, mode)

    def _restore_link(self, parts: Parts, link: TreeEntry, may_replace: MayReplace) -> os.stat_result:
        """Return the status of the link. Raises Skip, OSError."""
        target = inner_target(link.target, parts[:-1])
        if target is None:
            raise Skip(f"it is a link that leads out of the directory, to {shown(link.target)}")
        self._require_free(parts[:-1])
        with self.directory(parts[:-1], make=True) as directory, half_made(directory) as temporary:
            found = status_of(parts[-1], directory)
            if found is not None:
                if stat.S_ISLNK(found.st_mode) and os.readlink(parts[-1], dir_fd=directory) == target:
                    return found
                if not may_replace(link.name, found):
                    raise Skip(_TAKEN)
            os.symlink(target, temporary, dir_fd=directory)
            made = os.stat(temporary, dir_fd=directory, follow_symlinks=False)
            self.place(temporary, parts, directory)
            return made

    def _restore_mode(self, parts: Parts, mode: int) -> None:
        with suppress(Gone):  # the file was left out
            descriptor = self.open_file(parts)
            try:
                set_permissions(descriptor, mode)
            finally:
                os.close(descriptor)

    def _require_free(self, parts: Parts) -> None:
        """Raise Skip if the directory does not exist and cannot be created without replacing anything."""
        if not self.is_free(parts, directory=True):
            raise Skip(_TAKEN)

    def place(self, temporary: str, parts: Parts, directory: int) -> None:
        """Rename a complete file. Raises Skip if a directory has its name, and OSError."""
        try:
            os.replace(temporary, parts[-1], src_dir_fd=directory, dst_dir_fd=directory)
        except IsADirectoryError:
            with suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=directory)
            raise Skip("a directory has its name here") from None


def open_own(name: str, directory: int) -> int:
    """Open a regular file that has no other name. Anything else with its name is replaced. Raises OSError."""
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
    raise OSError(errno.ELOOP, "is not a regular file with one link", name)


def _naming_top(path: str, unreadable: Callable[[str, OSError], None]) -> Callable[[str, OSError], None]:
    """Return a function that calls `unreadable` with the path in place of "."."""
    return lambda name, error: unreadable(path if name == "." else name, error)


def _statuses(
    parts: Parts, entries: Iterable[os.DirEntry[str]], unreadable: Callable[[str, OSError], None] | None
) -> Iterator[tuple[str, str, os.stat_result]]:
    """Yield the path, name and status of each entry. `unreadable` gets those in a directory that cannot be entered."""
    for entry in entries:
        path = "/".join((*parts, entry.name))
        try:
            status = entry.stat(follow_symlinks=False)
        except FileNotFoundError:
            continue
        except OSError as error:
            if unreadable is None:
                raise
            unreadable(path, error)
            continue
        yield path, entry.name, status


def _with_directories(
    tree: Directories, unreadable: Callable[[str, OSError], None] | None, keep: Callable[[TreeEntry], None] | None
) -> Iterator[tuple[Parts, int, list[os.DirEntry[str]]]]:
    """Walk the tree. `keep` gets directories that are empty or have an unusual mode, after what is in them."""
    usual = 0o777 & ~_umask()
    without_files: Parts = ()
    for parts, descriptor, entries in walk(tree, unread=unreadable):
        if keep is not None and without_files and parts[: len(without_files)] != without_files:
            keep(TreeEntry("/".join(without_files) + "/"))
        has_files = any(entry.is_file(follow_symlinks=False) or entry.is_symlink() for entry in entries)
        without_files = () if has_files else parts
        mode = permission_bits(os.fstat(descriptor).st_mode)
        if keep is not None and parts and mode != usual:
            keep(TreeEntry("/".join(parts) + "/", mode))
            without_files = ()
        yield parts, descriptor, entries
    if keep is not None and without_files:
        keep(TreeEntry("/".join(without_files) + "/"))


def _entry(path: str, status: os.stat_result, directory: int) -> TreeEntry | None:
    if stat.S_ISLNK(status.st_mode):
        with suppress(OSError):  # it is something else now
            return TreeEntry(path, target=os.readlink(path.rpartition("/")[2], dir_fd=directory))
    mode = permission_bits(status.st_mode)
    return TreeEntry(path, mode) if stat.S_ISREG(status.st_mode) and mode != 0o666 & ~_umask() else None


_umask = functools.cache(read_umask)


def _enter(name: str, directory: int, make: bool) -> int:
    for _ in range(TRIES):
        try:
            return os.open(name, _DIRECTORY, dir_fd=directory)
        except OSError as error:
            if make and error.errno == errno.EACCES:
                unlock(name, directory)
                continue
            if error.errno not in _SWAPPED:
                raise
            if not make:
                raise Gone from error
            if error.errno != errno.ENOENT:
                with suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=directory)
        with suppress(FileExistsError):
            os.mkdir(name, 0o777, dir_fd=directory)
    raise OSError(errno.ELOOP, "is not a directory", name)
