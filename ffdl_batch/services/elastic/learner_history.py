"""Read new reports of learners: speed, remaining work and size hints."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import field
from statistics import fmean

from ffdl_batch.attempt.conclusion import keeps_checkpoints
from ffdl_batch.attempt.layout import Root
from ffdl_batch.attempt.reader import DamagedFile, open_regular, size_of
from ffdl_batch.domain.job.elastic import workers_of
from ffdl_batch.domain.job.job import Job
from ffdl_batch.domain.metrics.learner_reports import last_hint, remaining_samples, throughputs
from ffdl_batch.domain.metrics.records import MetricRecord, RecordError, decode_record
from ffdl_batch.elastic.step_times import StepTimes
from ffdl_batch.elastic.throughput_model import Measurement
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.services.outcome.attempt_records import read_launch
from ffdl_batch.store import Attempt

MOST_BYTES = 256 * 1024
"""Maximum size read from one file at a time. If a file has grown by more, only its end is read."""
MOST_ATTEMPTS = 8
"""Number of attempts of a job whose reports are read, newest first."""


@dataclass(slots=True)
class LearnerHistory:
    """What the learners of one job have reported."""

    times: StepTimes = field(default_factory=StepTimes)
    remaining: float | None = None
    """Samples."""
    hint: int | None = None
    """The last hint: a change relative to `hint_learners`, or HOLD."""
    hint_learners: int = 0
    """Number of learners of the attempt that printed the hint."""
    loses_checkpoints: bool = False
    """Whether the checkpoints of its last attempt are deleted when the attempt ends."""
    first_at: dict[tuple[int, int], float | None] = field(default_factory=dict)
    """(attempt, number of its changes in place) → time of the first reported speed after that change; None = before the
    part of the file that was read."""
    _read: dict[int, int] = field(default_factory=dict)
    """Bytes of each attempt's file that were read."""
    _closed: set[int] = field(default_factory=set)
    """Earlier attempts whose files were read to the end."""
    _launched: int = 0
    """The newest attempt whose launch file was read."""

    def look(self, root: Root, job: Job, attempts: Sequence[Attempt]) -> None:
        """Read new reports. A file that has not grown is not opened. If it belongs to an earlier attempt, it is not
        checked again."""
        for attempt in attempts[-MOST_ATTEMPTS:]:
            if attempt.number in self._closed:
                continue
            path = root.job(job.id).attempt(attempt.number).learner_metrics(1)
            if records := self._new_records(attempt, path):
                self._add(job, attempt, records)
            elif attempt.number < attempts[-1].number:
                self._closed.add(attempt.number)
        newest = attempts[-1].number if attempts else 0
        if newest > self._launched and (launch := read_launch(root.job(job.id).attempt(newest))) is not None:
            self._launched, self.loses_checkpoints = newest, not keeps_checkpoints(launch)

    def _new_records(self, attempt: Attempt, path: str) -> list[MetricRecord]:
        number = attempt.number
        done, size = self._read.get(number, 0), size_of(path)
        if size <= done:
            return []
        begin = max(done, size - MOST_BYTES)
        if begin > done:
            self.first_at.setdefault((number, len(attempt.resizes)), None)
        try:
            with open_regular(path) as file:
                file.seek(begin)
                chunk = file.read(MOST_BYTES)
        except (FileNotFoundError, DamagedFile):
            return []
        whole = chunk[: chunk.rfind(b"\n") + 1]
        self._read[number] = begin + len(whole)
        records = []
        for line in whole.splitlines():
            try:
                records.append(decode_record(line.decode("utf-8", "replace")))
            except RecordError:
                continue  # for example the rest of a line whose beginning was skipped
        return records

    def _add(self, job: Job, attempt: Attempt, records: Sequence[MetricRecord]) -> None:
        speeds = throughputs(records)
        learners = attempt.learners or job.spec.resources.learners
        may_have_other_gpus = job.overrides.gpus is not None and attempt.number < job.attempt
        for number, spell in enumerate(_spells(attempt, learners)):
            within = [(at, speed) for at, speed in speeds if spell.begin <= at < spell.end]
            gpus = workers_of(spell.learners, job.effective_spec.resources.gpus)
            if within:
                self.first_at.setdefault((attempt.number, number), within[0][0])
            if within and spell.global_batch >= gpus and not may_have_other_gpus:
                step_s = spell.global_batch / fmean(speed for _, speed in within)
                self.times.add(Measurement(spell.learners, gpus, spell.global_batch // gpus, step_s))
        remaining, hint = remaining_samples(records), last_hint(records)
        if remaining is not None:
            self.remaining = remaining
        if hint is not None:
            self.hint, self.hint_learners = hint, attempt.resizes[-1].learners if attempt.resizes else learners


@dataclass(frozen=True, slots=True)
class _Spell:
    """A period in which an attempt had one size. Reports during a change in place are ignored."""

    begin: float
    end: float
    learners: int
    global_batch: int


def _spells(attempt: Attempt, learners: int) -> list[_Spell]:
    begins = [(-math.inf, learners, attempt.global_batch or 0)]
    begins += [(one.at, one.learners, one.global_batch) for one in attempt.resizes]
    ends = [*(one.requested_at for one in attempt.resizes), math.inf]
    return [_Spell(begin, end, count, batch) for (begin, count, batch), end in zip(begins, ends, strict=True)]
