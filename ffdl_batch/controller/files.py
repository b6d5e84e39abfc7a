"""Files that other nodes read: cells by atomic rename, everything fsync'ed, nothing followed through symlinks."""

from __future__ import annotations

import errno
import json
import os
import stat
from typing import Any, Dict, Optional

from ffdl_batch.domain.formats import FORMAT

NO_SPACE = (errno.ENOSPC, errno.EDQUOT)


def write_cell(path: str, body: Dict[str, Any]) -> None:
    """Replace `path` by the JSON of `body`, and its format: readers see the old content or the new. Raises OSError."""
    write_text(path, json.dumps({"format": FORMAT, **body}, ensure_ascii=True, sort_keys=True) + "\n")


def write_text(path: str, text: str, mode: int = 0o600) -> None:
    """Replace `path` by `text`, durably. Raises OSError."""
    temporary = f"{path}.{os.uname().nodename}.{os.getpid()}.tmp"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError:
        if os.path.exists(temporary):
            os.unlink(temporary)
        raise
    sync_directory(os.path.dirname(path))


def read_cell(path: str) -> Optional[Dict[str, Any]]:
    """The JSON object in `path`; None where there is none or it is still empty. Raises OSError but for ENOENT."""
    try:
        with open(path, encoding="utf-8") as file:
            body = json.loads(file.read() or "null")
    except (FileNotFoundError, ValueError):
        return None
    return body if isinstance(body, dict) else None


def read_text(path: str) -> str:
    """The whole text of `path`; "" where there is none."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except FileNotFoundError:
        return ""


def sync_directory(path: str) -> None:
    """Make renames in `path` durable."""
    descriptor = os.open(path or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def create_empty(path: str) -> None:
    """Make `path` exist without changing it, so that caches of other nodes know the name."""
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))


def touch(path: str) -> None:
    """Make `path` exist and set its time to now."""
    create_empty(path)
    os.utime(path)


def make_private(path: str) -> None:
    """A directory of mode 0700 that is ours alone; OSError (EPERM) where somebody else got there first."""
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        found = os.lstat(path)
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
            raise PermissionError(errno.EPERM, "exists and is no directory of ours", path) from None
        os.chmod(path, 0o700)
