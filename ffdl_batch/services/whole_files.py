"""Files that a reader sees whole or not at all."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from ffdl_batch.attempt.file_writer import put


def write_whole(path: Path, text: str, *, mode: int = 0o600, durable: bool = False) -> None:
    """Write `text` under a temporary name and rename it into place; with `durable`, it survives a power cut.

    A directory in place of the file is renamed.
    Raises OSError and leaves nothing behind then.
    """
    data = text.encode("utf-8")
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(descriptor, mode)  # the umask may have taken something away
            file.write(data)
            if durable:
                file.flush()
                os.fsync(descriptor)
        put(str(temporary), str(path))
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    if durable:
        sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
