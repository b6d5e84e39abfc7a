"""Read the umask and groups with which this process creates and opens files, and explain denied access.

Standard library, Python 3.9: nodes run this module, too.
"""

from __future__ import annotations

import errno
import grp
import os
import pwd
import shlex
import stat
from contextlib import contextmanager
from pathlib import PurePath
from typing import Iterator, List, Optional, Sequence

from ffdl_batch.host.fast_dataclass import dataclass

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


def user_name(uid: int) -> str:
    """Return the user's name; its number if it has none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def group_name(gid: int) -> str:
    """Return the group's name; its number if it has none."""
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


@dataclass(frozen=True)
class Denial:
    """Why this process may not use a path, and what the user can do."""

    why: str
    cure: str

    def __str__(self) -> str:
        return f"{self.why}; {self.cure}"


def find_old_groups() -> Optional[Denial]:
    """Return why this process lacks groups of its user; None if it lacks none.

    A daemon has the groups of the shell that started it, and a job of the local backend has those of its daemon.
    """
    names = groups_since_start()
    return _old_groups(names) if names else None


def _old_groups(names: Sequence[str]) -> Denial:
    named = ", ".join(f"'{name}'" for name in names)
    groups = f"group{'s' if len(names) > 1 else ''} {named}"
    why = f"ffdl's daemon was started before you became a member of the {groups}"
    return Denial(why, "log in again and run: ffdl daemon restart")


def explain_denial(path: str, wanted: int = 0) -> Optional[Denial]:
    """Return which file or directory on an absolute path denies this process the access, and why. Return None if
    permissions do not explain it.

    `wanted` is what access(2) takes. With 0 the access is not known: the path is checked for reading, for writing and
    for being replaced.
    """
    place = os.path.realpath(path)
    checks = [(str(above), os.X_OK) for above in reversed(PurePath(place).parents)]
    checks += [(place, wanted)] if wanted else [(place, os.R_OK), (place, os.W_OK), (os.path.dirname(place), os.W_OK)]
    for name, access in checks:
        try:
            found = os.stat(name)
        except FileNotFoundError:
            continue
        except OSError:
            return None
        needed = access | os.X_OK if stat.S_ISDIR(found.st_mode) else access
        if not os.access(name, needed, effective_ids=os.access in os.supports_effective_ids):
            return _denial(name, found, needed)
    return None


def _denial(name: str, found: os.stat_result, needed: int) -> Optional[Denial]:
    mode, printable = stat.S_IMODE(found.st_mode), name if name.isprintable() else ascii(name)[1:-1]
    if found.st_uid == os.geteuid():
        if mode >> 6 & needed == needed:
            return None
        bits = "rwx" if stat.S_ISDIR(found.st_mode) else "rw" if needed & os.W_OK else "r"
        return Denial(f"you own {printable}, and it has mode {mode:04o}", f"chmod u+{bits} {shlex.quote(printable)}")
    joined = {*groups_of_user()} - {*groups_of_process()}
    if found.st_gid in joined and mode >> 3 & needed == needed:
        return _old_groups([group_name(found.st_gid)])
    owner = f"user '{user_name(found.st_uid)}' and group '{group_name(found.st_gid)}'"
    why = f"{printable} belongs to {owner}, and has mode {mode:04o}"
    return Denial(why, "ask its owner for access, or use another path")


def with_denial(message: str, error: Optional[Exception]) -> str:
    """Return the message of an error. If a file or directory on the error's path denied the access, the message says
    which one, why, and what to do."""
    if not isinstance(error, PermissionError) or error.errno != errno.EACCES:
        return message
    for path in (error.filename, error.filename2):
        if isinstance(path, str) and os.path.isabs(path):
            denial = explain_denial(path)
            if denial is not None:
                return f"{message}; {denial}"
    return message
