"""Unpacks the submitted model. The archive is a user's: every name in it is checked before a byte is written."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import zipfile
from typing import List

from ffdl_batch.attempt.reader import DamagedFile, open_regular
from ffdl_batch.attempt.writer import NEW
from ffdl_batch.controller.machine.directories import Directories, remove_name

MAX_BYTES = 64 * 1024**3
MAX_FILES = 200_000
MAX_RATIO = 2000
"""Unpacked to packed size beyond which an archive is taken for a bomb (deflate reaches 1032 at most)."""


class ModelRefused(Exception):
    """The archive cannot be unpacked; the message says why and what to do."""


def unpack(archive: str, target: str) -> int:
    """Unpack into `target`, every file executable for its owner; the number of files.

    FfDL's users run scripts from zips that keep no execute bits. Raises ModelRefused or OSError.
    """
    try:
        with open_regular(archive) as file, zipfile.ZipFile(file) as opened:
            members = opened.infolist()
            _check(members, os.fstat(file.fileno()).st_size)
            with Directories(target, 0o777) as tree:  # learners of an earlier run may be at work there
                for member in members:
                    _extract(opened, member, tree)
            return sum(not member.is_dir() for member in members)
    except DamagedFile as error:
        raise ModelRefused(str(error)) from error
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError) as error:
        raise ModelRefused(f"{archive} is no readable zip archive ({error}); zip the model again") from error


def _check(members: List[zipfile.ZipInfo], packed: int) -> None:
    total = sum(member.file_size for member in members)
    if len(members) > MAX_FILES or total > MAX_BYTES or total > max(packed, 1024) * MAX_RATIO:
        raise ModelRefused(
            f"the model unpacks {packed} bytes to {total} bytes in {len(members)} files, which looks like a zip bomb;"
            " put data into a data store and only code into the model"
        )
    for member in members:
        name = member.filename
        parts = name.replace("\\", "/").split("/")
        if name.startswith(("/", "\\")) or ".." in parts or (len(parts[0]) == 2 and parts[0][1] == ":"):
            raise ModelRefused(f"the model holds {name!r}, which leads out of its directory; zip it again without")
        kind = stat.S_IFMT(member.external_attr >> 16)
        if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
            raise ModelRefused(f"the model holds {name!r}, which is a link or a device; zip plain files only")


def _extract(opened: zipfile.ZipFile, member: zipfile.ZipInfo, tree: Directories) -> None:
    parts = tuple(part for part in member.filename.split("/") if part not in ("", "."))
    if member.is_dir() or not parts:
        tree.enter(parts)
        return
    directory, name = tree.enter(parts[:-1]), parts[-1]
    try:
        remove_name(name, directory)
        descriptor = os.open(name, NEW, 0o600, dir_fd=directory)
    except OSError as error:
        error.filename = tree.path(*parts)
        raise
    with opened.open(member) as source, os.fdopen(descriptor, "wb") as file:
        written = 0
        for chunk in iter(lambda: source.read(1024 * 1024), b""):
            written += len(chunk)
            if written > member.file_size:
                raise ModelRefused(f"{member.filename!r} is larger than the archive says; zip the model again")
            file.write(chunk)
        mode = (member.external_attr >> 16) & 0o777
        os.fchmod(file.fileno(), (mode or 0o644) | 0o700)


def copy_archive(archive: str, target: str) -> None:
    """Put the archive itself where FfDL's users look for it (``_submitted_code/model.zip``). Raises OSError."""
    place, name = os.path.split(target)
    root, folder = os.path.split(place)
    temporary = f"{name}.{os.urandom(4).hex()}.{os.getpid()}.tmp"
    with Directories(root, 0o777) as tree:
        directory = tree.enter((folder,))  # results are stored there, too
        try:
            descriptor = os.open(temporary, NEW, 0o666, dir_fd=directory)
            with open_regular(archive) as source, os.fdopen(descriptor, "wb") as file:
                shutil.copyfileobj(source, file, 1024 * 1024)
            os.replace(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
        except DamagedFile as error:
            remove_name(temporary, directory)
            raise OSError(errno.EINVAL, error.why, archive) from error
        except OSError as error:
            error.filename = error.filename if error.filename == archive else target
            remove_name(temporary, directory)
            raise
