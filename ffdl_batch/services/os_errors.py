"""Explains errors of a file system or of this machine that may pass, with their cure."""

from __future__ import annotations

import errno
from pathlib import Path

from ffdl_batch.attempt.layout import Root
from ffdl_batch.host.fast_dataclass import dataclass

AWAY = frozenset(
    {errno.EIO, errno.ESTALE, errno.ENOTCONN, errno.ESHUTDOWN, errno.ECONNABORTED, errno.ECONNREFUSED, errno.ETIMEDOUT}
    | {errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENETDOWN, errno.ENETUNREACH, errno.ENODEV, errno.EREMOTEIO}
)
"""Errors that clients of file servers report while the server or the network is down (NFS, Lustre, FUSE)."""
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_GOES_ON = "what was accepted continues by itself"


@dataclass(frozen=True, slots=True)
class SystemRefusal:
    """A refusal that the request did not cause, and its cure."""

    message: str
    cure: str

    def __str__(self) -> str:
        return f"{self.message}: {self.cure}"


def explain(error: OSError, place: str) -> SystemRefusal | None:
    """Explain `error`, which occurred in or below the directory `place` ("": unknown). Return None if it will not pass.

    A tree without its `doorbell` is not mounted, so all files below it are missing. If the doorbell itself was missing,
    the tree was not mounted, even if it is mounted again now.
    """
    where, doorbell = str(error.filename or place), Root(place).doorbell
    if error.errno == errno.ENOENT and place and (where == doorbell or not Path(doorbell).is_dir()):
        return SystemRefusal(f"{place} is not there", f"look whether its file system is mounted; {_GOES_ON}")
    if error.errno in _FULL:
        return SystemRefusal(f"no space is left in {place}", f"free space there, or raise the quota; {_GOES_ON}")
    if error.errno == errno.EROFS:
        return SystemRefusal(f"{where} is read-only", f"have its file system mounted for writing again; {_GOES_ON}")
    if error.errno in AWAY:
        what = f"the file system of {where} does not answer as it should ({error.strerror})"
        return SystemRefusal(what, f"look after the file server and its mount; {_GOES_ON}")
    if error.errno == errno.EMFILE:
        what = "the daemon has as many files and connections open as it may"
        return SystemRefusal(what, f"end some of its clients, or raise its limit (ulimit -n, LimitNOFILE=); {_GOES_ON}")
    if error.errno == errno.ENFILE:
        return SystemRefusal("this machine has as many files open as it may", f"raise fs.file-max (sysctl); {_GOES_ON}")
    if error.errno in (errno.ENOMEM, errno.EAGAIN):
        what = "this machine has no memory or no process left for it, or the daemon may have no more"
        cure = f"end something here, or ffdl daemon restart in a shell with higher limits (ulimit -u, -v); {_GOES_ON}"
        return SystemRefusal(what, cure)
    return None
