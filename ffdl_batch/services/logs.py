"""Learners' logs: read from the job's directory while the job runs and after it ended, attempt after attempt."""

from __future__ import annotations

import heapq
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ffdl_batch.domain.job import Job
from ffdl_batch.domain.job_state import JobState
from ffdl_batch.domain.jobdir import AttemptDir
from ffdl_batch.domain.views import AttemptChoice, LogLine
from ffdl_batch.services.log_file import LogReader, has_log
from ffdl_batch.services.platform import Caller, Platform
from ffdl_batch.services.problems import wrong_usage
from ffdl_batch.services.query import own_job

POLL_S = 0.25
KEEP_ALIVE_S = 5.0


@dataclass(frozen=True, slots=True)
class LogQuery:
    """Which lines: of one learner or all (None), from a time on (seconds since the epoch), the last `tail` of each.

    `attempt` is a number, "all", or None: the newest one of which there is a log. With `follow` the attempts after it
    come as well. `since` and `tail` are for each attempt that there is at the beginning.
    """

    learner: int | None = None
    follow: bool = False
    since: float | None = None
    tail: int | None = None
    attempt: AttemptChoice = None


def read_logs(platform: Platform, caller: Caller, job_id: str, query: LogQuery) -> Iterator[LogLine | None]:
    """Lines in order; with `follow`, until the job has ended, None meaning "still nothing new".

    Attempts come one after the other, whatever the times of their lines. Raises :class:`Refused` for a learner or an
    attempt that there is not.
    """
    job = own_job(platform, caller, job_id)
    learners = job.spec.resources.learners
    if query.learner is not None and not 1 <= query.learner <= learners:
        raise wrong_usage(f"{job.id} has learners 1 to {learners}; there is no learner {query.learner}")
    if isinstance(query.attempt, int) and not 1 <= query.attempt <= job.attempt:
        raise wrong_usage(f"{job.id} has {_attempts(job)}; there is no attempt {query.attempt}")
    stream = _Stream(platform, job, query)
    return stream.follow() if query.follow else stream.read()


def _attempts(job: Job) -> str:
    """Which attempts there are, in words."""
    if job.attempt == 0:
        return f"no attempt yet (it is {job.state})"
    return "attempt 1 alone" if job.attempt == 1 else f"attempts 1 to {job.attempt}"


class _Stream:
    """The lines of one query. `_job` is the job as it was seen last."""

    def __init__(self, platform: Platform, job: Job, query: LogQuery) -> None:
        self._platform, self._job, self._query = platform, job, query
        self._learners = [query.learner] if query.learner else list(range(1, job.spec.resources.learners + 1))

    def read(self) -> Iterator[LogLine]:
        """What is there now."""
        last = self._job.attempt
        first = self._first()
        for number in range(first, (last if self._query.attempt == "all" else first) + 1):
            yield from _present(self._open(number), self._query, ended=True)

    def follow(self) -> Iterator[LogLine | None]:
        """What is there now, and what comes until the job has ended."""
        yield from self._await_attempt()
        number, present = self._first(), self._job.attempt
        while number <= self._job.attempt:
            readers = self._open(number)
            query = self._query if number <= present else LogQuery()
            yield from _present(readers, query, ended=self._is_over(number))
            yield from self._follow_attempt(number, readers)
            number += 1

    def _await_attempt(self) -> Iterator[None]:
        while self._job.attempt == 0 and not self._job.state.is_terminal:
            yield None
            time.sleep(POLL_S)
            self._look()

    def _follow_attempt(self, number: int, readers: list[LogReader]) -> Iterator[LogLine | None]:
        """New lines of one attempt until nothing more can come of it. Its last lines are read after that is known."""
        quiet_since = looked_at = time.monotonic()
        while not self._is_done(number):
            for line in _new(readers, ended=self._is_over(number)):
                quiet_since = time.monotonic()
                yield line
            now = time.monotonic()
            if now - quiet_since >= KEEP_ALIVE_S:
                quiet_since = now
                yield None
            time.sleep(POLL_S)
            if now - looked_at >= 2 * POLL_S:
                looked_at = now
                self._look()
        yield from _new(readers, ended=True)

    def _first(self) -> int:
        """The attempt to begin with; 1 where there is none."""
        wanted = self._query.attempt
        if wanted is not None:
            return 1 if wanted == "all" else wanted
        newest = max(1, self._job.attempt)
        logged = (number for number in range(newest, 0, -1) if self._has_log(number))
        return next(logged, newest)

    def _is_over(self, number: int) -> bool:
        """Whether the attempt has ended: by the job's row, a node that was cut off may not know it yet."""
        return self._job.state.is_terminal or self._job.state is JobState.PENDING or number < self._job.attempt

    def _is_done(self, number: int) -> bool:
        """Whether its log is whole: learners of a later attempt start only when all controllers before it are gone."""
        later = range(number + 1, self._job.attempt + 1)
        return self._job.state.is_terminal or any(map(self._has_log, later))

    def _has_log(self, number: int) -> bool:
        return has_log(self._directory(number), self._job.spec.resources.learners)

    def _directory(self, number: int) -> AttemptDir:
        return self._platform.root.job(self._job.id).attempt(number)

    def _open(self, number: int) -> list[LogReader]:
        return [LogReader(self._directory(number), number, learner) for learner in self._learners]

    def _look(self) -> None:
        self._job = self._platform.store.get(self._job.id) or self._job


def _new(readers: list[LogReader], *, ended: bool) -> Iterator[LogLine]:
    """What has come of each learner since the last read."""
    for reader in readers:
        yield from reader.lines(ended=ended)


def _present(readers: list[LogReader], query: LogQuery, *, ended: bool) -> Iterator[LogLine]:
    """What is there already of one attempt: of each learner what `since` and `tail` leave, merged in time order."""
    for reader in readers:
        reader.skip(since=query.since, tail=query.tail)
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
