"""The file of records, and the position file beside it.

Each batch is first written to the position file, with the size of the record file before it and the state of the source
after it. Then it is appended. So the next process can complete the append after a kill at any moment: no record is lost
or repeated, and what readers have seen never changes.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import stat
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ffdl_batch.attempt.file_writer import write_text
from ffdl_batch.attempt.reader import read_object
from ffdl_batch.collectors.source import State
from ffdl_batch.domain.metrics.records import MetricRecord, encode_record
from ffdl_batch.host.descriptors import write_all

_APPEND = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
TAIL_BYTES = 1 << 20
MOST_POSITION_BYTES = 256 * 1024**2
"""Maximum size of a position file, which has the records of one poll."""
FORMAT = 1


class Taken(Exception):
    """Another collector works on this file."""


class Ledger:
    """Made by :func:`open_ledger`. `state` is that of the last batch."""

    def __init__(self, descriptor: int, position: Path) -> None:
        self._descriptor = descriptor
        self._position = position
        self._batch = b""
        self._before = 0
        self.rindex = 0
        self.state: dict[str, Any] = {}

    def commit(self, records: Sequence[MetricRecord], state: State) -> None:
        """Append the records, numbered, and keep the state. Raises OSError; then :meth:`complete` does the rest."""
        if not records and state == self.state:
            return
        lines = [encode_record(replace(record, rindex=self.rindex + i)) for i, record in enumerate(records, 1)]
        self._before = os.fstat(self._descriptor).st_size
        self._batch = "".join(lines).encode("ascii")
        self.rindex += len(lines)
        self.state = dict(state)
        self.complete()

    def complete(self) -> None:
        """Write what the last commit could not write. Raises OSError."""
        self._write_position()
        self._append_rest()

    def size(self) -> int:
        """Return the size of the record file."""
        return os.fstat(self._descriptor).st_size

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)

    def recover(self) -> bool:
        """Continue from the position file. Return whether the record file has everything that it records."""
        try:
            body = read_object(str(self._position), MOST_POSITION_BYTES)
            self._before, self.rindex, self.state = int(body["before"]), int(body["rindex"]), dict(body["state"])
            self._batch = str(body["batch"]).encode("ascii")
        except FileNotFoundError:
            pass
        whole = os.fstat(self._descriptor).st_size >= self._before
        if not whole:
            self._before = self._cut_torn_line()
        self._append_rest()
        return whole

    def _append_rest(self) -> None:
        """Append what is missing of the batch."""
        write_all(self._descriptor, self._batch[max(0, os.fstat(self._descriptor).st_size - self._before) :])
        os.fsync(self._descriptor)

    def _cut_torn_line(self) -> int:
        size = os.fstat(self._descriptor).st_size
        tail = os.pread(self._descriptor, TAIL_BYTES, max(0, size - TAIL_BYTES))
        torn = len(tail) - (tail.rfind(b"\n") + 1)
        os.ftruncate(self._descriptor, size - torn)
        return size - torn

    def _write_position(self) -> None:
        body = {"format": FORMAT, "before": self._before, "rindex": self.rindex, "state": self.state}
        write_text(self._position, json.dumps({**body, "batch": self._batch.decode("ascii")}) + "\n")


def open_ledger(out: str) -> tuple[Ledger, bool]:
    """Return the ledger of the record file `out`, and whether it is complete. A missing file is created.

    Raises Taken, ValueError if the position file is invalid, and OSError.
    """
    Path(out).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(out, _APPEND, 0o666)  # it is stored beside the log
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a regular file", out)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            os.close(descriptor)
            raise Taken(out) from None
    ledger = Ledger(descriptor, Path(f"{out}.position"))
    try:
        return ledger, ledger.recover()
    except (OSError, ValueError, KeyError, TypeError) as error:
        ledger.close()
        if isinstance(error, OSError):
            raise
        raise ValueError(f"{out}.position is not a position file: {error!r}") from None
