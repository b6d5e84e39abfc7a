"""Preserve links, modes, groups and holes when a tree is copied.

Learners write such trees. A link is never followed. Of a mode, the permission bits are copied, and the sticky bit of
directories.
Standard library; runs on Python 3.9.
"""

from __future__ import annotations

import contextlib
import errno
import os
import posixpath
import re
import stat
from itertools import accumulate, dropwhile
from typing import Callable, Iterator, Optional, Sequence, Tuple

from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.host.permissions import is_default_mode

CHUNK_BYTES = 4 * 1024 * 1024
ONE_FILE = (errno.EACCES, errno.EPERM, errno.EIO, errno.EBADMSG, errno.EUCLEAN, errno.ESTALE)
"""Errors that concern one file or directory. After others, the next file would have the same error."""
MAX_FILE_MODE, MAX_DIRECTORY_MODE = 0o777, 0o777 | stat.S_ISVTX
"""The bits of a mode that are copied."""
SHOWN = 200
"""Maximum length of a name in a message."""
_DEFAULT_ACL = "system.posix_acl_default"
_HOLE_BYTES = 4096
_ZEROS = bytes(_HOLE_BYTES)


def inner_target(target: str, above: Tuple[str, ...], roots: Sequence[str] = ()) -> Optional[str]:
    """Return the target of a link in the directory `above` of a tree, relative to that directory; None if it is outside
    of the tree. `roots` are absolute paths by which the writers of the tree may know it.

    The returned target has ".." only at its start. So no chain of such links leads out of the tree.
    """
    names = [name for name in target.split("/") if name not in ("", ".")]
    depths = list(accumulate((-1 if name == ".." else 1 for name in names), initial=len(above)))
    is_inside = not target.startswith("/") and min(depths) >= 0
    if is_inside and ".." not in list(dropwhile(lambda name: name == "..", names)):
        return target or None
    for root in ("/",) if is_inside else roots:
        base = posixpath.normpath(root)
        full = posixpath.normpath(posixpath.join(base, *above, target))
        if full == base or full.startswith(base.rstrip("/") + "/"):
            return posixpath.relpath(full, posixpath.join(base, *above))
    return None


_BYTE = re.compile(r"\\udc([89a-f][0-9a-f])")
"""A byte that is not UTF-8, as :func:`ascii` writes it (PEP 383)."""


def shown(name: str) -> str:
    """Return a name as one short piece of printable text."""
    text = name if name.isprintable() else _BYTE.sub(r"\\x\1", ascii(name)[1:-1])
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"


def permission_bits(mode: int) -> int:
    """Return the bits of an `st_mode` that are copied: permissions, and the sticky bit of directories."""
    return mode & _copied(mode)


def _copied(mode: int) -> int:
    return MAX_DIRECTORY_MODE if stat.S_ISDIR(mode) else MAX_FILE_MODE


def set_mode(descriptor: int, mode: int, umask: int) -> None:
    """Give a new file or directory the mode of its original, if its file system and its owner allow it. Bits that its
    file system gave it, as setgid, stay. Raises OSError.

    If the original has the permissions that `umask` gives to every new file, they are not changed, because no program
    chose them: chmod(2) would change the mask of an ACL that the file inherited (acl(5)).
    """
    is_directory = stat.S_ISDIR(mode)
    if is_default_mode(mode, umask, directory=is_directory):
        mode = os.fstat(descriptor).st_mode | (mode & stat.S_ISVTX)
    set_permissions(descriptor, mode, stat.S_ISGID if is_directory else 0)


def set_permissions(descriptor: int, mode: int, more: int = 0) -> None:
    """Set the bits of the mode of a file or directory that are copied, and the bits `more`, if its file system and its
    owner allow it. Raises OSError."""
    found = os.fstat(descriptor).st_mode
    copied = _copied(found)
    wanted = (stat.S_IMODE(found) & ~copied) | (mode & (copied | more))
    try:
        if wanted != stat.S_IMODE(found):
            os.fchmod(descriptor, wanted)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP):
            raise


def set_group(descriptor: int, gid: int) -> None:
    """Give a file or directory to a group, if the user is a member of it. Raises OSError."""
    if os.fstat(descriptor).st_gid != gid:
        with contextlib.suppress(PermissionError):
            os.chown(descriptor, -1, gid)


@dataclass(frozen=True)
class Inheritance:
    """What a directory gives to new files in it: their group, and whether a default ACL replaces the umask."""

    gid: int
    by_acl: bool

    @classmethod
    def of(cls, directory: int) -> Inheritance:
        """Read it. Raises OSError."""
        found = os.fstat(directory)
        try:
            by_acl = bool(os.getxattr(directory, _DEFAULT_ACL))
        except OSError:  # none, or a file system without ACLs
            by_acl = False
        return cls(found.st_gid if found.st_mode & stat.S_ISGID else os.getegid(), by_acl)


def copy_content(source: int, target: int, go_on: Callable[[], None]) -> None:
    """Copy the content of a file into an empty one. Holes stay holes. `go_on` is called for each CHUNK_BYTES. Raises
    OSError."""
    at = 0
    while True:
        size = os.fstat(source).st_size
        end = _end_of_data(source, at)
        if end is None:
            os.ftruncate(target, max(at, size))
            return
        start, stop = end
        os.lseek(source, start, os.SEEK_SET)
        while start < stop:
            data = os.read(source, min(CHUNK_BYTES, stop - start))
            if not data:  # it became shorter
                os.ftruncate(target, start)
                return
            write_all(target, data, start)
            start += len(data)
            go_on()
        at = stop


def write_sparse(descriptor: int, data: bytes, at: int) -> None:
    """Write into an empty part of a file. Blocks of zeros become holes. Raises OSError. The caller sets the size."""
    view, start = memoryview(data), 0
    for block in _zero_blocks(data):
        if block > start:
            write_all(descriptor, view[start:block], at + start)
        start = block + _HOLE_BYTES
    write_all(descriptor, view[start:], at + start)


def _zero_blocks(data: bytes) -> Iterator[int]:
    """Yield the positions of blocks of zeros. Only blocks that begin with a zero are looked at."""
    firsts = data[::_HOLE_BYTES]
    number = firsts.find(0)
    while number >= 0:
        if data.startswith(_ZEROS, number * _HOLE_BYTES):
            yield number * _HOLE_BYTES
        number = firsts.find(0, number + 1)


def write_all(descriptor: int, data: "bytes | memoryview", at: int) -> None:
    """Write all of the data at this position. Raises OSError."""
    rest = memoryview(data)
    while rest:
        written = os.pwrite(descriptor, rest, at)
        rest, at = rest[written:], at + written


def _end_of_data(descriptor: int, at: int) -> Optional[Tuple[int, int]]:
    """Return the start and end of the next range with data (lseek(2), SEEK_DATA); None if only a hole is left."""
    try:
        start = os.lseek(descriptor, at, os.SEEK_DATA)
        return start, os.lseek(descriptor, start, os.SEEK_HOLE)
    except OSError as error:
        if error.errno == errno.ENXIO:
            return None
        raise
