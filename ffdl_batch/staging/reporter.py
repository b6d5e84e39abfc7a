"""Report progress and results: one line per value, without the values of secrets."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace

from ffdl_batch.domain.data.staging_protocol import Done, Failed, Line, Note, Progress, Retry, write_line
from ffdl_batch.host.descriptors import write_all
from ffdl_batch.host.fast_dataclass import dataclass

MOST_NOTES = 50
RATE_OVER_S = 10.0
"""The rate is that of the last seconds, however often it is reported: a part of a large upload counts only when it is
complete."""
EARLY_SHARE, EARLY_BYTES = 0.05, 8 << 20
"""Until this share of all, or so many bytes, have moved in this run, the rate may be that of a few small files while
the first part of a large one is on its way."""
BROKEN_PIPE = 141


@dataclass(slots=True)
class Counts:
    """The reported numbers. `moved` is the bytes of this run, each counted once even if it was copied again."""

    files: int = 0
    files_total: int = 0
    bytes: int = 0
    bytes_total: int = 0
    moved: int = 0
    kept: int = 0
    skipped: int = 0
    later: int = 0


class Pace:
    """Bytes per second over the last seconds."""

    def __init__(self, now: float, passed: int = 0) -> None:
        self._moments = deque([(now, passed)])

    def at(self, now: float, passed: int) -> float:
        """Return the rate, if so many bytes have passed in all."""
        while len(self._moments) > 1 and self._moments[1][0] <= now - RATE_OVER_S:
            self._moments.popleft()
        since, before = self._moments[0]
        self._moments.append((now, passed))
        return round((passed - before) / max(now - since, 1e-3), 1)


class Reporter:
    """Count and report. `scrub` removes secrets from a text. Methods may be called from several threads at once."""

    def __init__(self, descriptor: int, scrub: Callable[[str], str], rate_line_s: float) -> None:
        self._descriptor, self._scrub, self._each_s = descriptor, scrub, rate_line_s
        self._counts, self._lock = Counts(), threading.Lock()
        self._notes = 0
        self._end = threading.Event()
        self._ticking = threading.Thread(target=self._tick, daemon=True)
        self._began = time.monotonic()
        self._passed = 0  # bytes that moved, those too that did a second time
        self._expected_again = 0
        self._pace, self._files_pace = Pace(self._began), Pace(self._began)
        self._other: Progress | None = None
        self._other_pace: Pace | None = None

    def begin(self) -> None:
        """Start to report progress."""
        self._ticking.start()

    def expect(self, files: int, size: int) -> None:
        """Set the totals."""
        with self._lock:
            self._counts.files_total, self._counts.bytes_total = files, size

    def moved(self, size: int) -> None:
        """Count bytes that moved. A negative number means that they have to move again."""
        with self._lock:
            again = min(max(size, 0), self._expected_again)
            self._expected_again -= again
            self._passed += max(size, 0)
            self._counts.bytes += size
            self._counts.moved += max(size, 0) - again

    def had(self, size: int) -> None:
        """Count bytes that moved in an earlier run."""
        with self._lock:
            self._counts.bytes += size

    def finished(self) -> None:
        """Count a file that is in place now."""
        with self._lock:
            self._counts.files += 1

    def kept(self, size: int) -> None:
        """Count a file that was in place."""
        with self._lock:
            self._counts.files += 1
            self._counts.kept += 1
            self._counts.bytes += max(size, 0)

    def later(self) -> None:
        """Count a file that is left to a later run, or has changed since it was stored."""
        with self._lock:
            self._counts.later += 1

    def keep_all(self, files: int, size: int) -> None:
        """Count files that were in place."""
        with self._lock:
            self._counts.files += files
            self._counts.kept += files
            self._counts.bytes += size

    def counted(self) -> Counts:
        """Return the current numbers."""
        with self._lock:
            return replace(self._counts)

    def restore(self, counts: Counts) -> None:
        """Reset the numbers, except for what has moved."""
        with self._lock:
            self._counts = replace(counts, moved=self._counts.moved, skipped=self._counts.skipped)

    def expect_again(self, size: int) -> None:
        """Announce that bytes of this run move again, from the cache to their place. The total counts them once."""
        with self._lock:
            self._expected_again += size

    def follow(self, other: Progress | None) -> None:
        """Report the progress of another process, for which this one waits, instead of its own. Its rate is what is
        observed."""
        with self._lock:
            if other is None:
                self._other_pace = None
            elif self._other_pace is None:
                self._other_pace = Pace(time.monotonic(), other.bytes)
            self._other = other

    def skip(self, what: str) -> None:
        """Count a name that is left out, and report it."""
        with self._lock:
            self._counts.skipped += 1
        self.note(what)

    def note(self, what: str) -> None:
        """Report something to the user. The number of notes is limited."""
        with self._lock:
            self._notes += 1
            count = self._notes
        if count <= MOST_NOTES:
            self.say(Note(what))

    def retry(self, why: str, in_s: float, cause: str = "") -> None:
        """Report a retry."""
        self.say(Retry(why, round(in_s, 3), cause))

    def progress(self) -> None:
        """Report the progress."""
        with self._lock:
            now, counts = time.monotonic(), replace(self._counts)
            rate = self._pace.at(now, self._passed)
            files_rate = self._files_pace.at(now, counts.files - counts.kept)
            early = self._passed < min(EARLY_SHARE * counts.bytes_total, EARLY_BYTES)
            other = self._other
            if other is not None and self._other_pace is not None:
                other = replace(other, rate=self._other_pace.at(now, other.bytes))
        if other is not None:
            self.say(other)
            return
        self.say(Progress(counts.files, counts.files_total, counts.bytes, counts.bytes_total, rate, early, files_rate))

    def done(self) -> None:
        """Report success. This is the last line."""
        self._end_ticking()
        if self._notes > MOST_NOTES:
            self.say(Note(f"{self._notes - MOST_NOTES} more notes like these are not shown"))
        self.progress()
        seconds = round(time.monotonic() - self._began, 3)
        counts = self._counts
        self.say(Done(counts.files, counts.moved, counts.skipped, seconds, counts.kept, counts.later))

    def failed(self, line: Failed) -> None:
        """Report failure. This is the last line."""
        self._end_ticking()
        self.say(line)

    def say(self, line: Line) -> None:
        """Write one line by one write. End the process if there is no reader."""
        if isinstance(line, (Retry, Note)):
            line = replace(line, why=self._scrub(line.why))
        if isinstance(line, Retry):
            line = replace(line, cause=self._scrub(line.cause))
        if isinstance(line, Failed):
            line = replace(line, message=self._scrub(line.message), cause=self._scrub(line.cause))
        data = write_line(line).encode()
        try:
            with self._lock:
                write_all(self._descriptor, data)
        except BrokenPipeError:
            os._exit(BROKEN_PIPE)  # who started this is gone; the journal has what is done

    def _end_ticking(self) -> None:
        """Wait for a line of progress that is being written: the last line must follow it."""
        self._end.set()
        if self._ticking.ident is not None:
            self._ticking.join()

    def _tick(self) -> None:
        while not self._end.wait(self._each_s):
            self.progress()
