"""Convert rows to values and back; define the values that only the store has."""

from __future__ import annotations

import dataclasses
import json
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import field
from enum import StrEnum
from typing import Any, TypeVar

from ffdl_batch.domain.codec import from_plain, to_plain
from ffdl_batch.domain.job.job import AttemptEnd, HistoryEntry, Job, JobId, Overrides, Resize, Token
from ffdl_batch.domain.job.spec import JobSpec
from ffdl_batch.domain.job_state import JobState, RequestedAction
from ffdl_batch.domain.outcome.continuation import Checkpoint, Spent
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.store.errors import ROW_ERRORS, RowDamaged
from ffdl_batch.store.schema import ATTEMPTS, HISTORY, JOBS

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class NewJob:
    """A job to add. `submit_key` makes a repeated request harmless; "" = every request is a new job."""

    id: JobId
    uid: int
    user: str
    spec: JobSpec
    backend: str
    submit_key: str
    model_digest: str
    submitted_at: float
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LeasedJob:
    """A job that the caller alone may deploy while the lease lasts.

    `deploy_tries` counts the tries of this deployment that were put off (released with a time to try next).
    """

    job: Job
    lease_token: str
    deploy_tries: int = 0


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt of a job. `outcome_code` is the error code it ended with ("" while it has not ended).

    The fields from `interruption` to `simulated` are those of :class:`ffdl_batch.domain.job.job.AttemptEnd`.
    """

    job_id: JobId
    number: int
    token: Token
    backend: str
    native_id: str
    created_at: float
    submitted_at: float | None = None
    ended_at: float | None = None
    outcome_code: str = ""
    network: str = ""
    nodes: str = ""
    interruption: str = ""
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    gpu_seconds: float = 0.0
    upload_pending: bool = False
    simulated: bool = False
    learners: int = 0
    """0 = those that the job was submitted with: an older release began the attempt."""
    global_batch: int | None = None
    """None = the job is not elastic."""
    gpus: float | None = None
    """GPUs that it holds, with shares as fractions of a GPU. None = unknown: it is not submitted yet, or an older
    release started it."""
    resizes: tuple[Resize, ...] = ()
    """Changes of its size in place, oldest first."""


class SizeState(StrEnum):
    """Stage of a change of size."""

    HALTING = "halting"
    """The current attempt is being halted. When the job is HALTED, the scaler resumes it."""
    ADMITTED = "admitted"
    """The deployer may submit the attempt."""
    SHRINKING = "shrinking"
    """Learners are leaving the current attempt. When their nodes are released, the attempt has the size."""
    WITHDRAWN = "withdrawn"
    """The owner halted the job during the change, or the job waits for GPUs of its pool."""


@dataclass(frozen=True, slots=True)
class JobSize:
    """The last size that a scaler gave to a job."""

    job_id: JobId
    state: SizeState
    attempt: int
    """HALTING: the attempt that ends. SHRINKING: the attempt that shrinks. Otherwise: the attempt that has the size."""
    learners: int
    """0 = the job waits."""
    global_batch: int
    requested_at: float
    """When the scaler decided on this size."""
    restart_s: float | None = None
    """Duration of the last change, from its request to the first report after it. None = unknown."""


NOTHING = "{}"
"""JSON of a record whose fields all have their defaults; also the default of the columns."""
JOB_FIELDS = tuple(part.name for part in dataclasses.fields(Job))
JOB_COLUMNS = tuple(JOBS.c[name] for name in JOB_FIELDS)
HISTORY_COLUMNS = tuple(HISTORY.c[part.name] for part in dataclasses.fields(HistoryEntry))
ATTEMPT_COLUMNS = tuple(ATTEMPTS.c[part.name] for part in dataclasses.fields(Attempt))
_ID, _SPEC, _STATE, _REQUESTED_ACTION, _WARNINGS, _LOG_TAIL, _OVERRIDES, _SPENT = (
    JOB_FIELDS.index(name)
    for name in ("id", "spec", "state", "requested_action", "warnings", "log_tail", "overrides", "spent")
)
_CHECKPOINT, _UPLOAD_PENDING, _SIMULATED, _RESIZES = (
    [part.name for part in dataclasses.fields(Attempt)].index(name)
    for name in ("checkpoint", "upload_pending", "simulated", "resizes")
)
_STATES = {state.value: state for state in JobState}
_REQUESTED_ACTIONS = {request.value: request for request in RequestedAction}


class JobReader:
    """Converts rows to jobs, and caches the most recent ones by revision.

    A row of the same revision is the same job, and decoding it costs far more than reading its revision. Specs never
    change.
    """

    def __init__(self, capacity: int = 12_000) -> None:
        self._capacity = capacity
        self._jobs: OrderedDict[str, Job] = OrderedDict()

    def known(self, job_id: str, revision: int) -> Job | None:
        """Return the job of that revision if it is in the cache."""
        job = self._jobs.get(job_id)
        return job if job is not None and job.revision == revision else None

    def job(self, row: Sequence[Any]) -> Job:
        """Return the job of a row that begins with JOB_COLUMNS. Raises RowDamaged."""
        try:
            job = self._made(list(row[: len(JOB_FIELDS)]))
        except ROW_ERRORS as error:
            raise RowDamaged(f"the row of {row[_ID]!r} cannot be read: {type(error).__name__}: {error}") from error
        self.keep(job)
        return job

    def _made(self, values: list[Any]) -> Job:
        values[_SPEC] = self._spec(values[_ID], values[_SPEC])
        values[_STATE] = _STATES[values[_STATE]]
        values[_REQUESTED_ACTION] = _REQUESTED_ACTIONS[values[_REQUESTED_ACTION]]
        values[_WARNINGS] = decode_lines(values[_WARNINGS])
        values[_LOG_TAIL] = decode_lines(values[_LOG_TAIL])
        values[_OVERRIDES] = _decode_record(Overrides, values[_OVERRIDES], f"{values[_ID]}.overrides")
        values[_SPENT] = _decode_record(Spent, values[_SPENT], f"{values[_ID]}.spent")
        return Job(*values)

    def keep(self, job: Job) -> None:
        """Put a job into the cache that is certainly stored in this form."""
        self._jobs[job.id] = job
        while len(self._jobs) > self._capacity:
            self._forget_oldest()

    def _spec(self, job_id: str, text: str) -> JobSpec:
        job = self._jobs.get(job_id)
        return job.spec if job is not None else from_plain(JobSpec, json.loads(text), f"{job_id}.spec")

    def _forget_oldest(self) -> None:
        try:
            self._jobs.popitem(last=False)
        except KeyError:  # another thread made room
            return


def history_entry(row: Sequence[Any]) -> HistoryEntry:
    """Return the entry of a row of HISTORY_COLUMNS."""
    job_id, seq, at, state, *rest = row
    return HistoryEntry(job_id, seq, at, JobState(state), *rest)


def attempt(row: Sequence[Any]) -> Attempt:
    """Return the attempt of a row of ATTEMPT_COLUMNS."""
    values = list(row)
    values[_CHECKPOINT] = _decode_record(Checkpoint, values[_CHECKPOINT], "attempts.checkpoint")
    values[_UPLOAD_PENDING], values[_SIMULATED] = bool(values[_UPLOAD_PENDING]), bool(values[_SIMULATED])
    values[_RESIZES] = decode_resizes(values[_RESIZES])
    return Attempt(*values)


def encode_resizes(resizes: Sequence[Resize]) -> str:
    """Return changes in place as JSON."""
    return json.dumps([to_plain(one) for one in resizes], separators=(",", ":"))


def decode_resizes(text: str) -> tuple[Resize, ...]:
    """Return the changes in place that :func:`encode_resizes` encoded."""
    return () if text == "[]" else tuple(from_plain(Resize, one, "attempts.resizes") for one in json.loads(text))


def attempt_end_columns(end: AttemptEnd) -> dict[str, Any]:
    """Return the columns of an attempt's end."""
    return {
        "interruption": end.interruption,
        "checkpoint": encode_record(end.checkpoint),
        "gpu_seconds": end.gpu_seconds,
        "upload_pending": int(end.upload_pending),
        "simulated": int(end.simulated),
    }


def encode_record(record: Overrides | Spent | Checkpoint) -> str:
    """Return a small record as ASCII JSON, which can hold any string. Fields with their defaults are omitted."""
    fresh = to_plain(type(record)())
    return json.dumps({k: v for k, v in to_plain(record).items() if v != fresh[k]}, separators=(",", ":"))


def _decode_record(kind: type[R], text: str, path: str) -> R:
    return kind() if text == NOTHING else from_plain(kind, json.loads(text), path)


def encode_lines(lines: Sequence[str]) -> str:
    """Return lines as ASCII JSON, which can hold any string."""
    return json.dumps(list(lines))


def decode_lines(text: str) -> tuple[str, ...]:
    """Return the lines that :func:`encode_lines` encoded."""
    return () if text == "[]" else tuple(json.loads(text))


def encode_spec(spec: JobSpec) -> str:
    """Return a spec as ASCII JSON, which can hold any string."""
    return json.dumps(to_plain(spec), separators=(",", ":"))


def encode_columns(columns: dict[str, Any]) -> dict[str, Any]:
    """Return fields of a job as values of its columns."""
    encoded = dict(columns)
    for name in ("warnings", "log_tail"):
        if name in encoded:
            encoded[name] = encode_lines(encoded[name])
    for name in ("state", "requested_action"):
        if name in encoded:
            encoded[name] = encoded[name].value
    for name in ("overrides", "spent"):
        if name in encoded:
            encoded[name] = encode_record(encoded[name])
    return encoded
