"""Read a learner's output and write its log: one process per learner, which outlives a killed controller.

Standard input is the learner's output. It ends when the last process closes it. The output is read even if the log
cannot be written, so neither a full disk nor endless output stops a learner. A note in the log says what is missing.
There is one such process per learner, so it loads few modules, and none with dataclasses.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from typing import List, NamedTuple

from ffdl_batch.controller.logs.rotated_log import Limits, LogFiles
from ffdl_batch.domain.number_text import counted
from ffdl_batch.host.signals import HANDLED

LINE_COST = 100
"""Bytes that a shorter line counts as, because readers of logs work per line."""
KEPT_BYTES = 64 * 1024
"""Bytes at the end of omitted output that are kept, so that a learner's last lines are in its log."""
PAUSE_S = 1.0
"""Output is omitted until the allowance covers this many seconds, so that there is one note a second at most."""


class RateLimit:
    """Limits output to `burst` bytes at any speed, and then to `bytes_per_s`. Times are of a monotonic clock."""

    def __init__(self, bytes_per_s: int, burst: int, now: float) -> None:
        self._rate, self._burst = bytes_per_s, max(burst, bytes_per_s)
        self._allowance, self._at = float(self._burst), now
        self._is_open = False
        """Whether the last output that was written ended within a line."""
        self.is_shut = False
        self._lines = self._bytes = 0
        self._kept = bytearray()

    def feed(self, data: bytes, now: float) -> List[bytes]:
        """Return what to write of `data`, after a note if output was omitted before it."""
        self._allowance = min(float(self._burst), self._allowance + max(0.0, now - self._at) * self._rate)
        self._at = now
        if not self.is_shut and self._allowance > 0:
            return [self._through(data)]
        self.is_shut = True
        if self._allowance < self._rate * PAUSE_S:
            self._leave_out(data)
            return []
        begin = 0 if self._kept.endswith(b"\n") else data.find(b"\n") + 1
        self._leave_out(data[:begin])
        note = self._note(0, 0)
        return [note, self._through(data[begin:])] if begin < len(data) else [note]

    def finish(self) -> List[bytes]:
        """Return the end of the omitted output, when the learner has ended."""
        if not self.is_shut:
            return []
        kept = bytes(self._kept)
        if self._bytes > len(kept):
            kept = kept[kept.find(b"\n") + 1 :]
        if self._bytes == len(kept):
            return [kept]
        return [self._note(kept.count(b"\n"), len(kept)), kept]

    def _through(self, data: bytes) -> bytes:
        self._allowance -= max(len(data), LINE_COST * data.count(b"\n"))
        self._is_open = not data.endswith(b"\n")
        return data

    def _leave_out(self, data: bytes) -> None:
        self._lines += data.count(b"\n")
        self._bytes += len(data)
        self._kept += data[-KEPT_BYTES:]
        del self._kept[:-KEPT_BYTES]

    def _note(self, kept_lines: int, kept_bytes: int) -> bytes:
        text = note(self._lines - kept_lines, self._bytes - kept_bytes, f"more than {self._rate} bytes/s (log_rate)")
        begin = b"\n" if self._is_open else b""
        self.is_shut = self._is_open = False
        self._lines = self._bytes = 0
        self._kept.clear()
        return begin + text


def note(lines: int, size: int, why: str) -> bytes:
    """Return a line of the log about omitted output."""
    return f"[ffdl: {counted(lines, 'line')} ({size / 1e6:.1f} MB) left out here: {why}]\n".encode()


READ_BYTES = 256 * 1024
LOOK_S = 0.5
"""Seconds after a write until the file is checked."""
REST_READS = 64
"""Number of reads of the remaining output when the controller no longer waits."""
SHUT_PAUSE_S = 0.001
"""Seconds between two reads of omitted output, which slow down a learner that prints without end."""


class _Limits(NamedTuple):
    file_bytes: int
    files: int
    bytes_per_s: int


class Writer:
    """Writes the log of one learner."""

    def __init__(self, attempt_dir: str, learner_id: int, limits: Limits, control: int = -1) -> None:
        """`control` is a descriptor that gets a byte when the controller no longer waits for output (-1: none)."""
        self._place = (attempt_dir, learner_id, limits)
        self._files: List[LogFiles] = []
        self._bound = RateLimit(limits.bytes_per_s, limits.file_bytes, time.monotonic())
        self._control = control
        self._looked_at = 0.0
        self._dirty = self._hurries = False
        self._lost_lines = self._lost_bytes = 0
        self._why = ""

    def run(self, source: int) -> None:
        """Run until the output ends."""
        poll = select.poll()
        poll.register(source, select.POLLIN)
        if self._control >= 0:
            poll.register(self._control, select.POLLIN)
        left = REST_READS
        while left:
            ready = [descriptor for descriptor, _ in poll.poll(self._wait_ms())]
            if self._control in ready:
                self._hurries = bool(os.read(self._control, 1))
                poll.unregister(self._control)  # the controller has ended, and the output may continue
                continue
            if source in ready:
                data = os.read(source, READ_BYTES)
                if not data:
                    break
                self._take(data)
            elif self._hurries:
                break
            left -= self._hurries
            self._look()
        for piece in self._bound.finish():
            self._write(piece)

    def _wait_ms(self) -> int:
        if self._hurries:
            return 0
        return int(LOOK_S * 1000) if self._dirty else -1

    def _take(self, data: bytes) -> None:
        for piece in self._bound.feed(data, time.monotonic()):
            self._write(piece)
        if self._bound.is_shut:
            time.sleep(SHUT_PAUSE_S)

    def _write(self, data: bytes) -> None:
        try:
            if not self._files:
                self._files.append(LogFiles(*self._place))
            missing = b"\n" + note(self._lost_lines, self._lost_bytes, self._why) if self._lost_bytes else b""
            self._files[0].write(missing + data)
            self._dirty, self._lost_lines, self._lost_bytes = True, 0, 0
        except OSError as error:
            if not self._lost_bytes:
                sys.stderr.write(f"ffdl-controller: a learner's log cannot be written: {error}; its output is lost\n")
            self._why = error.strerror or type(error).__name__
            self._lost_lines += data.count(b"\n")
            self._lost_bytes += len(data)

    def _look(self) -> None:
        now = time.monotonic()
        if not self._dirty or now - self._looked_at < LOOK_S:
            return
        self._looked_at, self._dirty = now, False
        try:
            self._files[0].look()
        except OSError:  # reported when more is written
            self._dirty = True


def main(arguments: List[str]) -> int:
    """Run with the arguments ATTEMPT_DIR LEARNER FILE_BYTES FILES BYTES_PER_S CONTROL."""
    for number in HANDLED - {signal.SIGCHLD}:
        signal.signal(number, signal.SIG_IGN)
    attempt_dir = arguments[0]
    learner_id, file_bytes, files, bytes_per_s, control = map(int, arguments[1:6])
    Writer(attempt_dir, learner_id, _Limits(file_bytes, files, bytes_per_s), control).run(sys.stdin.fileno())
    return 0
