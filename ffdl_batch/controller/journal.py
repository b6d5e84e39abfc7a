"""One writer's event file: append, fsync, ring the doorbell; never lose an event to a full disk.

An event that cannot be written stays in memory and is tried again with the next one and in :meth:`Journal.close`.
Before the first learner runs the journal puts a small ballast file beside its own, and gives it up when the disk is
full: the last words of a job whose learner filled the disk fit into the space that it held.
"""

from __future__ import annotations

import os
import sys
import time
from typing import List

from ffdl_batch.controller.files import NO_SPACE, touch
from ffdl_batch.domain.events import Event, EventKind, Scalar, decode_events, encode_event

BALLAST_BYTES = 64 * 1024
CLOSE_RETRY_S = 20.0


class Journal:
    """Appends events of `source`; the sequence number continues after the last whole line of an earlier run."""

    def __init__(self, path: str, source: str, bell: str = "") -> None:
        self.path, self.source, self.bell = path, source, bell
        self._pending: List[str] = []
        self._complained = False
        self.earlier = self._recover()
        self._seq = self.earlier[-1].seq if self.earlier else 0

    def _recover(self) -> List[Event]:
        """The whole events of earlier runs; a torn last line is cut off."""
        try:
            with open(self.path, "rb") as file:
                content = file.read()
        except FileNotFoundError:
            return []
        whole = content[: content.rfind(b"\n") + 1]
        if len(whole) < len(content):
            os.truncate(self.path, len(whole))
        return decode_events(whole.decode("utf-8", "replace"))

    def load_ballast(self) -> None:
        """Hold some space back for the last events."""
        try:
            with open(self.path + ".ballast", "wb") as file:
                file.write(b"\0" * BALLAST_BYTES)
        except OSError as error:
            self._complain(error)

    def append(self, kind: EventKind, **fields: Scalar) -> None:
        """Write one event now, or keep it until it can be written. Never raises OSError."""
        self._seq += 1
        self._pending.append(encode_event(Event(self._seq, time.time(), self.source, kind, fields)))
        self.flush()

    def flush(self) -> bool:
        """Try to write what is waiting; True when nothing waits any more."""
        for _ in range(2):
            try:
                self._write()
                return True
            except OSError as error:
                self._complain(error)
                if error.errno not in NO_SPACE or not self.drop_ballast():
                    return False
        return False

    def close(self) -> bool:
        """Write what is waiting, for up to CLOSE_RETRY_S seconds; what cannot be written goes to standard error."""
        end = time.monotonic() + CLOSE_RETRY_S
        while not self.flush():
            if time.monotonic() > end:
                sys.stderr.write("ffdl-controller: these events could not be written:\n" + "".join(self._pending))
                return False
            time.sleep(0.5)
        self.drop_ballast()
        return True

    def _write(self) -> None:
        if not self._pending:
            return
        data = "".join(self._pending).encode("utf-8")
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            before = os.fstat(descriptor).st_size
            try:
                written = os.write(descriptor, data)
                if written < len(data):
                    os.write(descriptor, data[written:])
                os.fsync(descriptor)
            except OSError:
                os.ftruncate(descriptor, before)
                raise
        finally:
            os.close(descriptor)
        self._pending.clear()
        self._complained = False
        self.ring()

    def ring(self) -> None:
        """Tell the watcher that there is news; a doorbell that cannot be rung only makes it learn later."""
        if self.bell:
            try:
                touch(self.bell)
            except OSError as error:
                self._complain(error)

    def drop_ballast(self) -> bool:
        """Give up the space held back; False where that was done before."""
        try:
            os.unlink(self.path + ".ballast")
        except OSError:  # there is none (any more): nothing is gained by dropping it
            return False
        return True

    def _complain(self, error: OSError) -> None:
        if not self._complained:
            self._complained = True
            sys.stderr.write(f"ffdl-controller: {self.path}: {error}; will be tried again\n")
