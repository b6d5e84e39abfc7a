"""Read and follow learners' logs in the job's directory, attempt after attempt."""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import field
from itertools import chain

from ffdl_batch.attempt.layout import AttemptDir
from ffdl_batch.domain.job.job import Job
from ffdl_batch.domain.job.log_text import Grep, LogText
from ffdl_batch.domain.job.submission import Caller
from ffdl_batch.domain.job.views import AttemptChoice
from ffdl_batch.domain.job_state import JobState
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.services.job_storage import JobStorage
from ffdl_batch.services.logs.line_search import Match, Search, Since, check, find_tail, matching
from ffdl_batch.services.logs.log_reader import LogReader, has_log
from ffdl_batch.services.queries.followed_jobs import FollowedJobs, Pause
from ffdl_batch.services.queries.jobs import own_job, require_learner
from ffdl_batch.services.refusals import stop_if, wrong_usage

FLUSH_S = 1.0
"""Interval at which states of a progress bar are shown."""
GROWS_S = 0.2
"""If a log has not grown for so long, its last line is complete."""


@dataclass(frozen=True, slots=True)
class LogQuery:
    """Which lines: of one learner or all (None), from a time on (seconds since the epoch), the last `tail` of each.

    `attempt` is a number, "all", or None: the newest attempt with a log. With `follow`, later attempts follow. `since`
    and `tail` apply to each attempt that exists at the beginning; with `grep`, `tail` counts matching lines. `after` is
    how much of each learner's output in one attempt was read before, by (attempt, learner); earlier attempts are
    skipped.
    """

    learner: int | None = None
    follow: bool = False
    since: float | None = None
    tail: int | None = None
    attempt: AttemptChoice = None
    grep: Grep | None = None
    after: Mapping[tuple[int, int], int] = field(default_factory=dict)


def read_texts(
    storage: JobStorage,
    followed_jobs: FollowedJobs,
    caller: Caller,
    job_id: str,
    query: LogQuery,
    is_stopped: Callable[[], bool] = lambda: False,
) -> Iterator[LogText | Pause]:
    """Yield lines in order; with `follow`, until the job has ended. The caller sleeps during each Pause.

    Attempts come one after the other, whatever the times of their lines. Raises Refused for a learner or attempt that
    does not exist. The iterator raises StreamStopped, while there is no output, once `is_stopped`.
    """
    job = own_job(storage.store, caller, job_id)
    require_learner(job, query.learner)
    if isinstance(query.attempt, int) and not 1 <= query.attempt <= job.attempt:
        raise wrong_usage(f"{job.id} has {_attempts(job)}; there is no attempt {query.attempt}")
    if query.grep is not None:
        check(query.grep)
    stream = _Stream(storage, followed_jobs, job, query, is_stopped)
    return stream.follow() if query.follow else stream.read()


def _attempts(job: Job) -> str:
    """Return in words which attempts exist."""
    if job.attempt == 0:
        return f"no attempt yet (it is {job.state})"
    return "attempt 1 alone" if job.attempt == 1 else f"attempts 1 to {job.attempt}"


class _Stream:
    """The lines of one query. `_job` is the last known state of the job."""

    def __init__(
        self,
        storage: JobStorage,
        followed_jobs: FollowedJobs,
        job: Job,
        query: LogQuery,
        is_stopped: Callable[[], bool],
    ) -> None:
        self._root, self._sizes = storage.root, storage.store.elastic
        self._followed_jobs, self._job, self._query, self._is_stopped = followed_jobs, job, query, is_stopped
        self._learners = [query.learner] if query.learner else list(range(1, job.most_learners + 1))

    def read(self) -> Iterator[LogText]:
        """Yield the existing lines. If a log grows, its last lines are complete ones, and the state of a progress
        bar."""
        last = self._job.attempt
        first = self._first()
        with self._matching() as match:
            for number in range(first, (last if self._query.attempt == "all" else first) + 1):
                logs = _Logs(self._open(number), self._query, match)
                if self._query.tail is None or self._is_over(number) or not logs.is_within_line():
                    yield from self._present(logs, number, ended=True)
                    continue
                size = logs.size()
                time.sleep(GROWS_S)
                yield from self._present(logs, number, ended=logs.size() == size)

    def follow(self) -> Iterator[LogText | Pause]:
        """Yield the existing lines, and new lines until the job has ended."""
        with self._followed_jobs.following(self._job.id):
            yield from self._await_attempt()
            number, present = self._first(), self._job.attempt
            with self._matching() as match:
                while number <= self._job.attempt:
                    query = self._query if number <= present else LogQuery(grep=self._query.grep)
                    logs = _Logs(self._open(number), query, match)
                    yield from self._present(logs, number, ended=self._is_over(number))
                    yield from self._follow_attempt(number, logs)
                    number += 1

    def _matching(self) -> AbstractContextManager[Match | None]:
        return nullcontext() if self._query.grep is None else matching(self._query.grep)

    def _present(self, logs: _Logs, number: int, *, ended: bool) -> Iterator[LogText]:
        """Yield the existing lines of one attempt, merged in time order."""
        newest = max((attempt for attempt, _ in self._query.after), default=0)
        if number >= newest:
            logs.begin(number, ended=ended)
            yield from logs.texts(ended=ended, flush=not ended and not self._query.follow)

    def _await_attempt(self) -> Iterator[Pause]:
        while self._job.attempt == 0 and not self._job.state.is_terminal:
            yield self._followed_jobs.pause()
            self._look()

    def _follow_attempt(self, number: int, logs: _Logs) -> Iterator[LogText | Pause]:
        """Yield new lines of one attempt until it can have no more. After that is known, the last lines are read."""
        flushed_at = time.monotonic()
        while not self._is_done(number):
            flush = time.monotonic() - flushed_at >= FLUSH_S
            flushed_at = time.monotonic() if flush else flushed_at
            yield from logs.texts(ended=self._is_over(number), flush=flush)
            yield self._followed_jobs.pause()
            self._look()
        yield from logs.texts(ended=True)

    def _first(self) -> int:
        """Return the attempt to begin with; 1 if there is none."""
        wanted = self._query.attempt
        if wanted is not None:
            return 1 if wanted == "all" else wanted
        newest = max(1, self._job.attempt)
        logged = (number for number in range(newest, 0, -1) if self._has_log(number))
        return next(logged, newest)

    def _is_over(self, number: int) -> bool:
        """Return whether the attempt has ended, by the job's row: a node that was cut off may not know it yet."""
        return self._job.state.is_terminal or self._job.state is JobState.PENDING or number < self._job.attempt

    def _is_done(self, number: int) -> bool:
        """Return whether its log is complete: learners of a later attempt start only when all earlier controllers have
        ended."""
        later = range(number + 1, self._job.attempt + 1)
        return self._sizes.is_over(self._job) or any(map(self._has_log, later))

    def _has_log(self, number: int) -> bool:
        return has_log(self._directory(number), self._job.most_learners)

    def _directory(self, number: int) -> AttemptDir:
        return self._root.job(self._job.id).attempt(number)

    def _open(self, number: int) -> list[LogReader]:
        directory = self._directory(number)
        return [LogReader(directory, number, learner, self._is_stopped) for learner in self._learners]

    def _look(self) -> None:
        stop_if(self._is_stopped)
        self._job = self._followed_jobs.see(self._job.id, time.monotonic()) or self._job


class _Logs:
    """The logs of one attempt's learners, from where the wanted lines begin."""

    def __init__(self, readers: list[LogReader], query: LogQuery, match: Match | None) -> None:
        self._readers, self._query, self._match = readers, query, match
        self._cuts = [Since(query.since) for _ in readers]
        self._searches: list[Search] = []
        self._parts: list[Iterator[LogText]] = []

    def is_within_line(self) -> bool:
        """Whether one of the logs ends without a newline."""
        return any(reader.is_within_line() for reader in self._readers)

    def size(self) -> int:
        """Return the size of all logs, with rotated files."""
        return sum(reader.end() for reader in self._readers)

    def begin(self, number: int, *, ended: bool) -> None:
        """Go to the first wanted line. With a pattern, search for the last matching lines from the end of each log."""
        query, grep = self._query, self._query.grep
        for reader in self._readers:
            tail = query.tail if grep is None else None
            # lseek(2) refuses positions that are too large.
            after = min(query.after.get((number, reader.learner), 0), reader.end())
            reader.skip(since=query.since, tail=tail, after=after, ended=ended)
        if grep is None or self._match is None:
            return
        if query.tail is None:
            self._searches = [Search(grep, self._match) for _ in self._readers]
            return
        for reader, since in zip(self._readers, self._cuts, strict=True):
            found = find_tail(reader, since, grep, self._match, query.tail, ended=ended)
            self._searches.append(Search(grep, self._match, found.begin))
            self._parts.append(found.texts(reader) if query.follow else found.texts_until_then(reader))

    def texts(self, *, ended: bool, flush: bool = False) -> Iterator[LogText]:
        """Yield new lines of each learner, merged in time order."""
        flush = flush and self._match is None  # a line is searched when it is whole
        logs = [reader.texts(ended=ended, flush=flush) for reader in self._readers]
        if self._parts and not self._query.follow:
            logs = self._parts
        elif self._parts:
            logs, self._parts = [chain(*both) for both in zip(self._parts, logs, strict=True)], []
        logs = [since.cut(log) for since, log in zip(self._cuts, logs, strict=True)]
        if self._searches:
            logs = [search.select(log) for search, log in zip(self._searches, logs, strict=True)]
        if len(logs) == 1:
            return logs[0]
        return heapq.merge(*logs, key=lambda text: math.inf if text.at is None else text.at)
