"""Reads the node's mount table, and unmounts the data stores that an ended job left mounted.

Users choose the paths of FUSE mounts, and can rename directories and create links at any time. So root never resolves
such a path. A child process with the rights of the job's user opens the mount point. Root checks the mount id of the
descriptor, and unmounts through the descriptor.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pwd
import re
import signal
import socket
import time
from pathlib import Path
from typing import Mapping, NamedTuple, Sequence

TABLE = "/proc/self/mountinfo"
KIND = "fuse.rclone"
OPEN_S, WHOLE_S = 5.0, 20.0
"""Time limits for opening one mount point, and for the whole program."""
_ESCAPE = re.compile(r"\\([0-3][0-7]{2})")
_NUMBER = re.compile(r"[0-9]{1,10}")
_MNT_DETACH = 2  # <sys/mount.h>
_NOBODY = 65534


class Mount(NamedTuple):
    """One line of mountinfo (proc_pid_mountinfo(5)). `options` has the options of the file system."""

    mount_id: int
    place: str
    kind: str
    source: str
    options: Sequence[str]
    writable: bool


def table(path: str = TABLE) -> list[Mount]:
    """Return all mounts, each before the mounts below it. Raises OSError.

    The kernel escapes only blank, tab, newline and backslash. A path may have a carriage return, or bytes that are not
    UTF-8.
    """
    return [_mount(line) for line in os.fsdecode(Path(path).read_bytes()).split("\n") if line]


def _mount(line: str) -> Mount:
    place, _, file_system = line.partition(" - ")
    fields, (kind, source, options) = place.split(" "), file_system.split(" ", 2)
    writable = "rw" in fields[5].split(",") and "rw" in options.split(",")
    return Mount(int(fields[0]), _plain(fields[4]), _plain(kind), _plain(source), options.split(","), writable)


def _plain(field: str) -> str:
    return _ESCAPE.sub(lambda found: chr(int(found[1], 8)), field)


def main(environment: Mapping[str, str]) -> int:
    """Unmount the data stores of job SLURM_JOB_ID of user SLURM_JOB_UID. If mounts remain, print one and return 1."""
    job, user = environment.get("SLURM_JOB_ID", ""), environment.get("SLURM_JOB_UID", "")
    if not (_NUMBER.fullmatch(job) and _NUMBER.fullmatch(user)):
        print(f"SLURM_JOB_ID is {job!r} and SLURM_JOB_UID is {user!r}: both must be numbers; run this as an epilog")
        return 1
    deadline = time.monotonic() + WHOLE_S
    for mount in reversed(_mounts_of(job, user)):
        _unmount(mount, job, user, min(OPEN_S, deadline - time.monotonic()))
    left = _mounts_of(job, user)
    if left:
        print(f"{len(left)} mounts of data stores remain, the last one at {left[-1].place!r}")
    return 1 if left else 0


def _mounts_of(job: str, user: str) -> list[Mount]:
    """Return the job's mounts of data stores.

    Any user can choose the source. No user can choose the option user_id: the kernel accepts it only from root, and
    fusermount sets it to its caller (Linux, Documentation/filesystems/fuse.rst).
    """
    return [
        one
        for one in table()
        if one.kind == KIND
        and one.source.startswith(f"ffdl-batch:{job}:")
        and [option for option in one.options if option.startswith("user_id=")] == [f"user_id={user}"]
    ]


def _unmount(mount: Mount, job: str, user: str, limit_s: float) -> None:
    """Unmount the mount, unless another mount has replaced it.

    While the descriptor is open, no other mount can get the same id. umount2(2) resolves /proc/self/fd/N to exactly
    this mount. With UMOUNT_NOFOLLOW it would refuse that name. The user cannot change any part of this path.
    """
    descriptor = _opened(mount.place, int(user), limit_s) if limit_s > 0 else None
    if descriptor is None:
        return
    try:
        info = Path(f"/proc/self/fdinfo/{descriptor}").read_text(encoding="ascii")
        mount_id = int(info.partition("mnt_id:")[2].split()[0])
        if mount_id == mount.mount_id and mount_id in {one.mount_id for one in _mounts_of(job, user)}:
            ctypes.CDLL(None).umount2(f"/proc/self/fd/{descriptor}".encode(), _MNT_DETACH)
    finally:
        os.close(descriptor)


def _opened(place: str, uid: int, limit_s: float) -> int | None:
    """Open a mount point with the rights of its user. Return None if that fails or takes longer than `limit_s`.

    If a file system in the path never answers, the child cannot be killed and is left behind.
    """
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(BaseException):
            _send_opened(theirs, place, uid)
        os._exit(0)
    theirs.close()
    with ours:
        ours.settimeout(limit_s)
        try:
            descriptors = socket.recv_fds(ours, 1, 1)[1]
        except OSError:
            descriptors = []
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, os.WNOHANG)
    return descriptors[0] if descriptors else None


def _send_opened(to: socket.socket, place: str, uid: int) -> None:
    """Drop root's rights, open the mount point and send the descriptor. Runs in the child.

    The child also closes its output, because the hook reads it to its end and the child may never end.
    """
    nowhere = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nowhere, standard)
    try:
        user = pwd.getpwuid(uid)
        group, groups = user.pw_gid, os.getgrouplist(user.pw_name, user.pw_gid)
    except KeyError:
        group, groups = _NOBODY, []
    os.setgroups(groups)
    os.setgid(group)
    os.setuid(uid)
    socket.send_fds(to, [b"."], [os.open(os.fsencode(place), os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)])
