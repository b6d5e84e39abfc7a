"""Reads and follows what was measured of a job: its metrics, and the use of processors, memory and devices."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

from ffdl_batch.attempt.layout import AttemptDir
from ffdl_batch.attempt.reader import DamagedFile, open_regular
from ffdl_batch.domain.job.job import Job
from ffdl_batch.domain.job.submission import Caller
from ffdl_batch.domain.job.views import AttemptChoice
from ffdl_batch.domain.number_text import counted
from ffdl_batch.domain.untrusted_json import parse_json
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.services.job_storage import JobStorage
from ffdl_batch.services.queries.jobs import own_job, require_learner
from ffdl_batch.services.refusals import stop_if, wrong_usage

CHUNK = 256 * 1024
MAX_LINE = 1 << 20
"""Longer lines are not records of ours, and are skipped."""
POLL_S, KEEP_ALIVE_S = 0.5, 5.0

MOST_BYTES = 512 * 1024**2
"""Maximum bytes read from one file. Collectors write 256 MiB at most, samplers 16 MiB. A longer file was made by a
learner or a user."""
IsStopped = Callable[[], bool]
Places = Callable[[AttemptDir], list[tuple[int, str]]]
"""Returns the files of one attempt, each with the number of its learner or node."""


@dataclass(frozen=True, slots=True)
class MeasuredQuery:
    """The requested lines: of one learner or all (None), of one attempt or all in order; with `follow`, until the job
    has ended. Usage ignores `learner`."""

    learner: int | None = None
    follow: bool = False
    attempt: AttemptChoice = None


def read_metrics(
    storage: JobStorage, caller: Caller, job_id: str, query: MeasuredQuery, is_stopped: IsStopped = lambda: False
) -> Iterator[bytes | None]:
    """Yield lines ``{"learner", "attempt", "record"}`` with the records in FfDL's form, those of one learner in order.

    Yields None from time to time while there is no output. Raises :class:`Refused` for a learner or an attempt that
    does not exist. The iterator raises :class:`StreamStopped` once `is_stopped`.
    """
    job = own_job(storage.store, caller, job_id)
    learners = job.most_learners
    require_learner(job, query.learner)
    wanted = [query.learner] if query.learner else list(range(1, learners + 1))
    places: Places = lambda attempt: [(number, attempt.learner_metrics(number)) for number in wanted]  # noqa: E731
    return _lines(storage, _checked(job, query), query, places, ("learner", "record"), is_stopped)


def read_usage(
    storage: JobStorage, caller: Caller, job_id: str, query: MeasuredQuery, is_stopped: IsStopped = lambda: False
) -> Iterator[bytes | None]:
    """Yield lines ``{"node", "attempt", "sample"}`` like :func:`read_metrics`; the samples are those of
    :class:`ffdl_batch.domain.metrics.usage.UsageSample`."""
    job = own_job(storage.store, caller, job_id)
    return _lines(storage, _checked(job, query), query, _usage_files, ("node", "sample"), is_stopped)


def _checked(job: Job, query: MeasuredQuery) -> Job:
    if isinstance(query.attempt, int) and not 1 <= query.attempt <= job.attempt:
        raise wrong_usage(f"{job.id} has {counted(job.attempt, 'attempt')} so far; there is no attempt {query.attempt}")
    return job


def _usage_files(attempt: AttemptDir) -> list[tuple[int, str]]:
    found = []
    for path in Path(attempt.metrics).glob("usage-*.jsonl"):
        number = path.stem.removeprefix("usage-")
        if number.isdecimal():
            found.append((int(number), str(path)))
    return sorted(found)


def _lines(
    storage: JobStorage,
    job: Job,
    query: MeasuredQuery,
    places: Places,
    names: tuple[str, str],
    is_stopped: IsStopped,
) -> Iterator[bytes | None]:
    readers: dict[tuple[int, int], _Reader] = {}
    quiet_since = time.monotonic()
    while True:
        is_over = not query.follow or storage.store.elastic.is_over(job)  # known before the files are read
        for attempt in _attempts(job, query):
            directory = storage.root.job(job.id).attempt(attempt)
            for number, path in places(directory):
                reader = readers.setdefault((attempt, number), _Reader(path, is_stopped))
                for line in reader.new():
                    quiet_since = time.monotonic()
                    if line is None:
                        yield None
                        continue
                    yield f'{{"{names[0]}":{number},"attempt":{attempt},"{names[1]}":{line}}}\n'.encode("ascii")
        if is_over:
            return
        if time.monotonic() - quiet_since >= KEEP_ALIVE_S:
            quiet_since = time.monotonic()
            yield None
        stop_if(is_stopped)
        time.sleep(POLL_S)
        job = storage.store.get(job.id) or job


def _attempts(job: Job, query: MeasuredQuery) -> list[int]:
    return [query.attempt] if isinstance(query.attempt, int) else list(range(1, job.attempt + 1))


class _Reader:
    """A file that grows by whole lines of JSON in ASCII."""

    def __init__(self, path: str, is_stopped: IsStopped) -> None:
        self._path, self._is_stopped = path, is_stopped
        self._offset = 0

    def new(self) -> Iterator[str | None]:
        """Yield new lines that are JSON objects, and None for each piece of a longer text, so that a stream can end
        there."""
        try:
            file = open_regular(self._path)
        except (FileNotFoundError, DamagedFile):
            return
        with file:
            while True:
                stop_if(self._is_stopped)
                if self._offset >= MOST_BYTES:
                    return
                file.seek(self._offset)
                chunk = file.read(CHUNK)
                whole = chunk[: chunk.rfind(b"\n") + 1]
                if not whole and len(chunk) == CHUNK:
                    chunk += file.read(MAX_LINE)
                    end = chunk.find(b"\n") + 1
                    whole = chunk[:end] if end else chunk
                    yield None
                if not whole:
                    return
                self._offset += len(whole)
                for line in whole.splitlines():
                    if _is_object(line):
                        yield line.decode("ascii")


def _is_object(line: bytes) -> bool:
    try:
        return line.isascii() and isinstance(parse_json(line, finite=False), dict)
    except ValueError:
        return False
