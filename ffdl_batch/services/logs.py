"""Learners' logs: read from the job's directory while the job runs and after it ended.

A learner writes its log file itself; its node controller notes now and then how long the file was at which time
(``events/learner-<n>.marks``: lines "<seconds since the epoch> <bytes>"), from which a line's time is known to about
a second.
"""

from __future__ import annotations

import bisect
import contextlib
import heapq
import os
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import BinaryIO

from ffdl_batch.domain.job import Job
from ffdl_batch.domain.jobdir import AttemptDir
from ffdl_batch.domain.views import LogLine
from ffdl_batch.services.platform import Caller, Platform
from ffdl_batch.services.problems import wrong_usage
from ffdl_batch.services.query import own_job

POLL_S = 0.25
KEEP_ALIVE_S = 5.0
CHUNK = 256 * 1024
MAX_LINE = 64 * 1024
"""A longer line is handed on in pieces of this size."""


@dataclass(frozen=True, slots=True)
class LogQuery:
    """Which lines: of one learner or all (None), from a time on (seconds since the epoch), the last `tail` of each."""

    learner: int | None = None
    follow: bool = False
    since: float | None = None
    tail: int | None = None


@dataclass(slots=True)
class _Marks:
    """Times of sizes of one log."""

    path: Path
    times: list[float] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    read_to: int = 0

    def refresh(self) -> None:
        try:
            with self.path.open("rb") as file:
                file.seek(self.read_to)
                text = file.read()
        except FileNotFoundError:
            return
        whole = text[: text.rfind(b"\n") + 1]
        self.read_to += len(whole)
        for line in whole.splitlines():
            with contextlib.suppress(ValueError):
                at, size = line.split()
                self.sizes.append(int(size))
                self.times.append(float(at))

    def size_before(self, at: float) -> int:
        """A size that the log surely had before `at`; 0 where none is known."""
        index = bisect.bisect_left(self.times, at)
        return self.sizes[index - 1] if index else 0

    def time_of(self, offset: int) -> float | None:
        """When the byte at `offset` had been written, by the first mark behind it."""
        index = bisect.bisect_right(self.sizes, offset)
        return self.times[index] if index < len(self.times) else None


class _Reader:
    """One learner's log, read on from where the last read ended."""

    def __init__(self, attempt: AttemptDir, learner: int) -> None:
        self._path = Path(attempt.training_log(learner))
        self._marks = _Marks(Path(attempt.events) / f"learner-{learner}.marks")
        self._learner, self._index, self._offset, self._rest = learner, 0, 0, b""

    def skip(self, query: LogQuery) -> None:
        """Pass over what `query` surely does not want, without making lines of it. Called before the first line."""
        try:
            file = self._path.open("rb")
        except FileNotFoundError:
            return
        with file:
            size = file.seek(0, os.SEEK_END)
            if query.since is not None:
                self._marks.refresh()
                start = _line_start(file, self._marks.size_before(query.since), 1)
            elif query.tail is not None:
                start = _line_start(file, size, query.tail + 1)
            else:
                return
            self._index, self._offset = _count_lines(file, start), start

    def lines(self, *, ended: bool) -> Iterator[LogLine]:
        """Whole lines that are new; when the log `ended`, also a last one without a newline."""
        self._marks.refresh()
        try:
            file = self._path.open("rb")
        except FileNotFoundError:
            return
        with file:
            file.seek(self._offset)
            while chunk := file.read(CHUNK):
                self._offset += len(chunk)
                yield from self._split(chunk)
        if ended and self._rest:
            self._index += 1
            rest, self._rest = self._rest, b""
            yield self._line(rest, self._offset)

    def _split(self, chunk: bytes) -> Iterator[LogLine]:
        *whole, self._rest = (self._rest + chunk).split(b"\n")
        end = self._offset - len(self._rest) - sum(len(line) + 1 for line in whole)
        for line in whole:
            end += len(line) + 1
            self._index += 1
            for start in range(0, max(1, len(line)), MAX_LINE):
                yield self._line(line[start : start + MAX_LINE], end)
        while len(self._rest) > MAX_LINE:
            piece, self._rest = self._rest[:MAX_LINE], self._rest[MAX_LINE:]
            yield replace(self._line(piece, self._offset - len(self._rest)), index=self._index + 1)

    def _line(self, raw: bytes, end: int) -> LogLine:
        text = raw.decode("utf-8", errors="replace").rstrip("\r")
        return LogLine(self._learner, self._index, text, self._marks.time_of(max(0, end - 1)))


def _line_start(file: BinaryIO, end: int, newlines: int) -> int:
    """Where the line begins that follows the last but `newlines` newline before `end`; read backwards in blocks.

    A newline at `end` itself closes the last line and is not counted.
    """
    position, wanted = end, newlines
    while position > 0:
        begin = max(0, position - CHUNK)
        file.seek(begin)
        block = file.read(position - begin)
        stop = len(block) - 1 if position == end and block.endswith(b"\n") else len(block)
        while (found := block.rfind(b"\n", 0, stop)) >= 0:
            wanted -= 1
            if wanted <= 0:
                return begin + found + 1
            stop = found
        position = begin
    return 0


def _count_lines(file: BinaryIO, end: int) -> int:
    file.seek(0)
    count, left = 0, end
    while left > 0 and (block := file.read(min(left, 16 * CHUNK))):
        count += block.count(b"\n")
        left -= len(block)
    return count


def read_logs(platform: Platform, caller: Caller, job_id: str, query: LogQuery) -> Iterator[LogLine | None]:
    """Lines in order; with `follow`, until the job has ended, None meaning "still nothing new"."""
    job = own_job(platform, caller, job_id)
    learners = job.spec.resources.learners
    if query.learner is not None and not 1 <= query.learner <= learners:
        raise wrong_usage(f"{job_id} has learners 1 to {learners}; there is no learner {query.learner}")
    return _stream(platform, job, query)


def _stream(platform: Platform, job: Job, query: LogQuery) -> Iterator[LogLine | None]:
    wanted = [query.learner] if query.learner else list(range(1, job.spec.resources.learners + 1))
    while job.attempt == 0 and query.follow and not job.state.is_terminal:
        yield None
        time.sleep(POLL_S)
        job = platform.store.get(job.id) or job
    attempt = platform.root.job(job.id).attempt(max(1, job.attempt))
    readers = [_Reader(attempt, learner) for learner in wanted]
    ended = job.state.is_terminal
    yield from _first(readers, query, ended=ended or not query.follow)
    quiet_since = state_read_at = time.monotonic()
    while query.follow and not ended:
        time.sleep(POLL_S)
        now = time.monotonic()
        if now - state_read_at >= 2 * POLL_S:
            job, state_read_at = platform.store.get(job.id) or job, now
            ended = job.state.is_terminal
        for reader in readers:
            for line in reader.lines(ended=ended):
                quiet_since = now
                yield line
        if now - quiet_since >= KEEP_ALIVE_S:
            quiet_since = now
            yield None


def _first(readers: list[_Reader], query: LogQuery, *, ended: bool) -> Iterator[LogLine]:
    """What is there already: of each learner what `since` and `tail` leave, merged in time order."""
    for reader in readers:
        reader.skip(query)
    logs = [_recent(_timed(reader.lines(ended=ended)), query) for reader in readers]
    return (line for _, line in heapq.merge(*logs, key=lambda pair: pair[0]))


def _recent(lines: Iterator[tuple[float, LogLine]], query: LogQuery) -> Iterable[tuple[float, LogLine]]:
    since = ((at, line) for at, line in lines if query.since is None or at >= query.since)
    return since if query.tail is None else deque(since, maxlen=max(0, query.tail))


def _timed(lines: Iterator[LogLine]) -> Iterator[tuple[float, LogLine]]:
    """Lines with a time to order by: their own, else that of the line before (a time never goes back)."""
    clock = 0.0
    for line in lines:
        clock = max(clock, line.at if line.at is not None else clock)
        yield clock, line
