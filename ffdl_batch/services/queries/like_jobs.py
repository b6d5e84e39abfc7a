"""Read measurements of the user's earlier jobs like a new one, and how often its partition preempts jobs.

A job is like another if name, framework, backend and GPU type are the same. Only the newest LAST jobs with the name
are considered, and measurements are read for at most PATIENCE_S.
"""

from __future__ import annotations

import math
import statistics
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import field, replace
from typing import Any

from ffdl_batch.domain.incidents.stalled_learners import STRAGGLER
from ffdl_batch.domain.job.elastic import workers_of
from ffdl_batch.domain.job.job import HistoryEntry, Job
from ffdl_batch.domain.job.spec import JobSpec
from ffdl_batch.domain.job.submission import Caller
from ffdl_batch.domain.job_state import JobState
from ffdl_batch.domain.metrics.advice import CheckpointAdvice, Form, LikeJob, PastAttempt, advise_checkpoints
from ffdl_batch.domain.metrics.learner_reports import remaining_samples, throughputs
from ffdl_batch.domain.metrics.records import MetricRecord, RecordError, read_record
from ffdl_batch.domain.metrics.usage import UsageSample, read_sample
from ffdl_batch.domain.metrics.usage_report import HOUR_S
from ffdl_batch.domain.metrics.usage_timeline import Asked, AttemptRecord, Run, Step, timeline
from ffdl_batch.domain.outcome.continuation import Interruption
from ffdl_batch.domain.untrusted_json import parse_json
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.services.job_storage import JobStorage
from ffdl_batch.services.queries.measurement_stream import MeasuredQuery, read_metrics, read_usage
from ffdl_batch.services.refusals import StreamStopped
from ffdl_batch.store import Attempt

LAST = 20
"""Maximum number of jobs to consider."""
DAYS, LOOKED_AT = 90, 500
"""Preemptions are counted over this many days, in at most this many jobs."""
PATIENCE_S = 20.0
"""Maximum time for reading metrics and usage samples."""
_MEMORY_KILL = "user.memory"


@dataclass(slots=True)
class LikeJobs:
    """The caller's earlier jobs like one with this spec."""

    storage: JobStorage
    caller: Caller
    spec: JobSpec
    backend: str
    is_late: Callable[[], bool]
    unread: int = 0
    """Number of attempts that could not be read in time."""
    _like: list[Job] = field(default_factory=list)

    def jobs(self) -> list[LikeJob]:
        """Return the jobs that ran, newest first."""
        store, spec = self.storage.store, self.spec
        found = store.list_jobs(uid=self.caller.uid, name=spec.name, limit=LAST)
        self._like = [job for job in found if job.backend == self.backend and _is_like(job.spec, spec)]
        ids = [job.id for job in self._like]
        histories, attempts, incidents = store.histories(ids), store.attempts_of(ids), store.incidents_of(ids)
        made = []
        for job in self._like:
            kinds = [one.incident.kind for one in incidents.get(job.id, ())]
            ran = self._attempts(job, histories.get(job.id, ()), attempts.get(job.id, ()))
            killed = job.spec.resources.memory_bytes if _MEMORY_KILL in kinds else None
            made.append(LikeJob(job.id, job.state is JobState.COMPLETED, tuple(ran), killed, kinds.count(STRAGGLER)))
        return [job for job in made if job.attempts]

    def _attempts(self, job: Job, history: Sequence[HistoryEntry], attempts: Sequence[Attempt]) -> list[PastAttempt]:
        runs = _runs_of(history, attempts, self.storage.clock.now())
        found = []
        for attempt in attempts:
            own = [run for run in runs if run.attempt == attempt.number]
            has_other_gpus = job.overrides.gpus is not None and attempt.number < job.attempt
            if not own or has_other_gpus or attempt.interruption == Interruption.STAGED:
                continue
            resources = job.effective_spec.resources
            learners = attempt.learners or job.spec.resources.learners
            one = PastAttempt(
                Form(learners, resources.gpus, attempt.global_batch),
                workers_of(learners, resources.gpus),
                run_s=math.fsum(run.length_s for run in own),
                processing_s=math.fsum(run.phase_within(JobState.PROCESSING, 0.0, math.inf) for run in own),
                timed_out=attempt.interruption == Interruption.TIMEOUT,
            )
            try:
                found.append(self._measured(one, job, attempt.number))
            except StreamStopped:
                self.unread += 1
                found.append(one)
        return found

    def _measured(self, one: PastAttempt, job: Job, number: int) -> PastAttempt:
        """Return the attempt with its measurements. Raises StreamStopped if there is no time left."""
        query = MeasuredQuery(1, attempt=number)
        speeds, left = array("d"), None
        for record in _records(read_metrics(self.storage, self.caller, job.id, query, self.is_late)):
            speeds.extend(speed for _, speed in throughputs([record]))
            samples = remaining_samples([record])
            left = samples if left is None else max(left, samples or 0.0)
        use = _Use()
        for line in read_usage(self.storage, self.caller, job.id, query, self.is_late):
            use.add(line)
        cpus = job.spec.resources.cpus * one.form.learners
        return replace(
            one,
            nodes=max(1, len(use.last)),
            samples_per_s=statistics.median(speeds) if speeds else None,
            remaining=left,
            memory_bytes=use.memory_bytes or None,
            gpu_use=use.busy_s / use.device_s if use.device_s else None,
            cpu_use=use.cpu_s / (cpus * use.seconds / len(use.last)) if use.seconds and cpus else None,
        )

    def checkpoints(self) -> tuple[CheckpointAdvice | None, list[str]]:
        """Return how often to save a checkpoint in the partition, and a note if this is unknown."""
        store, now, spec = self.storage.store, self.storage.clock.now(), self.spec
        jobs = [
            job
            for job in store.list_jobs(uid=self.caller.uid, since=now - DAYS * 86400, limit=LOOKED_AT)
            if job.backend == self.backend and job.spec.batch.partition == spec.batch.partition
        ]
        ids = [job.id for job in jobs]
        histories, attempts = store.histories(ids), store.attempts_of(ids)
        ran_s = math.fsum(
            run.length_s for job_id in ids for run in _runs_of(histories.get(job_id, ()), attempts.get(job_id, ()), now)
        )
        preempted = [
            one
            for job_id in ids
            for one in attempts.get(job_id, ())
            if one.interruption == Interruption.PREEMPTION and not one.simulated
        ]
        own = {job.id for job in self._like}
        times = [
            one.checkpoint.took_s
            for job_id in ids
            if job_id in own
            for one in attempts.get(job_id, ())
            if one.checkpoint.confirmed and one.checkpoint.took_s
        ]
        found = advise_checkpoints(times, len(preempted), ran_s)
        if found is not None or not (preempted or spec.batch.preemptible):
            return found, []
        missing = (
            "no checkpoint of these jobs was measured; to measure one: ffdl drill preempt MANIFEST"
            if preempted
            else f"your jobs ran in this partition for {ran_s / HOUR_S:.1f} hours without a preemption"
        )  # fmt: skip
        return None, [f"no checkpoint interval: {missing}"]


def _is_like(one: JobSpec, other: JobSpec) -> bool:
    same_type = one.resources.gpu_type.lower() == other.resources.gpu_type.lower()
    return same_type and one.framework.name == other.framework.name


def _runs_of(history: Sequence[HistoryEntry], attempts: Sequence[Attempt], now: float) -> Sequence[Run]:
    steps = [Step(one.at, one.state, one.attempt, one.cause) for one in history]
    records = {
        one.number: AttemptRecord(one.number, one.created_at, ended_at=one.ended_at, interruption=one.interruption)
        for one in attempts
    }
    return timeline(steps, records, Asked(), now).runs


def _records(lines: Iterable[bytes | None]) -> Iterable[MetricRecord]:
    """Yield the records that report a speed."""
    for line in lines:
        if line is None or b'"throughput"' not in line:
            continue
        try:
            yield read_record(parse_json(line, finite=False)["record"])
        except (ValueError, RecordError):
            continue


@dataclass(slots=True)
class _Use:
    """Sums of usage samples."""

    last: dict[int, UsageSample] = field(default_factory=dict)
    """By node."""
    memory_bytes: int = 0
    busy_s: float = 0.0
    device_s: float = 0.0
    cpu_s: float = 0.0
    seconds: float = 0.0
    """Of all nodes together."""

    def add(self, line: bytes | None) -> None:
        """Add the sample of a line."""
        if line is None:
            return
        try:
            plain: Any = parse_json(line)
            node, sample = int(plain["node"]), read_sample(plain["sample"])
        except ValueError:
            return
        before = self.last.get(node)
        self.last[node] = sample
        held = [use.memory_bytes or 0 for use in sample.learners.values()]
        self.memory_bytes = max([self.memory_bytes, *held])
        if before is None or sample.at <= before.at:
            return
        seconds = sample.at - before.at
        shares = [min(1.0, max(0.0, gpu.used)) for gpu in sample.gpus if gpu.used is not None]
        self.seconds += seconds
        self.device_s += seconds * len(shares)
        self.busy_s += seconds * sum(shares)
        for learner, use in sample.learners.items():
            earlier = before.learners.get(learner)
            if earlier is not None:
                self.cpu_s += max(0.0, (use.cpu_s or 0.0) - (earlier.cpu_s or 0.0))
