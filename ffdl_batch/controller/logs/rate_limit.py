"""What of a learner's output goes into its log: so many bytes a second, and what is left out is told."""

from __future__ import annotations

from typing import List

from ffdl_batch.domain.number_text import counted

LINE_COST = 100
"""A shorter line counts as so many bytes: what reads logs works per line."""
KEPT_BYTES = 64 * 1024
"""Of what is left out, the end is kept until more comes: a learner's last words are in its log."""
PAUSE_S = 1.0
"""What was left out goes on to be so until there is room for this time's output: one note a second, not thousands."""


class Bound:
    """Lets `burst` bytes through at any speed, and `bytes_per_s` from then on. Times are of a monotonic clock."""

    def __init__(self, bytes_per_s: int, burst: int, now: float) -> None:
        self._rate, self._burst = bytes_per_s, max(burst, bytes_per_s)
        self._room, self._at = float(self._burst), now
        self._is_open = False
        """Whether what was let through last ended within a line."""
        self.is_shut = False
        self._lines = self._bytes = 0
        self._kept = bytearray()

    def feed(self, data: bytes, now: float) -> List[bytes]:
        """What of `data` is to be written, perhaps behind a note on what was left out before it."""
        self._room = min(float(self._burst), self._room + max(0.0, now - self._at) * self._rate)
        self._at = now
        if not self.is_shut and self._room > 0:
            return [self._through(data)]
        self.is_shut = True
        if self._room < self._rate * PAUSE_S:
            self._leave_out(data)
            return []
        begin = 0 if self._kept.endswith(b"\n") else data.find(b"\n") + 1
        self._leave_out(data[:begin])
        note = self._note(0, 0)
        return [note, self._through(data[begin:])] if begin < len(data) else [note]

    def finish(self) -> List[bytes]:
        """Nothing more comes: the end of what was left out after all."""
        if not self.is_shut:
            return []
        kept = bytes(self._kept)
        if self._bytes > len(kept):
            kept = kept[kept.find(b"\n") + 1 :]
        if self._bytes == len(kept):
            return [kept]
        return [self._note(kept.count(b"\n"), len(kept)), kept]

    def _through(self, data: bytes) -> bytes:
        self._room -= max(len(data), LINE_COST * data.count(b"\n"))
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
    """A line of the log on what is not in it."""
    return f"[ffdl: {counted(lines, 'line')} ({size / 1e6:.1f} MB) left out here: {why}]\n".encode()
