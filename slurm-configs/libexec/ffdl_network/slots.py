"""Assigns slots to jobs. The slots are the paths that Apptainer may join.

A claim is a symbolic link `<run>/slots/<k>` to the job's directory. It is made atomically, and names the job that must
release the slot. It is made before anything else and removed after everything else.
"""

from __future__ import annotations

import errno
import os
import re
import struct
from pathlib import Path

from .commands import Trouble
from .settings import Settings

_ACL = "system.posix_acl_access"
# <linux/posix_acl.h>, <linux/posix_acl_xattr.h>
_VERSION, _NOBODY = 2, 0xFFFFFFFF
_OWNER, _USER, _GROUP, _MASK, _OTHER = 0x01, 0x02, 0x04, 0x10, 0x20
_SEARCH, _ALL = 1, 7


def claim(settings: Settings, job_id: int) -> int:
    """Claim a free slot for the job and return it. Concurrent prologs get different slots."""
    claims = settings.run / "slots"
    claims.mkdir(mode=0o755, parents=True, exist_ok=True)
    for number in range(1, settings.slots + 1):
        try:
            (claims / str(number)).symlink_to(f"../job-{job_id}")
        except FileExistsError:
            continue
        return number
    raise Trouble(
        f"all {settings.slots} slots of this node are taken: set NETWORK_SLOTS in values.env to the most jobs on a "
        f"node, and list the new ones in {settings.apptainer_conf}"
    )


def claims(settings: Settings) -> dict[int, int]:
    """Return the job of each claimed slot, including slots above the site's present number."""
    found: dict[int, int] = {}
    directory = settings.run / "slots"
    for link in directory.iterdir() if directory.is_dir() else ():
        try:
            job = re.fullmatch(r"\.\./job-([0-9]+)", str(link.readlink()))
        except FileNotFoundError:  # another process has just released it
            continue
        if link.name.isdigit() and job:
            found[int(link.name)] = int(job.group(1))
    return found


def give_back(settings: Settings, number: int) -> None:
    """Release a slot."""
    (settings.run / "slots" / str(number)).unlink(missing_ok=True)


def prepare(settings: Settings, number: int) -> None:
    """Make the slot's directory, which only root may enter, and the file on which the namespace is mounted."""
    directory = settings.slot(number)
    directory.mkdir(mode=0o700)
    directory.chmod(0o700)
    settings.namespace(number).touch(mode=0o444)


def admit(directory: Path, uid: int) -> None:
    """Let one user search a directory, by an ACL, because users may share their groups.

    This writes the kernel's format, because not every node has setfacl.
    """
    entries = (
        (_OWNER, _ALL, _NOBODY),
        (_USER, _SEARCH, uid),
        (_GROUP, 0, _NOBODY),
        (_MASK, _SEARCH, _NOBODY),
        (_OTHER, 0, _NOBODY),
    )
    value = struct.pack("<I", _VERSION) + b"".join(struct.pack("<HHI", *entry) for entry in entries)
    try:
        os.setxattr(directory, _ACL, value)
    except OSError as error:
        if error.errno != errno.EOPNOTSUPP:
            raise
        raise Trouble(
            f"the file system of {directory} has no ACLs: FFDL_RUN of values.env must lie on one that has (tmpfs has)"
        ) from error


def shut(directory: Path) -> None:
    """Let only root enter a directory."""
    try:
        os.removexattr(directory, _ACL)
    except OSError as error:
        if error.errno not in (errno.ENODATA, errno.EOPNOTSUPP):
            raise
    directory.chmod(0o700)
