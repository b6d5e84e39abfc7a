"""Unpack the submitted model.

Every name in the archive is checked before anything is written, because users make it.
"""

from __future__ import annotations

import errno
import os
import shutil

from ffdl_batch.attempt.directory_tree import Directories, remove_name
from ffdl_batch.attempt.file_writer import NEW
from ffdl_batch.attempt.model_archive import ArchiveError, Member, ModelArchive
from ffdl_batch.attempt.reader import DamagedFile, open_regular


class ModelRefused(Exception):
    """The archive cannot be unpacked; the message says why and what to do."""


def unpack(archive: str, target: str) -> int:
    """Unpack into `target`, and make every file executable for its owner. Return the number of files.

    FfDL's users run scripts from zip files without execute bits. Raises ModelRefused or OSError.
    """
    try:
        with open_regular(archive) as file:
            model = ModelArchive(file, f"the model archive {archive}")
            with Directories(target, 0o777) as tree:  # learners of an earlier run may write there
                for member in model.members:
                    _extract(model, member, tree)
            return sum(not member.is_directory for member in model.members)
    except (DamagedFile, ArchiveError) as error:
        raise ModelRefused(str(error)) from error


def _extract(model: ModelArchive, member: Member, tree: Directories) -> None:
    if member.is_directory:
        tree.enter(member.parts)
        return
    directory, name = tree.enter(member.parts[:-1]), member.parts[-1]
    try:
        remove_name(name, directory)
        descriptor = os.open(name, NEW, 0o600, dir_fd=directory)
    except OSError as error:
        error.filename = tree.path(*member.parts)
        raise
    with os.fdopen(descriptor, "wb") as file:
        for block in model.read(member):
            file.write(block)
        os.fchmod(file.fileno(), (member.mode or 0o644) | 0o700)


def copy_archive(archive: str, target: str) -> None:
    """Put the archive itself where FfDL's users look for it (``_submitted_code/model.zip``). Raises OSError."""
    place, name = os.path.split(target)
    root, folder = os.path.split(place)
    temporary = f"{name}.{os.urandom(4).hex()}.{os.getpid()}.tmp"
    with Directories(root, 0o777) as tree:
        directory = tree.enter((folder,))  # results are stored there as well
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
