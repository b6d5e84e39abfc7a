"""What the program says while it works: one line per value, without the values of secrets."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from ffdl_batch.domain.staging import Done, Failed, Line, Note, Progress, Retry, write_line

MOST_NOTES = 50
BROKEN_PIPE = 141


@dataclass(slots=True)
class _Counts:
    files: int = 0
    files_total: int = 0
    bytes: int = 0
    bytes_total: int = 0
    moved: int = 0
    kept: int = 0
    skipped: int = 0


class Teller:
    """Counts and says. `scrub` takes secrets out of a text. Calls may come from several threads at once."""

    def __init__(self, descriptor: int, scrub: Callable[[str], str], rate_line_s: float) -> None:
        self._descriptor, self._scrub, self._each_s = descriptor, scrub, rate_line_s
        self._counts, self._lock = _Counts(), threading.Lock()
        self._notes = 0
        self._end = threading.Event()
        self._began = self._last = time.monotonic()
        self._last_moved = 0

    def begin(self) -> None:
        """Say progress from now on."""
        threading.Thread(target=self._tick, daemon=True).start()

    def expect(self, files: int, size: int) -> None:
        """What there is to do in all."""
        with self._lock:
            self._counts.files_total, self._counts.bytes_total = files, size

    def moved(self, size: int) -> None:
        """Bytes have moved; fewer than none: they have to again."""
        with self._lock:
            self._counts.bytes += size
            self._counts.moved += max(size, 0)

    def had(self, size: int) -> None:
        """Bytes moved in an earlier run."""
        with self._lock:
            self._counts.bytes += size

    def finished(self) -> None:
        """A file is in place."""
        with self._lock:
            self._counts.files += 1

    def kept(self, size: int) -> None:
        """A file was in place."""
        with self._lock:
            self._counts.files += 1
            self._counts.kept += 1
            self._counts.bytes += max(size, 0)

    def skip(self, what: str) -> None:
        """A name is left out."""
        with self._lock:
            self._counts.skipped += 1
        self.note(what)

    def note(self, what: str) -> None:
        """Something for a person; only so many are said one by one."""
        with self._lock:
            self._notes += 1
            count = self._notes
        if count <= MOST_NOTES:
            self.say(Note(what))

    def retry(self, why: str, in_s: float) -> None:
        """Something is tried again."""
        self.say(Retry(why, round(in_s, 3)))

    def progress(self) -> None:
        """How far it is now."""
        with self._lock:
            now, counts = time.monotonic(), replace(self._counts)
            rate = (counts.moved - self._last_moved) / max(now - self._last, 1e-3)
            self._last, self._last_moved = now, counts.moved
        self.say(Progress(counts.files, counts.files_total, counts.bytes, counts.bytes_total, round(rate, 1)))

    def done(self) -> None:
        """The last line after success."""
        self._end.set()
        if self._notes > MOST_NOTES:
            self.say(Note(f"{self._notes - MOST_NOTES} more notes like these are not shown"))
        self.progress()
        seconds = round(time.monotonic() - self._began, 3)
        counts = self._counts
        self.say(Done(counts.files, counts.moved, counts.skipped, seconds, counts.kept))

    def failed(self, line: Failed) -> None:
        """The last line without success."""
        self._end.set()
        self.say(line)

    def say(self, line: Line) -> None:
        """One line by one write. Ends the process where nobody reads any more."""
        if isinstance(line, (Retry, Note)):
            line = replace(line, why=self._scrub(line.why))
        if isinstance(line, Failed):
            line = replace(line, message=self._scrub(line.message))
        data = write_line(line).encode()
        try:
            with self._lock:
                while data:
                    data = data[os.write(self._descriptor, data) :]
        except BrokenPipeError:
            os._exit(BROKEN_PIPE)  # who started this is gone; the journal has what is done

    def _tick(self) -> None:
        while not self._end.wait(self._each_s):
            self.progress()
