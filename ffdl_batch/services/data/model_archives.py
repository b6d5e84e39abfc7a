"""Model archives: received once per content, checked before they are kept.

An archive is a zip file named by its SHA-256. A user uploads it, and compute nodes unpack it. This module refuses
archives that are damaged, or that could write outside the model's directory or fill the disk, and names the entry.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import tempfile
from collections.abc import Iterable
from pathlib import Path

from ffdl_batch.attempt.file_writer import sync_directory
from ffdl_batch.attempt.layout import Root
from ffdl_batch.attempt.model_archive import ArchiveError, ModelArchive
from ffdl_batch.attempt.reader import open_regular
from ffdl_batch.host.descriptors import write_all
from ffdl_batch.services.refusals import Refused, bad_request, try_again

_DIGEST = re.compile(r"[0-9a-f]{64}", re.ASCII)


def has_archive(root: Root, digest: str) -> bool:
    """Return whether the archive with this SHA-256 (hex) exists. The janitor then keeps it for a day."""
    if _DIGEST.fullmatch(digest) is None:
        return False
    try:
        os.utime(root.model(digest))
    except FileNotFoundError:
        return False
    return True


def receive_archive(root: Root, digest: str, chunks: Iterable[bytes]) -> bool:
    """Store an archive durably; return whether it is new. If this raises, nothing is left behind."""
    if not _DIGEST.fullmatch(digest):
        raise bad_request("C102", f"{digest[:80]!r} is not a SHA-256 in hexadecimal digits")
    if has_archive(root, digest):
        return False
    target = Path(root.model(digest))
    try:
        descriptor, name = tempfile.mkstemp(prefix=".receiving-", dir=root.models)
    except OSError as error:
        raise _no_space(error, root) from error
    try:
        with os.fdopen(descriptor, "wb") as file:
            _copy(chunks, file.fileno(), digest)
            os.fsync(file.fileno())
        check_archive(Path(name))
        Path(name).rename(target)
        sync_directory(root.models)
    except OSError as error:
        raise _no_space(error, root) from error
    finally:
        Path(name).unlink(missing_ok=True)
    return True


def _copy(chunks: Iterable[bytes], descriptor: int, digest: str) -> None:
    found = hashlib.sha256()
    for chunk in chunks:
        found.update(chunk)
        write_all(descriptor, chunk)
    if found.hexdigest() != digest:
        raise bad_request("C102", "the model archive arrived damaged (its SHA-256 differs)", cure="submit again")


def check_archive(path: Path) -> None:
    """Raise :class:`Refused` (C102) for an archive that a node cannot unpack, or must not."""
    try:
        with open_regular(str(path)) as file:
            ModelArchive(file, "the model archive").check_content()
    except ArchiveError as error:
        raise bad_request("C102", error.message, cure=error.cure) from error


def _no_space(error: OSError, root: Root) -> Refused:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return try_again(
            "S210", f"no space is left in {root.path} for the model archive", cure="free space, or raise quota"
        )
    return try_again("S210", f"the model archive could not be kept in {root.models}: {error.strerror}")
