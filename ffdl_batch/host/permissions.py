"""Read the umask and groups with which this process creates and opens files.

Standard library, Python 3.9: nodes run this module, too.
"""

from __future__ import annotations

import grp
import os
import pwd
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Iterator, List, Optional

PRIVATE_UMASK = 0o077
"""The umask of the platform's own processes: other users cannot read job directories, state and secrets."""
MAX_UMASK = 0o777
MAX_GID = 2**32 - 2
"""gid_t has 32 bits, and its last value means "none" (chown(2))."""


def read_umask() -> int:
    """Return this process's umask without changing it, which umask(2) cannot: other threads create files.

    From the line ``Umask`` of proc_pid_status(5), Linux 4.7.
    """
    with open("/proc/self/status", encoding="utf-8", errors="replace") as file:
        for line in file:
            if line.startswith("Umask:"):
                return int(line.split()[1], 8)
    return PRIVATE_UMASK


@contextmanager
def umask_set(umask: int) -> Iterator[None]:
    """Create files with this umask until the end of the block. It is that of all threads of the process."""
    before = os.umask(umask)
    try:
        yield
    finally:
        os.umask(before)


def is_default_mode(mode: int, umask: int, *, directory: bool = False) -> bool:
    """Return whether a file has the mode that programs give to new files, so that no program has chosen it."""
    return mode & 0o777 == creation_mode(mode, directory=directory) & ~umask


def creation_mode(mode: int, *, directory: bool = False) -> int:
    """Return the mode with which programs create such a file, before the umask or a default ACL removes bits."""
    return 0o777 if directory or mode & 0o111 else 0o666


def groups_of_process() -> List[int]:
    """Return the groups by which the kernel lets this process open files."""
    return [os.getegid(), *os.getgroups()]


def groups_of_user() -> List[int]:
    """Return the groups that the group database gives to this user now; none for a user without an entry.

    A process has the groups that its user had at login (initgroups(3)): it does not get those that are added later.
    """
    try:
        user = pwd.getpwuid(os.geteuid())
    except KeyError:
        return []
    return os.getgrouplist(user.pw_name, user.pw_gid)


def groups_since_start() -> List[str]:
    """Return the names of the user's groups that this process lacks, because it is older than the membership."""
    return sorted(group_name(gid) for gid in {*groups_of_user()} - {*groups_of_process()})


def group_name(gid: int) -> str:
    """Return the group's name; its number if it has none."""
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


@dataclass(frozen=True)
class OldGroups:
    """Why this process may lack access to a path that its user has, and what the user can do."""

    why: str
    cure: str

    def __str__(self) -> str:
        return f"{self.why}; {self.cure}"


def find_old_groups() -> Optional[OldGroups]:
    """Return why this process lacks groups of its user; None if it lacks none.

    A daemon has the groups of the shell that started it, and a job of the local backend has those of its daemon.
    """
    names = groups_since_start()
    if not names:
        return None
    named = ", ".join(f"'{name}'" for name in names)
    groups = f"group{'s' if len(names) > 1 else ''} {named}"
    why = f"ffdl's daemon was started before you became a member of the {groups}"
    return OldGroups(why, "log in again and run: ffdl daemon restart")


def with_old_groups(message: str, error: Optional[Exception]) -> str:
    """Return the message of an error, with the reason if this process may lack a group that is needed."""
    old = find_old_groups() if isinstance(error, PermissionError) else None
    return f"{message}; {old}" if old is not None else message
