"""Find out on which file system a directory is, and why it cannot be written.

SQLite's write-ahead log needs memory that all its users share (sqlite.org/wal.html). Network file systems do not have
it, and caches of NFS or Lustre clients may differ. So only types that are known to be local count as local: for an
unknown type SQLite is slower, but a wrong guess could damage the database.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
from collections.abc import Sequence
from pathlib import Path

LOCAL_TYPES = frozenset(
    {"bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "fuseblk", "jfs", "overlay", "ramfs", "reiserfs", "rootfs"}
    | {"tmpfs", "ufs", "xfs", "zfs"}
)
_MOUNTINFO = Path("/proc/self/mountinfo")
_OCTAL = re.compile(r"\\([0-7]{3})")


def is_network(directory: Path) -> bool:
    """Return whether `directory` is on a file system that is not known to be local (nfs, lustre, gpfs, beegfs, ceph,
    cifs, fuse.*, 9p, ...), or whose type cannot be read."""
    real = os.path.realpath(directory)
    try:
        Path(real).stat()  # an automounter mounts now, before the table is read
        table = _MOUNTINFO.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return True
    return filesystem_type(table, real) not in LOCAL_TYPES


def is_read_only(directory: Path) -> bool:
    """Return whether the file system of `directory` is mounted read-only. Raises OSError."""
    return bool(os.statvfs(directory).f_flag & os.ST_RDONLY)


def why_unwritable(file: Path) -> OSError | None:
    """Return why `file`, or a file beside it, cannot be written; None if both can.

    SQLite has one error for many causes. The file itself is not opened, because closing it would release the locks that
    SQLite holds in this process.
    """
    # The janitor removes files with such a name: a process was killed while it wrote them.
    hidden = file.with_name(f".{file.name}.{secrets.token_hex(4)}")
    try:
        descriptor = os.open(hidden, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.write(descriptor, b"\0" * 4096)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
            hidden.unlink(missing_ok=True)
        file.stat()
    except OSError as error:
        return error
    if not os.access(file, os.W_OK, effective_ids=True):
        return PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(file))
    return None


def filesystem_type(mountinfo: str, path: str) -> str:
    """Return the type of the file system that has the absolute `path`; "" if the table names none."""
    return _mount(mountinfo, path)[0]


def needs_ticket(directory: Path) -> str:
    """Return what `directory` is on if access to it needs a Kerberos ticket, as ``NFS with Kerberos``; else "".

    The option `sec` of NFS is described in nfs(5); AFS has the type `afs`.
    """
    real = os.path.realpath(directory)
    kind, options = _mount(_MOUNTINFO.read_text(encoding="utf-8", errors="surrogateescape"), real)
    if kind == "afs":
        return "AFS"
    is_kerberos = any(option.startswith("sec=krb5") for option in options)
    return "NFS with Kerberos" if kind.startswith("nfs") and is_kerberos else ""


def _mount(mountinfo: str, path: str) -> tuple[str, Sequence[str]]:
    """Return the type and the options of the file system that has the absolute `path`; empty if the table names none.

    `mountinfo` is the text of /proc/self/mountinfo (proc(5)): field 5 is the mount point; type, source and options
    follow the separator ` - `. Of nested mounts, the deepest is used, and of stacked mounts, the last.
    """
    found, depth = ["", "", ""], -1
    for line in mountinfo.splitlines():
        left, separator, right = line.partition(" - ")
        fields = left.split(" ")
        if not separator or len(fields) < 5:
            continue
        point = mount_point(fields[4])
        if _holds(point, path) and len(point) >= depth:
            found, depth = right.split(" "), len(point)
    return found[0], found[-1].split(",")


def find_mount_below(directory: str) -> str:
    """Return a mount point of this host in the directory `directory` or below it; "" if there is none."""
    real = os.path.realpath(directory)
    for line in _MOUNTINFO.read_text(encoding="utf-8", errors="surrogateescape").splitlines():
        fields = line.split(" ")
        if len(fields) >= 5 and _holds(real, point := mount_point(fields[4])):
            return point
    return ""


def mount_point(field: str) -> str:
    """Return the path in a field of mountinfo, where blanks are octal escapes."""
    return _OCTAL.sub(lambda match: chr(int(match[1], 8)), field)


def _holds(point: str, path: str) -> bool:
    return path == point or path.startswith(point.rstrip("/") + "/")
