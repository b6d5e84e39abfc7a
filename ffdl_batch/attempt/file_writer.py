"""Writes files that other nodes read: cells by atomic rename, everything fsync'ed.

Learners write in some of the directories, from within their containers. If a learner puts a link, a pipe, a socket or a
directory in place of a platform file, this module replaces it. It never follows, waits for or empties it. If a learner
closes a platform file or directory (``chmod 000``), this module opens it again. Only
:mod:`ffdl_batch.attempt.reader` reads files that learners may have written.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
from typing import Any, Dict, Optional, Union

from ffdl_batch.domain.file_format import FORMAT

NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
TRIES = 3
"""How often a link, pipe or socket in the place of a file is removed before an error is raised."""
NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
"""Flags of a file that is not there yet."""


def write_cell(path: str, body: Dict[str, Any]) -> None:
    """Replace `path` by the JSON of `body`, and its format: readers see the old content or the new. Raises OSError."""
    write_text(path, json.dumps({"format": FORMAT, **body}, ensure_ascii=True, sort_keys=True) + "\n")


def write_text(path: Union[str, "os.PathLike[str]"], text: str, mode: int = 0o600, *, durable: bool = True) -> None:
    """Replace `path` by `text`; see :func:`write_bytes`."""
    write_bytes(os.fspath(path), text.encode("utf-8"), mode, durable=durable)


def write_bytes(path: str, data: bytes, mode: int = 0o600, *, durable: bool = True) -> None:
    """Replace `path` by `data`: readers see the old content or the new. Raises OSError and leaves nothing behind then.

    If `durable`, the new content survives a power failure. The mode does not depend on the umask.
    """
    directory, name = os.path.split(path)
    temporary = os.path.join(directory, f".{name}.{os.urandom(4).hex()}")
    try:
        descriptor = os.open(temporary, NEW, mode)
    except PermissionError:
        if not give_access(directory):
            raise
        descriptor = os.open(temporary, NEW, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(descriptor, mode)
            file.write(data)
            if durable:
                file.flush()
                os.fsync(descriptor)
        put(temporary, path)
    except OSError as error:
        error.filename = path  # write(2) and fsync(2) name none
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    if durable:
        sync_directory(directory)


def put(temporary: str, path: str) -> None:
    """Rename a file into place, even if a directory has its name. Raises OSError."""
    try:
        os.replace(temporary, path)
    except IsADirectoryError:
        move_aside(path)
        os.replace(temporary, path)


def move_aside(path: str, *, dir_fd: Optional[int] = None) -> None:
    """Rename the entry that is in place of a platform file or directory, because it is the user's. Raises OSError."""
    with contextlib.suppress(FileNotFoundError):
        os.rename(path, f"{path}.replaced-{os.urandom(4).hex()}", src_dir_fd=dir_fd, dst_dir_fd=dir_fd)


def remove(path: str) -> None:
    """Remove a file, or whatever replaced it. Raises OSError."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        return
    except IsADirectoryError:
        move_aside(path)


def rewrite_text(path: str, text: str) -> None:
    """Write `text` into the existing file, or into a new one. Processes that have the file open or mounted see the
    text. Raises OSError."""
    descriptor = open_own(path, os.O_WRONLY | os.O_TRUNC, 0o644)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)


def read_text(path: str) -> str:
    """Return the whole text of a file that no learner or user can write; "" if it is missing. Follows links. Raises
    OSError."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except FileNotFoundError:
        return ""


def open_own(path: str, flags: int, mode: int = 0o600, *, dir_fd: Optional[int] = None) -> int:
    """Return a descriptor of the regular file `path`. Create the file if it does not exist or is not a regular file.

    Raises OSError.
    """
    for _ in range(TRIES):
        try:
            descriptor = open_at_once(path, flags | os.O_CREAT, mode, dir_fd=dir_fd)
        except IsADirectoryError:
            move_aside(path, dir_fd=dir_fd)
            continue
        except OSError as error:
            if error.errno == errno.EACCES and dir_fd is None and give_access(path):
                continue
            if error.errno not in (errno.ELOOP, errno.ENXIO):
                raise
        else:
            if stat.S_ISREG(os.fstat(descriptor).st_mode):
                os.set_blocking(descriptor, True)
                return descriptor
            os.close(descriptor)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path, dir_fd=dir_fd)
    raise OSError(errno.ELOOP, "is not a regular file", path)


def open_at_once(path: str, flags: int, mode: int = 0o600, *, dir_fd: Optional[int] = None) -> int:
    """Neither follows a link nor waits for the other end of a pipe."""
    flags |= os.O_NOFOLLOW | os.O_NOCTTY | os.O_CLOEXEC
    try:
        return os.open(path, flags | os.O_NONBLOCK, mode, dir_fd=dir_fd)
    except BlockingIOError:  # a lease is being broken (fcntl(2)): not a pipe
        return os.open(path, flags, mode, dir_fd=dir_fd)


def make_directory(path: str, mode: int = 0o777, *, dir_fd: Optional[int] = None) -> None:
    """A real directory, in the place of what was planted. Raises OSError; FileExistsError for a regular file."""
    for _ in range(TRIES):
        try:
            os.mkdir(path, mode, dir_fd=dir_fd)
        except FileExistsError:
            with contextlib.suppress(FileNotFoundError):
                kind = os.stat(path, dir_fd=dir_fd, follow_symlinks=False).st_mode
                if stat.S_ISDIR(kind):
                    return
                if stat.S_ISREG(kind):
                    raise
                os.unlink(path, dir_fd=dir_fd)
        else:
            return
    raise OSError(errno.ELOOP, "is not a directory", path)


def restore_directory(path: str) -> None:
    """Make a directory, even if something else is in its place, and give its owner access. Raises OSError."""
    try:
        make_directory(path)
    except FileExistsError:
        move_aside(path)
        make_directory(path)
    except PermissionError:
        if not give_access(path):
            raise
        make_directory(path)
    else:
        give_access(path)


def give_access(path: str) -> bool:
    """Give the owner access to a file or directory, and to the directories above it, as far as their modes deny it and
    they belong to this process. Return whether a mode was changed.

    Directories above are considered only if they deny access.
    """
    above = os.path.dirname(path)
    try:
        descriptor = os.open(path, getattr(os, "O_PATH", os.O_RDONLY) | os.O_NOFOLLOW | os.O_CLOEXEC)
    except (FileNotFoundError, PermissionError) as error:
        if above in ("", path) or not give_access(above):
            return False
        if isinstance(error, PermissionError):
            give_access(path)
        return True
    except OSError:
        return False
    try:
        found = os.fstat(descriptor)
        kind = stat.S_IFMT(found.st_mode)
        needed = {stat.S_IFDIR: stat.S_IRWXU, stat.S_IFREG: stat.S_IRUSR | stat.S_IWUSR}.get(kind, 0)
        if found.st_uid != os.geteuid() or found.st_mode & needed == needed:
            return False
        os.chmod(f"/proc/self/fd/{descriptor}", stat.S_IMODE(found.st_mode) | needed)
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)


def sync_directory(path: str) -> None:
    """Make renames in `path` durable."""
    descriptor = os.open(path or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def create_empty(path: str, mode: int = 0o600) -> None:
    """Make `path` exist without changing it, so that caches of other nodes know the name."""
    os.close(open_own(path, os.O_WRONLY, mode))


def touch(path: str, mode: int = 0o600, *, dir_fd: Optional[int] = None) -> None:
    """Make `path` exist and set its time to now."""
    descriptor = open_own(path, os.O_WRONLY, mode, dir_fd=dir_fd)
    try:
        os.utime(descriptor)
    finally:
        os.close(descriptor)


def make_private(path: str) -> None:
    """A directory of mode 0700 that is ours alone; OSError (EPERM) where somebody else got there first."""
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        found = os.lstat(path)
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
            raise PermissionError(errno.EPERM, "exists and is not a directory of ours", path) from None
        os.chmod(path, 0o700)
