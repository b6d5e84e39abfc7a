"""Append events to one writer's file durably, and ring the doorbell, without losing an event to a full disk or a
server.

An event that cannot be written stays in memory. It is tried again with the next event, in :meth:`Journal.flush` and in
:meth:`Journal.close`. Once learners run, a thread writes, so a file system that hangs delays only the events. Before
the first learner runs, the journal creates a small ballast file. It is removed when the disk is full, so that the last
events of a job whose learner filled the disk have space.

A learner runs as the same user and can change the file. The journal then writes all its events again, so that events
which another process appended count for no reader that looks later.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import Callable, List

from ffdl_batch.attempt.file_writer import NO_SPACE, open_own, restore_directory, touch, write_text
from ffdl_batch.attempt.reader import MAX_EVENT_BYTES, NO_FILE, find_text, read_head, size_of
from ffdl_batch.domain.file_format import NewerFormat
from ffdl_batch.domain.outcome.controller_events import Event, EventKind, Scalar, decode_events, encode_event
from ffdl_batch.host.worker_thread import WorkerThread

BALLAST_BYTES = 64 * 1024
PATIENCE_S = 120.0
"""Seconds that :meth:`Journal.close` tries by default."""
HANDOVER_S = 1.0
"""Seconds that :meth:`Journal.append` waits until the event is written."""
AGAIN_S = 0.5
CHECK_S = 2.0
"""Minimum seconds between two checks of :meth:`Journal.flush` whether another process changed the file."""


class Journal:
    """Appends events of `source`. Sequence numbers continue after the last complete line of an earlier run.

    `events` has those of earlier runs and of this one, also those that are not written yet.
    """

    def __init__(
        self,
        path: str,
        source: str,
        bell: str = "",
        patience_s: float = PATIENCE_S,
        superseded: Callable[[], bool] = lambda: False,
    ) -> None:
        """`superseded` returns whether a newer run may write to the file. Its events are not removed."""
        self.path, self.source, self.bell, self.patience_s = path, source, bell, patience_s
        self._superseded = superseded
        self._size = 0
        """Size of the file after the last write of this journal."""
        self._checked_at = time.monotonic()
        self._pending: List[str] = []
        self._adding = threading.Lock()
        self._worker = WorkerThread("journal")
        self._complained = self._reported_change = False
        self.earlier = self._recover()
        self.events = list(self.earlier)
        self._seq = self.earlier[-1].seq if self.earlier else 0

    def _recover(self) -> List[Event]:
        """Return the complete events of earlier runs, and cut off a torn last line."""
        try:
            content = read_head(self.path, MAX_EVENT_BYTES)
        except NO_FILE:
            return []
        whole = content[: content.rfind(b"\n") + 1]
        if len(whole) < len(content) < MAX_EVENT_BYTES:
            descriptor = open_own(self.path, os.O_WRONLY)
            try:
                os.ftruncate(descriptor, len(whole))
            finally:
                os.close(descriptor)
        self._size = len(whole)
        return decode_events(whole.decode("utf-8", "replace"))

    def load_ballast(self) -> None:
        """Reserve space for the last events."""
        try:
            with os.fdopen(open_own(self.path + ".ballast", os.O_WRONLY | os.O_TRUNC), "wb") as file:
                file.write(b"\0" * BALLAST_BYTES)
        except OSError as error:
            self._complain(error)

    def begin(self) -> None:
        """Write in a thread from now on. Call this after the learners were started, which are forked."""
        self._worker.begin()

    def append(self, kind: EventKind, **fields: Scalar) -> None:
        """Write an event within HANDOVER_S seconds, or keep it until it can be written. Never raises OSError."""
        with self._adding:
            self._seq += 1
            event = Event(self._seq, time.time(), self.source, kind, fields)
            self.events.append(event)
            self._pending.append(encode_event(event))
        self._worker.ask(self._try_to_write, False, HANDOVER_S)

    def flush(self) -> bool:
        """Try to write waiting events, without waiting for the result. Return whether none is waiting.

        Every CHECK_S seconds, also restore the file if another process changed it.
        """
        now = time.monotonic()
        if self._worker.is_behind:
            return not self._pending
        if self._pending or now - self._checked_at >= CHECK_S:
            self._checked_at = now
            self._worker.ask(self._try_to_write, False, 0.0)
        return not self._pending

    def close(self) -> bool:
        """Write waiting events for up to `patience_s` seconds. The rest is printed to standard error."""
        end = time.monotonic() + self.patience_s
        while not self._worker.ask(self._finish, False, max(0.0, end - time.monotonic())):
            if time.monotonic() >= end:
                sys.stderr.write("ffdl-controller: these events could not be written:\n" + "".join(self._pending))
                return False
            time.sleep(AGAIN_S)
        return True

    # ------------------------------------------------------------------------- these may wait for the file system

    def _finish(self) -> bool:
        if not self._try_to_write() or not self._try(self._restore):
            return False
        self.drop_ballast()
        return True

    def _try_to_write(self) -> bool:
        return self._try(self._write)

    def _try(self, write: Callable[[], None]) -> bool:
        for _ in range(2):
            try:
                write()
                return True
            except OSError as error:
                self._complain(error)
                if error.errno not in NO_SPACE or not self.drop_ballast():
                    return False
        return False

    def _write(self) -> None:
        with self._adding:
            lines, events = list(self._pending), list(self.events)
        if not lines and not self._has_changed(size_of(self.path)):
            return
        restore_directory(os.path.dirname(self.path))
        descriptor = open_own(self.path, os.O_RDWR | os.O_APPEND)
        try:
            if self._has_changed(os.fstat(descriptor).st_size):
                self._write_again(events)
            else:
                try:
                    self._append(descriptor, "".join(lines).encode("utf-8"))
                finally:  # a torn line is the journal's own
                    self._size = os.fstat(descriptor).st_size
        finally:
            os.close(descriptor)
        with self._adding:
            del self._pending[: len(lines)]
        self._complained = False
        self.ring()

    def _restore(self) -> None:
        """Write the whole file again if it lacks events of this run or has events of another process. A learner or a
        user that damages the file must not make readers conclude that the controller died."""
        try:
            found = decode_events(find_text(self.path, MAX_EVENT_BYTES))
        except NewerFormat:  # this run read the file before its first write
            found = []
        if found == self.events:
            return
        by_number = {event.seq: event for event in found}
        is_whole = all(by_number.get(event.seq) == event for event in self.events[len(self.earlier) :])
        if not is_whole or not self._superseded():
            self._write_again(self.events)
            self.ring()

    def _has_changed(self, size: int) -> bool:
        """Return whether a process other than a newer run wrote to the file, which has this size now."""
        return size != self._size and not self._superseded()

    def _write_again(self, events: List[Event]) -> None:
        if not self._reported_change:
            self._reported_change = True
            sys.stderr.write(f"ffdl-controller: {self.path}: another process changed this file; it is written again\n")
        content = "".join(map(encode_event, events))
        write_text(self.path, content)
        self._size = len(content.encode("utf-8"))

    def _append(self, descriptor: int, data: bytes) -> None:
        """Append data durably.

        An incomplete line of an earlier try is ended first. Readers skip it, and events that they have read before.
        """
        before = os.fstat(descriptor).st_size
        if before and os.pread(descriptor, 1, before - 1) != b"\n":
            data = b"\n" + data
        written = 0
        try:
            while written < len(data):
                written += os.write(descriptor, data[written:])
            os.fsync(descriptor)
        except OSError:
            if os.fstat(descriptor).st_size == before + written:  # no other process appended, so the space can be freed
                os.ftruncate(descriptor, before)
            raise

    def ring(self) -> None:
        """Notify the daemon of new events. If that fails, it finds them later."""
        if self.bell:
            try:
                touch(self.bell)
            except OSError as error:
                self._complain(error)

    def drop_ballast(self) -> bool:
        """Free the reserved space. Return False if it was freed before."""
        try:
            os.unlink(self.path + ".ballast")
        except OSError:  # it does not exist
            return False
        return True

    def _complain(self, error: OSError) -> None:
        if not self._complained:
            self._complained = True
            sys.stderr.write(f"ffdl-controller: {self.path}: {error}; will be tried again\n")
