"""Pages of log lines and metrics, as FfDL's REST API returns them.

`rindex` counts the lines or records of each learner from 1, over all attempts. Source: IBM/FfDL, metrics/service, whose
queries select by `rindex` or by time, and never by learner.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from ffdl_batch.domain.job.job import Job
from ffdl_batch.domain.job.log_text import LogText
from ffdl_batch.domain.job.submission import Caller
from ffdl_batch.domain.metrics.records import RecordError, plain_record, read_record
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.services.job_storage import JobStorage
from ffdl_batch.services.logs.log_stream import LogQuery, read_texts
from ffdl_batch.services.queries.followed_jobs import FollowedJobs
from ffdl_batch.services.queries.jobs import own_job
from ffdl_batch.services.queries.measurement_stream import MeasuredQuery, read_metrics

MOST = 1000
"""Maximum number of records of each learner in one reply."""
MOST_BYTES = 8 << 20
"""Maximum size of the texts in one reply."""
LONGEST = 1 << 20
"""A line is cut at so many characters."""
_LEARNER = re.compile(rb'\{"learner":(\d+),')
Record = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Page:
    """Which records of each learner: `size` from number `first` on; a negative `first` counts from the end, 0 is the
    beginning. With `since`, in seconds since the epoch, all from then on."""

    first: int = 0
    size: int = 10
    since: float | None = None


@dataclass(frozen=True, slots=True)
class _Numbered:
    learner: int
    number: int
    at_ms: int
    fields: Record
    size: int


class _Window:
    """The wanted numbers of each learner: `size` from the first one on. `totals` are the counts of existing records."""

    def __init__(self, page: Page, totals: Mapping[int, int]) -> None:
        size = min(page.size, MOST)
        self.since_ms = None if page.since is None else page.since * 1000
        self._totals = totals
        self._firsts = {
            learner: max(1, page.first if page.first >= 0 else total + page.first + 1)
            for learner, total in totals.items()
        }
        self._size = size

    def wants(self, learner: int, first: int, last: int) -> bool:
        """Return whether a learner's records with these numbers, or some of them, are wanted."""
        if self.since_ms is not None:
            return True
        begin = self._firsts.get(learner, 1)
        return first < begin + self._size and last >= begin

    def is_complete(self, read: Mapping[int, int]) -> bool:
        """Return whether everything that is wanted has been read; `read` has the last number of each learner."""
        return self.since_ms is None and all(
            read.get(learner, 0) >= min(total, self._firsts[learner] + self._size - 1)
            for learner, total in self._totals.items()
        )

    def fit(self, found: list[_Numbered]) -> list[_Numbered]:
        """Return fewer records if their texts are too large for a reply: the same numbers for all learners, from the
        first on, so that the next page can begin behind them."""
        if self.since_ms is not None:
            return found
        size = self._size
        while size > 1 and sum(one.size for one in found) > MOST_BYTES:
            size //= 2
            found = [one for one in found if one.number < self._firsts.get(one.learner, 1) + size]
        self._size = size
        return found


def page_of_lines(
    storage: JobStorage, followed_jobs: FollowedJobs, caller: Caller, job_id: str, page: Page
) -> list[Record]:
    """Return log lines as ``{"meta", "line"}``. Raises Refused and OSError."""
    job = own_job(storage.store, caller, job_id)

    def read(query: LogQuery) -> Iterator[LogText]:
        return (text for text in read_texts(storage, followed_jobs, caller, job.id, query) if isinstance(text, LogText))

    lasts = {(one.attempt, one.learner): one.index for one in read(LogQuery(attempt="all", tail=1))}
    totals: Counter[int] = Counter()
    befores = {}
    for (attempt, learner), last in sorted(lasts.items()):
        befores[attempt, learner] = totals[learner]
        totals[learner] += last
    window, seen = _Window(page, totals), Counter[int]()

    def numbered() -> Iterator[_Numbered]:
        tail = -page.first if page.first < 0 and page.since is None else None
        begun: dict[int, str] = {}
        for text in read(LogQuery(attempt="all", since=page.since, tail=tail)):
            first = befores.get((text.attempt, text.learner), totals[text.learner]) + text.index
            seen[text.learner] = first + text.count - 1
            if window.wants(text.learner, first, seen[text.learner]):
                for number, line in enumerate(text.lines(), first):
                    whole = (begun.pop(line.learner, "") + line.line)[:LONGEST]
                    if line.partial:
                        begun[line.learner] = whole
                    elif window.wants(line.learner, number, number):
                        at_ms = math.floor((line.at or 0.0) * 1000)
                        yield _Numbered(line.learner, number, at_ms, {"line": whole}, len(whole))
            if window.is_complete(seen):
                return

    return _collect(job, numbered(), window)


def page_of_metrics(storage: JobStorage, caller: Caller, job_id: str, page: Page) -> list[Record]:
    """Return records of metrics as ``{"meta", "grouplabel", "etimes", "values"}``. Raises Refused and OSError."""
    job = own_job(storage.store, caller, job_id)

    def lines() -> Iterator[tuple[int, bytes]]:
        for line in read_metrics(storage, caller, job.id, MeasuredQuery()):
            if line is not None and (found := _LEARNER.match(line)) is not None:
                yield int(found[1]), line

    window, seen = _Window(page, Counter(learner for learner, _ in lines())), Counter[int]()

    def numbered() -> Iterator[_Numbered]:
        for learner, line in lines():
            seen[learner] += 1
            number = seen[learner]
            if window.wants(learner, number, number):
                with suppress(RecordError):
                    record = read_record(json.loads(line)["record"])
                    plain = plain_record(record)
                    fields = {name: plain[name] for name in ("grouplabel", "etimes", "values")}
                    yield _Numbered(learner, number, record.time_ms, fields, len(line))
            if window.is_complete(seen):
                return

    return _collect(job, numbered(), window)


def _collect(job: Job, found: Iterable[_Numbered], window: _Window) -> list[Record]:
    """Return the records of a page, in the order in which they are found."""
    chosen: list[_Numbered] = []
    size = 0
    for one in found:
        if window.since_ms is not None and one.at_ms < math.floor(window.since_ms):
            continue
        if window.since_ms is not None and chosen and (len(chosen) == MOST or size + one.size > MOST_BYTES):
            break
        chosen.append(one)
        size += one.size
        if size > 2 * MOST_BYTES:
            chosen = window.fit(chosen)
            size = sum(each.size for each in chosen)
    return [_record(job, one) for one in window.fit(chosen)]


def _record(job: Job, one: _Numbered) -> Record:
    """Return a record. 64-bit integers are texts, as in FfDL's JSON."""
    meta = {"training_id": job.id, "user_id": job.user, "time": str(one.at_ms), "rindex": str(one.number)}
    return {"meta": meta, **one.fields}
