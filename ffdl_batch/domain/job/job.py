"""Identifiers of jobs and attempts, and the record of a job that the services pass on."""

from __future__ import annotations

import re
import secrets
from dataclasses import field, replace
from typing import NewType

from ffdl_batch.domain.incidents.incident import Incident
from ffdl_batch.domain.job.elastic import workers_of
from ffdl_batch.domain.job.spec import JobSpec
from ffdl_batch.domain.job_state import Cause, JobState, RequestedAction
from ffdl_batch.domain.outcome.continuation import Checkpoint, Spent
from ffdl_batch.host.fast_dataclass import dataclass

JobId = NewType("JobId", str)
"""`training-` and nine characters, as FfDL's: also a DNS label and a directory name."""
Token = NewType("Token", str)
"""One attempt's name in the scheduler: `<job id>-<attempt>`, a lower-case DNS label of at most 40 characters."""

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_JOB_ID = re.compile(r"training-[0-9a-z]{9}", re.ASCII)
_TOKEN = re.compile(r"training-[0-9a-z]{9}-[1-9][0-9]*", re.ASCII)
MAX_TOKEN = 40
RESUMED = "resume"
"""Origin of a value that a resume changed, among the sources of a spec."""


def new_job_id() -> JobId:
    """Return a new id of 45 random bits. The store refuses a collision (one in 3·10¹³), and the caller draws again."""
    return JobId(f"training-{draw_characters()}")


def draw_characters() -> str:
    """Return the random part of an id: nine characters, 45 bits."""
    return "".join(secrets.choice(_ALPHABET) for _ in range(9))


def parse_job_id(text: str) -> JobId:
    """Return the id in `text`, which may then be used in a path. Raises ValueError if it is not an id."""
    if not is_job_id(text):
        raise ValueError(f"{text[:60]!r} is not a training id; ids look like training-0a1b2c3d4")
    return JobId(text)


def is_job_id(text: str) -> bool:
    """Return whether `text` has the form of a job's id."""
    return _JOB_ID.fullmatch(text) is not None


@dataclass(frozen=True, slots=True)
class Overrides:
    """What a resume or a failed node changed for the next attempts. The submitted spec stays as it is."""

    gpus: float | None = None
    """Per learner; None = as submitted."""
    time_s: int | None = None
    """Time limit in seconds; None = as submitted."""
    exclude: tuple[str, ...] = ()
    """Nodes that failed this job."""
    learners: int | None = None
    """Of an elastic job; None = as submitted."""
    global_batch: int | None = None
    """Of an elastic job; None = its first one."""

    @property
    def size(self) -> tuple[int | None, int | None]:
        """The values that change the size of an elastic job."""
        return self.learners, self.global_batch

    def apply(self, spec: JobSpec) -> JobSpec:
        """Return the spec that the next attempt is planned from."""
        resources, batch, sources = spec.resources, spec.batch, dict(spec.sources)
        if self.gpus is not None:
            resources = replace(resources, gpus=self.gpus)
            sources["gpus"] = RESUMED
        if self.time_s is not None:
            batch = replace(batch, time_s=self.time_s)
            sources["batch.time"] = RESUMED
        if self.learners is not None:
            resources = replace(resources, learners=self.learners)
            sources["learners"] = RESUMED
        if self.global_batch is not None and batch.elasticity is not None:
            batch = replace(batch, elasticity=replace(batch.elasticity, global_batch=self.global_batch))
        if self.exclude:
            named = [part for part in batch.exclude.split(",") if part]
            batch = replace(batch, exclude=",".join([*named, *self.exclude]))
        return replace(spec, resources=resources, batch=batch, sources=sources)


def attempt_token(job: JobId, attempt: int) -> Token:
    """Return the token of one attempt, which no other attempt gets."""
    token = f"{job}-{attempt}"
    if attempt < 1 or len(token) > MAX_TOKEN:
        raise ValueError(f"attempt {attempt} of {job} has no token")
    return Token(token)


def is_token(text: str) -> bool:
    """Return whether `text` has the form of an attempt's token."""
    return _TOKEN.fullmatch(text) is not None


@dataclass(frozen=True, slots=True)
class Job:
    """A job's row. Times are seconds since the epoch (UTC)."""

    id: JobId
    uid: int
    user: str
    spec: JobSpec
    state: JobState
    requested_action: RequestedAction
    backend: str
    """Name of the adapter."""
    attempt: int
    native_id: str
    """The scheduler's id of the current attempt; "" until it has one."""
    revision: int
    """Guards every write."""
    submitted_at: float
    updated_at: float
    ended_at: float | None = None
    error_code: str = "000"
    message: str = ""
    exit_code: int | None = None
    exit_signal: int | None = None
    pending_reason: str = ""
    nodes: str = ""
    network: str = ""
    results: str = ""
    model_digest: str = ""
    uncertain_since: float | None = None
    """Set while it is not known whether the scheduler accepted the current attempt."""
    warnings: tuple[str, ...] = ()
    log_tail: tuple[str, ...] = ()
    overrides: Overrides = field(default_factory=Overrides)
    """Holds for the attempts since the submission or the last resume; so does `spent`."""
    spent: Spent = field(default_factory=Spent)
    removed_at: float | None = None
    """Since when the job's directory is being removed, or is gone. Listings omit the job; reports about use keep it."""

    @property
    def effective_spec(self) -> JobSpec:
        """The spec with the changes of a resume."""
        return self.spec if self.overrides == Overrides() else self.overrides.apply(self.spec)

    @property
    def global_batch(self) -> int | None:
        """The batch of an attempt of an elastic job at its present size; None if no batch is permitted."""
        spec = self.effective_spec
        elastic, resources = spec.batch.elasticity, spec.resources
        return None if elastic is None else elastic.batch_on(workers_of(resources.learners, resources.gpus))

    @property
    def most_learners(self) -> int:
        """The largest number of learners that an attempt of the job can have."""
        elastic = self.spec.batch.elasticity
        return self.spec.resources.learners if elastic is None else elastic.max_learners

    @property
    def token(self) -> Token:
        """Token of the current attempt."""
        return attempt_token(self.id, max(1, self.attempt))


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """One change of state, or an event that changes none: a learner was started again, or a pending upload was
    stored."""

    job_id: JobId
    seq: int
    """Counts from 1 without gaps within a job."""
    at: float
    state: JobState
    attempt: int
    cause: str = "progress"
    message: str = ""
    error_code: str = "000"

    def is_restart_of(self, attempt: int) -> bool:
        """Return whether the scheduler itself started this attempt again."""
        return (self.attempt, self.state, self.cause) == (attempt, JobState.QUEUED, Cause.REQUEUED)

    def is_learner_restart_of(self, attempt: int) -> bool:
        """Return whether the node controller started a learner of this attempt again."""
        return (self.attempt, self.cause) == (attempt, Cause.RESTARTED)

    def is_upload_of(self, attempt: int) -> bool:
        """Return whether the pending upload of this attempt was stored."""
        return (self.attempt, self.cause) == (attempt, Cause.STORED)


@dataclass(frozen=True, slots=True)
class Resize:
    """A change of the size of an attempt in place."""

    requested_at: float
    at: float
    """When the attempt had the new size. Between the two times it has neither the old nor the new size."""
    learners: int
    global_batch: int


@dataclass(frozen=True, slots=True)
class AttemptEnd:
    """What is stored about an attempt that ended."""

    interruption: str = ""
    """Value of an Interruption; "" = it was done or failed."""
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    gpu_seconds: float = 0.0
    """GPU time."""
    upload_pending: bool = False
    """Whether results or logs could not be stored yet."""
    simulated: bool = False
    """Whether a drill simulated the interruption."""
    at: float | None = None
    """When it ended, if that is not when its job ends; None = it is, or the attempt has not ended after all."""


@dataclass(frozen=True, slots=True)
class Change:
    """What a step writes: states to pass through, and the columns that change with them. Both commit together."""

    steps: tuple[tuple[JobState, float], ...] = ()
    """States in order, each with its time."""
    cause: str = "progress"
    message: str = ""
    error_code: str = "000"
    columns: dict[str, object] = field(default_factory=dict)
    """Fields of :class:`Job`."""
    attempt_end: AttemptEnd | None = None
    """Stored with the current attempt."""
    succeeded: bool = False
    """The last step is DEPLOYING and belongs to the next attempt, which the head controller has begun to submit. The
    row of that attempt is made with it."""
    unsent: bool = False
    """The only step is PENDING, because the scheduler certainly did not accept the current attempt. It does not count,
    and the next attempt gets its number."""
    restarts: tuple[tuple[float, str], ...] = ()
    """Learners that were started again, oldest first: time and message. Each is an entry beside those of the steps."""
    resizes: tuple[Resize, ...] = ()
    """All changes in place of the current attempt; the last one is new. () = no new change."""
    incidents: tuple[Incident, ...] = ()
    """Incidents of this job; one that is known (attempt and episode) is not written again."""
    attempt_gpus: float | None = None
    """GPUs that the current attempt holds, with shares as fractions of a GPU. None = no change."""
