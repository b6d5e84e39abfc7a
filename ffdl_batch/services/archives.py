"""Model archives: received once per content, checked before they are kept.

An archive is a zip named by its SHA-256. It comes from a user and is unpacked on compute nodes, so what could
write outside the model's directory, or fill the disk, is refused here with the entry's name.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import stat
import tempfile
import zipfile
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.domain.views import Problem
from ffdl_batch.services.platform import Platform
from ffdl_batch.services.problems import Refused, bad_request, try_again
from ffdl_batch.services.whole_files import sync_directory

MAX_PACKED_BYTES = 2 * 1000**3
MAX_UNPACKED_BYTES = 20 * 1000**3
MAX_ENTRIES = 200_000
MAX_RATIO = 200
"""Unpacked over packed size of a whole archive above a small one; text rarely passes 20."""
RATIO_FLOOR_BYTES = 64 * 1000**2
_DIGEST = re.compile(r"[0-9a-f]{64}", re.ASCII)


def has_archive(platform: Platform, digest: str) -> bool:
    """Whether the archive with this SHA-256 (hex) is here; asking keeps it from being swept for a day."""
    if _DIGEST.fullmatch(digest) is None:
        return False
    try:
        os.utime(platform.root.model(digest))
    except FileNotFoundError:
        return False
    return True


def receive_archive(platform: Platform, digest: str, chunks: Iterable[bytes]) -> bool:
    """Keep an archive; True when it is new. Durable when this returns; nothing is left behind when it raises."""
    if not _DIGEST.fullmatch(digest):
        raise bad_request("C102", f"{digest[:80]!r} is not a SHA-256 in hexadecimal digits")
    if has_archive(platform, digest):
        return False
    target = Path(platform.root.model(digest))
    try:
        descriptor, name = tempfile.mkstemp(prefix=".receiving-", dir=platform.root.models)
    except OSError as error:
        raise _no_room(error, platform) from error
    try:
        with os.fdopen(descriptor, "wb") as file:
            _copy(chunks, file.fileno(), digest)
            os.fsync(file.fileno())
        check_archive(Path(name))
        Path(name).rename(target)
        sync_directory(target.parent)
    except OSError as error:
        raise _no_room(error, platform) from error
    finally:
        Path(name).unlink(missing_ok=True)
    return True


def _copy(chunks: Iterable[bytes], descriptor: int, digest: str) -> None:
    found, size = hashlib.sha256(), 0
    for chunk in chunks:
        size += len(chunk)
        if size > MAX_PACKED_BYTES:
            problem = Problem(
                "C102",
                f"the model archive is larger than {MAX_PACKED_BYTES} bytes",
                ExitCode.BAD_MANIFEST,
                cure="put large files into a data store",
            )
            raise Refused(problem, 413)
        found.update(chunk)
        view = memoryview(chunk)
        while view:
            view = view[os.write(descriptor, view) :]
    if found.hexdigest() != digest:
        raise bad_request("C102", "the model archive was damaged on its way (its SHA-256 differs)", cure="submit again")


def check_archive(path: Path) -> None:
    """Raise :class:`Refused` (C102) for what is no zip, empty, reaches outside, or would unpack without end."""
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
    except (zipfile.BadZipFile, NotImplementedError, ValueError, EOFError) as error:
        raise bad_request(
            "C102", f"the model archive is not a readable zip file: {error}", cure="zip the model's files again"
        ) from error
    if not any(not entry.is_dir() for entry in entries):
        raise bad_request("C102", "the model archive holds no file", cure="put the model's code into it")
    if len(entries) > MAX_ENTRIES:
        raise bad_request("C102", f"the model archive holds {len(entries)} entries; {MAX_ENTRIES} are allowed")
    for entry in entries:
        _check_entry(entry)
    _check_tree(entries)
    unpacked = sum(entry.file_size for entry in entries)
    packed = max(1, path.stat().st_size)
    if unpacked > MAX_UNPACKED_BYTES or (unpacked > RATIO_FLOOR_BYTES and unpacked / packed > MAX_RATIO):
        raise bad_request(
            "C102",
            f"the model archive of {packed} bytes would unpack to {unpacked} bytes",
            cure="put large files into a data store",
        )


def _check_entry(entry: zipfile.ZipInfo) -> None:
    name = PurePosixPath(entry.filename.replace("\\", "/"))
    kind = stat.S_IFMT(entry.external_attr >> 16)
    if name.is_absolute() or ".." in name.parts or "\0" in entry.filename or ":" in name.parts[0][1:2]:
        raise bad_request("C102", f"entry {entry.filename!r} of the model archive reaches outside of it")
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
        raise bad_request("C102", f"entry {entry.filename!r} of the model archive is neither a file nor a directory")
    if entry.flag_bits & 0x1:
        raise bad_request("C102", f"entry {entry.filename!r} of the model archive is encrypted")


def _check_tree(entries: list[zipfile.ZipInfo]) -> None:
    """No name may be a file and a directory at once: unpacking would fail on the node, hours later."""
    files = {PurePosixPath(entry.filename.replace("\\", "/")) for entry in entries if not entry.is_dir()}
    for path in files:
        for parent in path.parents:
            if parent in files:
                raise bad_request("C102", f"{str(parent)!r} is a file of the model archive, and a directory ({path})")


def _no_room(error: OSError, platform: Platform) -> Refused:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return try_again(
            "S210", f"no space is left in {platform.root.path} for the model archive", cure="free space, or raise quota"
        )
    return try_again("S210", f"the model archive could not be kept in {platform.root.models}: {error.strerror}")
