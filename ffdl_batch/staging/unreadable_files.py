"""Local files and directories that cannot be read: the others go out, and the end of the task says which did not."""

from __future__ import annotations

import errno
import threading

from ffdl_batch.domain.data.staging_protocol import FaultClass
from ffdl_batch.domain.number_text import counted
from ffdl_batch.staging.faults import Fault, shown
from ffdl_batch.staging.reporter import Teller

NAMED = 3
_OF_ONE = (errno.EACCES, errno.EPERM, errno.EIO, errno.EBADMSG, errno.EUCLEAN, errno.ESTALE)
"""Errors that are a file's; with others this machine lacks something, and the next file would have the same."""


class Unread:
    """What of one task could not be read. Calls may come from several threads at once."""

    def __init__(self, teller: Teller) -> None:
        self._teller, self._lock = teller, threading.Lock()
        self._count, self._named = 0, list[str]()

    def add(self, name: str, error: OSError) -> None:
        """This one is told, and left out. Raises the error where it is not about this one."""
        if error.errno not in _OF_ONE:
            raise error
        what = f"{shown(name)}: {error.strerror or error}"
        with self._lock:
            self._count += 1
            self._named = [*self._named, what][:NAMED]
        self._teller.skip(f"{shown(name)} cannot be read: {error.strerror or error}")

    def require_none(self) -> None:
        """Raises Fault where there was one."""
        if not self._count:
            return
        more = self._count - len(self._named)
        names = "; ".join(self._named) + (f"; and {more} more" if more else "")
        were = "was" if self._count == 1 else "were"
        what = f"{counted(self._count, 'file or directory', 'files or directories')} {were} not read ({names})"
        raise Fault(FaultClass.REFUSED, f"{what}; all others are stored", cure="make them readable, or leave them out")
