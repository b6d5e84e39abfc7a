"""Copy directory trees so that several nodes may do it at once and a second pass is harmless.

Learners on other nodes may still write in both trees. A directory that they replace with a link is not followed.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from typing import Callable, List, Optional, Sequence

from ffdl_batch.attempt.directory_tree import Directories, Gone, Parts, is_file, is_in, remove_name, status_of, walk
from ffdl_batch.attempt.file_writer import NEW
from ffdl_batch.attempt.reader import NO_FILE, kind_of, open_regular
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.host.file_attributes import (
    ONE_FILE,
    Inheritance,
    copy_content,
    inner_target,
    set_group,
    set_mode,
    shown,
)
from ffdl_batch.host.permissions import creation_mode, is_default_mode, read_umask

_SUFFIX = ".ffdl-tmp"
_HALF_COPIED = re.compile(r"\.(.+)-([0-9]+)" + re.escape(_SUFFIX))
"""Name of a file until it is complete. It has the host and the process id of the copying process."""
_NO_ATTRIBUTES = (errno.EPERM, errno.ENOTSUP, errno.ENODATA, errno.EINVAL, errno.EACCES)


NAMED = 3
"""Maximum number of names in a message, besides the first."""


class UnreadableSource(PermissionError):
    """Files or directories of the source deny the access; all others were copied."""


def continue_always() -> None:
    """Do not interrupt."""


def ignore_note(_: str) -> None:
    """Ignore a note."""


def copy_tree(  # noqa: PLR0913 - one argument for each property of a copy
    source: str,
    target: str,
    below: Parts = (),
    *,
    link: bool = False,
    keep_newer: bool = False,
    own: str = "",
    roots: Sequence[str] = (),
    note: Callable[[str], None] = ignore_note,
    go_on: Callable[[], None] = continue_always,
) -> int:
    """Copy every file of `source` into `target`, or into the directory `below` it. Return the number of files.

    Each file appears when it is complete, by rename. A file of the same size and time is not copied again. Modes, holes
    and empty directories are kept. A file with the default mode and group gets those of a new file in `target`,
    according to this process's umask and to a setgid bit or default ACL there.

    Symbolic links are copied as links. Those that lead into `source` by a path in `roots` become relative. Sockets,
    pipes and devices are left out. `note` gets a sentence about these, and about each link that leads elsewhere. Files
    that disappear during the copy are left out, because learners of other nodes may still run.

    `source` and `target` may be links, but a source in the directory `own` may not, because learners can put one there.
    A link below `target` in place of a directory is replaced.

    With `link`, files become hard links if both trees are in one file system; no process may write them any more. With
    `keep_newer`, newer files in `target` stay. `go_on` is called before each file and each CHUNK_BYTES of it, and may
    raise to end the copying. Complete files stay then. If files or directories cannot be read, all others are copied,
    and then the first error is raised, with the names of others. Raises UnreadableSource if the source denies the
    access, and OSError.
    """
    count, failed, originals = 0, _Failed(source), dict[Parts, os.stat_result]()
    temporary = f".{os.uname().nodename}-{os.getpid()}{_SUFFIX}"
    with Directories(target, 0o777, unlock=True) as there, _open_source(source, own) as here:
        manner = _Manner(link, read_umask(), (os.getegid(), os.fstat(here.enter(())).st_gid))

        def finish(parts: Parts) -> None:
            if parts in originals:
                manner.keep(there.enter((*below, *parts)), originals.pop(parts))

        for parts, descriptor, entries in walk(here, unread=failed.add, after=finish):
            place = (*below, *parts)
            inside = there.enter(place)
            pair = _Pair(
                descriptor, inside, Inheritance.of(inside), (source, *parts), (target, *place), temporary, manner,
                parts, roots, note, go_on,
            )  # fmt: skip
            if parts:
                originals[parts] = os.fstat(descriptor)
            for entry in entries:
                go_on()
                try:
                    count += _bring(entry, pair, keep_newer)
                except Gone:
                    continue
                except OSError as error:
                    failed.add(entry.name, error)
    failed.raise_first()
    return count


def _open_source(source: str, own: str) -> Directories:
    try:
        return Directories(source, below=own)
    except PermissionError as error:
        raise UnreadableSource(error.errno, error.strerror, source) from error


class _Failed:
    """Files that could not be copied."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._first: Optional[OSError] = None
        self._others: List[str] = []
        """Names of the others, up to NAMED."""
        self._count = 0
        self._are_denied = True

    def add(self, _: str, error: OSError) -> None:
        """Remember the error. Raises it if the next file would have the same one."""
        if error.errno not in ONE_FILE:
            raise error
        path = os.fsdecode(error.filename or "")
        self._are_denied = self._are_denied and error.errno == errno.EACCES and is_in(path, self._source)
        if self._first is None:
            self._first = error
            return
        self._count += 1
        if len(self._others) < NAMED:
            self._others.append(shown(os.path.relpath(path, self._source) if is_in(path, self._source) else path))

    def raise_first(self) -> None:
        """Raise the first error, with the names of the others."""
        first = self._first
        if first is None:
            return
        why, more = str(first.strerror), self._count - len(self._others)
        if self._count:
            names = ", ".join(self._others) + (f" and {more} more" if more else "")
            why += f" (also not copied: {names}; all others were)"
        if self._are_denied:
            raise UnreadableSource(first.errno, why, first.filename) from first
        raise OSError(first.errno, why, first.filename) from first


def remove_half_copied(root: str, is_dead: Callable[[str, int], bool]) -> None:
    """Remove incomplete files below `root` of processes for which `is_dead` is true, by host and process id.

    Directories that may not be read are skipped. Raises OSError.
    """
    try:
        tree = Directories(root)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return
    with tree:
        for _, descriptor, entries in walk(tree, unread=_pass_over_forbidden):
            for entry in entries:
                match = _HALF_COPIED.fullmatch(entry.name)
                if match is not None and is_dead(match[1], int(match[2])):
                    remove_name(entry.name, descriptor)


def _pass_over_forbidden(_: str, error: OSError) -> None:
    if not isinstance(error, PermissionError):
        raise error


@dataclass(frozen=True)
class _Manner:
    """How files are copied."""

    link: bool
    """By hard links if possible."""
    umask: int
    groups: Sequence[int]
    """Groups of files in the source whose group no learner has chosen."""

    def has_own_group(self, found: os.stat_result) -> bool:
        """Return whether a learner has chosen the group."""
        return found.st_gid not in self.groups

    def keep(self, descriptor: int, original: os.stat_result) -> None:
        """Give a new file or directory the mode and group that were chosen for its original. Raises OSError."""
        if self.has_own_group(original):
            set_group(descriptor, original.st_gid)
        set_mode(descriptor, original.st_mode, self.umask)

    def creation_mode(self, original: os.stat_result) -> int:
        """Return the mode with which a copy is created: umask or default ACL decide unless a learner has."""
        mode = original.st_mode & 0o777
        return creation_mode(mode) if is_default_mode(mode, self.umask) else mode


@dataclass(frozen=True)
class _Pair:
    """A directory in source and target: its descriptors, and the parts of the paths, which are joined only for
    messages.

    `temporary` is the name of a file until it is complete.
    """

    source: int
    target: int
    given: Inheritance
    source_path: Parts
    target_path: Parts
    temporary: str
    manner: _Manner
    parts: Parts
    roots: Sequence[str]
    note: Callable[[str], None]
    go_on: Callable[[], None]

    def note_entry(self, name: str, what: str) -> None:
        """Note something about an entry of the directory."""
        self.note(f"{shown('/'.join((*self.parts, name)))} {what}")


def _bring(entry: "os.DirEntry[str]", pair: _Pair, keep_newer: bool) -> bool:
    """Copy the entry. Return whether it can be copied. Raises OSError, Gone."""
    name = entry.name
    try:
        found = entry.stat(follow_symlinks=False)
    except FileNotFoundError as error:
        raise Gone(name) from error
    except OSError as error:  # the directory may be listed, and not entered
        error.filename = os.path.join(*pair.source_path, name)
        raise
    if not (stat.S_ISREG(found.st_mode) or stat.S_ISLNK(found.st_mode)):
        pair.note_entry(name, f"is {kind_of(found.st_mode)}, and is left out")
        return False
    try:
        before = status_of(name, pair.target)
        is_there = before is not None and (
            (keep_newer and before.st_mtime_ns > found.st_mtime_ns) or _same(found, before)
        )
        if not is_there:
            _place(name, stat.S_ISLNK(found.st_mode), pair)
    except OSError as error:
        if error.errno is None or os.path.isabs(os.fsdecode(error.filename or "")):
            raise
        raise OSError(error.errno, error.strerror, os.path.join(*pair.target_path, name)) from error
    return True


def _place(name: str, is_link: bool, pair: _Pair) -> None:
    temporary, target = pair.temporary, pair.target
    remove_name(temporary, target)  # of an earlier process with this id, or created by a learner
    try:
        if is_link:
            os.symlink(_target_of(name, pair), temporary, dir_fd=target)
        elif not (pair.manner.link and _hard_link(name, pair)):
            _copy_file(name, pair)
        os.replace(temporary, name, src_dir_fd=target, dst_dir_fd=target)
    finally:
        remove_name(temporary, target)  # rename(2) of two names of one file does nothing


def _target_of(name: str, pair: _Pair) -> str:
    """Return the target of the copied link."""
    target = _read_link(name, pair.source)
    inner = inner_target(target, pair.parts, pair.roots)
    if inner is None:
        pair.note_entry(name, f"is a link that leads out of the directory, to {shown(target)}; it may lead nowhere")
    return inner or target


def _read_link(name: str, directory: int) -> str:
    try:
        return os.readlink(name, dir_fd=directory)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.EINVAL):  # EINVAL: it is not a link
            raise Gone(name) from error
        raise


def _hard_link(name: str, pair: _Pair) -> bool:
    """Return whether the file has a name in the target now, and the group of a new file there."""
    if pair.given.by_acl:  # a link would not inherit it
        return False
    try:
        os.link(name, pair.temporary, src_dir_fd=pair.source, dst_dir_fd=pair.target, follow_symlinks=False)
    except OSError:  # another file system, too many links, or no links: copy instead
        return False
    found = status_of(pair.temporary, pair.target)
    if found is None or not is_file(found):  # it was replaced by a link or a pipe
        raise Gone(name)
    if found.st_gid == pair.given.gid or pair.manner.has_own_group(found):
        return True
    try:
        os.chown(pair.temporary, -1, pair.given.gid, dir_fd=pair.target, follow_symlinks=False)
    except PermissionError:  # the user is not a member: only the directory can give the group, to a new file
        remove_name(pair.temporary, pair.target)
        return False
    return True


def _copy_file(name: str, pair: _Pair) -> None:
    try:
        reader = open_regular(name, dir_fd=pair.source)
    except NO_FILE as error:
        raise Gone(name) from error
    except OSError as error:
        error.filename = os.path.join(*pair.source_path, name)
        raise
    with reader:
        mode = pair.manner.creation_mode(os.fstat(reader.fileno()))
        with os.fdopen(os.open(pair.temporary, NEW, mode, dir_fd=pair.target), "wb", buffering=0) as writer:
            copy_content(reader.fileno(), writer.fileno(), pair.go_on)
            _copy_status(reader.fileno(), writer.fileno(), pair.manner)


def _copy_status(source: int, target: int, manner: _Manner) -> None:
    """Copy extended attributes, group, mode and times, as far as the target's file system has them."""
    found = os.fstat(source)
    for attribute in _attributes(source):
        try:
            os.setxattr(target, attribute, os.getxattr(source, attribute))
        except OSError as error:
            if error.errno not in _NO_ATTRIBUTES:
                raise
    manner.keep(target, found)
    os.utime(target, ns=(found.st_atime_ns, found.st_mtime_ns))


def _attributes(file: int) -> List[str]:
    try:
        return os.listxattr(file)
    except OSError as error:
        if error.errno not in _NO_ATTRIBUTES:
            raise
        return []


def _same(one: os.stat_result, other: os.stat_result) -> bool:
    if (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino):
        return True
    both_files = stat.S_ISREG(one.st_mode) and stat.S_ISREG(other.st_mode)
    return both_files and one.st_size == other.st_size and one.st_mtime_ns == other.st_mtime_ns
