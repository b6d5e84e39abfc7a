"""Which kind of file system a directory lies on, and what it refuses: SQLite's fast mode is right on a local one only.

SQLite's write-ahead log needs memory shared by all its users, which no network file system gives
(sqlite.org/wal.html), and caches of NFS or Lustre clients may differ. Only types that are known to be local
count as local: an unknown type costs some speed, a wrong guess could cost the database.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
from pathlib import Path

LOCAL_TYPES = frozenset(
    {"bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "fuseblk", "jfs", "overlay", "ramfs", "reiserfs", "rootfs"}
    | {"tmpfs", "ufs", "xfs", "zfs"}
)
_MOUNTINFO = Path("/proc/self/mountinfo")
_OCTAL = re.compile(r"\\([0-7]{3})")


def is_network(directory: Path) -> bool:
    """Whether `directory` lies on a network file system (nfs, lustre, gpfs, beegfs, ceph, cifs, fuse.*, 9p, ...)
    or on one that is not known to be local; also where the machine does not say."""
    real = os.path.realpath(directory)
    try:
        Path(real).stat()  # an automounter mounts now, before the table is read
        table = _MOUNTINFO.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return True
    return filesystem_type(table, real) not in LOCAL_TYPES


def is_read_only(directory: Path) -> bool:
    """Whether the file system that holds `directory` is mounted for reading alone. Raises OSError."""
    return bool(os.statvfs(directory).f_flag & os.ST_RDONLY)


def why_unwritable(file: Path) -> OSError | None:
    """What the file system says to a block beside `file`, or to writing `file`; None where it takes them.

    SQLite has one error for many refusals. The file itself is not opened: closing it would end the locks that SQLite
    holds in this process.
    """
    # The janitor knows this form of name for something that was being written when somebody was killed.
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
    """The type of the file system that holds the absolute `path`, "" if the table names none.

    `mountinfo` is the text of /proc/self/mountinfo (proc(5)): the mount point is field 5, the type comes after
    the separating ` - `; blanks in names are octal. Of nested mounts the deepest counts, of stacked ones the last.
    """
    found, depth = "", -1
    for line in mountinfo.splitlines():
        left, separator, right = line.partition(" - ")
        fields = left.split(" ")
        if not separator or len(fields) < 5:
            continue
        point = _OCTAL.sub(lambda match: chr(int(match[1], 8)), fields[4])
        if _holds(point, path) and len(point) >= depth:
            found, depth = right.split(" ")[0], len(point)
    return found


def _holds(point: str, path: str) -> bool:
    return path == point or path.startswith(point.rstrip("/") + "/")
