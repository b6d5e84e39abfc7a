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
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
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


class IncomingArchive:
    """An archive that is being received. A context: nothing is left behind unless it is kept."""

    def __init__(self, root: Root) -> None:
        self._root, self._digest = root, hashlib.sha256()
        with self._explained():
            descriptor, self._name = tempfile.mkstemp(prefix=".receiving-", dir=root.models)
        self._file = os.fdopen(descriptor, "wb")

    def __enter__(self) -> IncomingArchive:
        return self

    def __exit__(self, *failure: object) -> None:
        self._file.close()
        Path(self._name).unlink(missing_ok=True)

    def write(self, chunk: bytes) -> None:
        """Append bytes. Raises Refused."""
        self._digest.update(chunk)
        with self._explained():
            write_all(self._file.fileno(), chunk)

    def keep(self, expected: str = "") -> str:
        """Check the archive, keep it durably, and return its SHA-256 (hex), which must be `expected` if that is given.
        Raises Refused."""
        digest = self._digest.hexdigest()
        if expected and digest != expected:
            raise bad_request("C102", "the model archive arrived damaged (its SHA-256 differs)", cure="submit again")
        with self._explained():
            os.fsync(self._file.fileno())
            check_archive(Path(self._name))
            Path(self._name).rename(self._root.model(digest))
            sync_directory(self._root.models)
        return digest

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise _no_space(error, self._root) from error


def receive_archive(root: Root, digest: str, chunks: Iterable[bytes]) -> bool:
    """Store an archive durably; return whether it is new. If this raises, nothing is left behind."""
    if not _DIGEST.fullmatch(digest):
        raise bad_request("C102", f"{digest[:80]!r} is not a SHA-256 in hexadecimal digits")
    if has_archive(root, digest):
        return False
    with IncomingArchive(root) as incoming:
        for chunk in chunks:
            incoming.write(chunk)
        incoming.keep(digest)
    return True


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
