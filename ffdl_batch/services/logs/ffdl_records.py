"""Pages of log lines and metrics, as FfDL's REST API returns them.

`rindex` counts the lines or records of each learner from 1, over all attempts. Source: IBM/FfDL, metrics/service, whose
queries select by `rindex` or by time, and never by learner.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from ffdl_batch.domain.job.job import Job
from ffdl_batch.domain.job.log_text import LogText
from ffdl_batch.domain.job.submission import Caller
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.services.job_storage import JobStorage
from ffdl_batch.services.logs.log_stream import LogQuery, read_texts
from ffdl_batch.services.queries.followed_jobs import FollowedJobs
from ffdl_batch.services.queries.jobs import own_job
from ffdl_batch.services.queries.measurement_stream import MeasuredQuery, read_metrics

MOST = 1000
"""Maximum number of records in one reply."""
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


def page_of_lines(
    storage: JobStorage, followed_jobs: FollowedJobs, caller: Caller, job_id: str, page: Page
) -> list[Record]:
    """Return log lines as ``{"meta", "line"}``. Raises Refused and OSError."""
    job = own_job(storage.store, caller, job_id)

    def read(query: LogQuery) -> Iterator[LogText]:
        return (text for text in read_texts(storage, followed_jobs, caller, job.id, query) if text is not None)

    def numbered() -> Iterator[_Numbered]:
        lasts = {(one.attempt, one.learner): one.index for one in read(LogQuery(attempt="all", tail=1))}
        tail = -page.first if page.first < 0 and page.since is None else None
        for text in read(LogQuery(attempt="all", since=page.since, tail=tail)):
            before = sum(last for (attempt, of), last in lasts.items() if of == text.learner and attempt < text.attempt)
            if before + text.index + text.count <= page.first:
                continue
            for line in text.lines():
                at_ms = round((line.at or 0.0) * 1000)
                yield _Numbered(line.learner, before + line.index, at_ms, {"line": line.line})

    return _select(job, numbered(), page)


def page_of_metrics(storage: JobStorage, caller: Caller, job_id: str, page: Page) -> list[Record]:
    """Return records of metrics as ``{"meta", "grouplabel", "etimes", "values"}``. Raises Refused and OSError."""
    job = own_job(storage.store, caller, job_id)

    def numbered() -> Iterator[_Numbered]:
        counts: Counter[int] = Counter()
        for line in read_metrics(storage, caller, job.id, MeasuredQuery()):
            if line is None:
                continue
            found = json.loads(line)
            counts[found["learner"]] += 1
            fields = {name: found["record"].get(name, {}) for name in ("grouplabel", "etimes", "values")}
            at_ms = int(found["record"].get("meta", {}).get("time", 0))
            yield _Numbered(found["learner"], counts[found["learner"]], at_ms, fields)

    return _select(job, numbered(), page)


def _select(job: Job, found: Iterable[_Numbered], page: Page) -> list[Record]:
    """Return the records of a page, in the order in which they are found."""
    size = min(page.size, MOST)
    chosen: Iterator[_Numbered]
    if page.since is not None:
        since_ms = page.since * 1000
        chosen = (one for one in found if one.at_ms >= since_ms)
    elif page.first < 0:
        chosen = _last(found, -page.first, size)
    else:
        first = max(1, page.first)
        before_end = _until_passed(found, first + size, job.spec.resources.learners)
        chosen = (one for one in before_end if one.number >= first)
    return [_record(job, one) for one in islice(chosen, MOST)]


def _last(found: Iterable[_Numbered], count: int, size: int) -> Iterator[_Numbered]:
    """Yield the first `size` of the last `count` records of each learner."""
    kept: defaultdict[int, deque[_Numbered]] = defaultdict(lambda: deque(maxlen=min(count, MOST)))
    for one in found:
        kept[one.learner].append(one)
    for records in kept.values():
        yield from islice(records, size)


def _until_passed(found: Iterable[_Numbered], end: int, learners: int) -> Iterator[_Numbered]:
    """Yield the records with numbers below `end`, until all learners have passed it."""
    passed = set()
    for one in found:
        if one.number < end:
            yield one
            continue
        passed.add(one.learner)
        if len(passed) == learners:
            return


def _record(job: Job, one: _Numbered) -> Record:
    """Return a record. 64-bit integers are texts, as in FfDL's JSON."""
    meta = {"training_id": job.id, "user_id": job.user, "time": str(one.at_ms), "rindex": str(one.number)}
    return {"meta": meta, **one.fields}
