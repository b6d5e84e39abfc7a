"""Opens and reads files that a learner or a user may have written, or replaced by something else.

Every such file is opened here. A link, a pipe, a device, another user's file or a file that is too large is a damaged
file: this module never follows it, waits for it or reads it to its end. Standard library; runs on Python 3.9.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import Any, BinaryIO, Dict, Optional

from ffdl_batch.domain.untrusted_json import parse_json

MAX_CELL_BYTES = 1024 * 1024
"""Maximum size of a JSON file. The records and cells of an attempt have some kilobytes."""
MAX_EVENT_BYTES = 8 * 1024**2
"""Maximum number of bytes that are read from an event file, which usually has some kilobytes."""
MAX_TEXT_BYTES = 64 * 1024**2
"""Maximum size of other files that are read whole: environments, secrets, planned objects, output of commands."""
SMALL_BYTES = 64 * 1024
BUFFER_BYTES = 8192
"""Buffer of an open file. With a given size, Python asks the kernel for neither a size nor a terminal."""
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NOCTTY | os.O_CLOEXEC
_DIRECTORY = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_PASSED = getattr(os, "O_PATH", os.O_RDONLY) | _DIRECTORY
"""Flags of a directory on the way to another one. O_PATH, which macOS lacks, does not need permission to list it."""
_NOT_REGULAR = (errno.ELOOP, errno.ENXIO, errno.ENOTDIR)
NO_WAY = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
"""Errors of a file that does not exist or was replaced, or whose directory was."""
SPECIAL_KINDS = {
    stat.S_IFIFO: "a named pipe", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device",
}  # fmt: skip
"""Names of files without content, by the type in `st_mode`."""
_KINDS = {stat.S_IFDIR: "a directory", stat.S_IFLNK: "a symbolic link", **SPECIAL_KINDS}


class DamagedFile(ValueError):
    """A file whose content its writer cannot have written. `path` is its name; `why` is the reason."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"{path} is damaged: {why}")
        self.path = path
        self.why = why


class DeniedFile(DamagedFile, PermissionError):
    """A file that its owner closed to itself (``chmod 000``), or that is below such a directory. No controller does
    that. Callers that look for errors of the system see a PermissionError."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(path, why)
        self.errno, self.strerror, self.filename = errno.EACCES, os.strerror(errno.EACCES), path

    __str__ = Exception.__str__


NO_FILE = (FileNotFoundError, NotADirectoryError, DamagedFile)
"""Errors of a file that is missing or damaged."""


def open_regular(path: str, *, below: str = "", dir_fd: int | None = None, any_owner: bool = False) -> BinaryIO:
    """Open a regular file for reading.

    With `below`, a directory that `path` is in, no directory between the two may be a link, and the file must belong
    to the owner of `below` or to this process, unless `any_owner` is true. Raises FileNotFoundError if it does not
    exist, DamagedFile if it is something else, ValueError if `path` is not in `below`, OSError. If modes of the user's
    own files deny access, that is a DeniedFile, but with `dir_fd` it is a PermissionError.
    """
    try:
        descriptor = _open_in(below, path) if below else _open(path, path, dir_fd)
    except PermissionError as error:
        raise error if dir_fd is not None else _denied(error, path) from None
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise DamagedFile(path, f"it is {kind_of(found.st_mode)}, not a regular file")
        if below and not any_owner and found.st_uid not in (os.geteuid(), os.stat(below).st_uid):
            raise DamagedFile(path, f"it belongs to uid {found.st_uid}")
    except BaseException:
        os.close(descriptor)
        raise
    return os.fdopen(descriptor, "rb", BUFFER_BYTES)


def read_head(path: str, limit: int, *, below: str = "", any_owner: bool = False) -> bytes:
    """Return the first `limit` bytes of a regular file. Raises as :func:`open_regular`."""
    with open_regular(path, below=below, any_owner=any_owner) as file:
        return file.read(limit)


def read_whole(path: str, limit: int, *, below: str = "", any_owner: bool = False) -> bytes:
    """Return the bytes of a regular file. Raises as :func:`open_regular`, and DamagedFile for more than `limit`."""
    content = read_head(path, limit + 1, below=below, any_owner=any_owner)
    if len(content) > limit:
        raise DamagedFile(path, f"it has more than {limit} bytes")
    return content


def read_object(path: str, limit: int = MAX_CELL_BYTES, *, below: str = "") -> dict[str, Any]:
    """Return the JSON object in a file. Raises as :func:`read_whole`, DamagedFile if it is no JSON object."""
    try:
        value = parse_json(read_whole(path, limit, below=below))
    except DamagedFile:
        raise
    except ValueError as error:
        raise DamagedFile(path, f"it is not JSON ({error})") from None
    if not isinstance(value, dict):
        raise DamagedFile(path, "it is not a JSON object")
    return value


def find_object(path: str, limit: int = MAX_CELL_BYTES, *, below: str = "") -> Dict[str, Any]:
    """Return the JSON object in a file; {} if the file is missing or damaged. Raises OSError."""
    try:
        return read_object(path, limit, below=below)
    except NO_FILE:
        return {}


def find_text(path: str, limit: int = SMALL_BYTES, *, below: str = "") -> str:
    """Return the first `limit` bytes of a file as text; "" if the file is missing or damaged. Raises OSError.

    Bytes that are not UTF-8 become U+FFFD.
    """
    try:
        return read_head(path, limit, below=below).decode("utf-8", "replace")
    except NO_FILE:
        return ""


def status_of(path: str) -> Optional[os.stat_result]:
    """Return the status of a regular file; None if it is missing or something else. Raises OSError."""
    try:
        found = os.lstat(path)
    except OSError as error:
        if error.errno in NO_WAY or (isinstance(error, PermissionError) and find_own_denial(path)):
            return None
        raise
    return found if stat.S_ISREG(found.st_mode) else None


def size_of(path: str) -> int:
    """Return the size of a regular file in bytes; 0 if it is missing or something else. Raises OSError."""
    found = status_of(path)
    return found.st_size if found is not None else 0


def list_names(path: str, *, below: str) -> list[str]:
    """Return the sorted names of the entries of a directory. Directories between it and `below` are checked as by
    :func:`open_regular`.

    Raises FileNotFoundError, DamagedFile if it is not a directory, DeniedFile as :func:`open_regular`, OSError.
    """
    try:
        directory = open_directory(path, below=below)
    except PermissionError as error:
        raise _denied(error, path) from None
    try:
        return sorted(os.listdir(directory))
    finally:
        os.close(directory)


def open_directory(path: str, *, below: str) -> int:
    """Return a descriptor of a directory in `below`. Neither the directory nor one between the two may be a link.

    Raises FileNotFoundError, DamagedFile if it is something else, ValueError if `path` is not in `below`, OSError.
    """
    return _enter(below, path + os.sep, os.O_RDONLY | _DIRECTORY)


def kind_of(mode: int) -> str:
    """Return the kind of a file with this `st_mode`, with an article."""
    return _KINDS.get(stat.S_IFMT(mode), "a regular file")


def _enter(below: str, path: str, flags: int) -> int:
    """Open the directory that contains `path` (or `path` itself, if it ends with a slash) with these flags. Each
    directory between is opened by itself, and none may be a link."""
    prefix = below.rstrip(os.sep) + os.sep
    if not path.startswith(prefix):
        raise ValueError(f"{path} is not in {below}")
    names = path[len(prefix) :].split(os.sep)[:-1]
    directory = os.open(below, (_PASSED if names else flags) & ~os.O_NOFOLLOW)
    try:
        for number, name in enumerate(names, 1):
            try:
                inner = os.open(name, _PASSED if number < len(names) else flags, dir_fd=directory)
            except OSError as error:
                raise _explained(error, path.rstrip(os.sep), name, directory) from None
            os.close(directory)
            directory = inner
    except BaseException:
        os.close(directory)
        raise
    return directory


def find_own_denial(path: str) -> str:
    """Return which mode of the user's own files denies access to `path`; "" if none does, as if a file server rejects
    the user."""
    place, needed = path, stat.S_IRUSR
    while place not in ("", os.sep):
        try:
            found = os.lstat(place)
        except OSError:  # a directory above it denies even that
            pass
        else:
            if found.st_uid == os.geteuid() and not found.st_mode & needed:
                return f"'{os.path.basename(place)}' has mode {stat.S_IMODE(found.st_mode):04o}"
        place, needed = os.path.dirname(place), stat.S_IXUSR
    return ""


def _denied(error: PermissionError, path: str) -> PermissionError:
    why = find_own_denial(path)
    return DeniedFile(path, f"its owner may not read it, because {why}") if why else error


def _open_in(below: str, path: str) -> int:
    parent = _enter(below, path, _PASSED)
    try:
        return _open(path, os.path.basename(path), parent)
    finally:
        os.close(parent)


def _open(path: str, name: str, dir_fd: int | None) -> int:
    try:
        return os.open(name, _FILE | os.O_NONBLOCK, dir_fd=dir_fd)
    except BlockingIOError:  # a lease is being broken (fcntl(2)): not a pipe, and a blocking open waits for its holder
        return os.open(name, _FILE, dir_fd=dir_fd)
    except OSError as error:
        raise _explained(error, path, name, dir_fd) from None


def _explained(error: OSError, path: str, name: str, dir_fd: int | None) -> Exception:
    """Return DamagedFile if the entry is neither a file nor a directory, else the error with the whole path."""
    if error.errno in _NOT_REGULAR:
        try:
            return DamagedFile(path, f"'{name}' is {kind_of(os.lstat(name, dir_fd=dir_fd).st_mode)}")
        except OSError as later:
            if later.errno in (errno.ELOOP, errno.ENOTDIR):
                return DamagedFile(path, "a directory above it was replaced by something else")
            error = later
    error.filename = path
    return error
