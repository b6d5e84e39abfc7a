"""Identity of jobs and attempts, and a job as the services hand it around."""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass, field, replace
from typing import NewType

from ffdl_batch.domain.incidents.incident import Incident
from ffdl_batch.domain.job.spec import JobSpec
from ffdl_batch.domain.job_state import Cause, JobState, RequestedAction
from ffdl_batch.domain.outcome.continuation import Checkpoint, Spent

JobId = NewType("JobId", str)
"""`training-` and nine characters, as FfDL's: also a DNS label and a directory name."""
Token = NewType("Token", str)
"""One attempt's name in the scheduler: `<job id>-<attempt>`, a lower-case DNS label of at most 40 characters."""

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_JOB_ID = re.compile(r"training-[0-9a-z]{9}", re.ASCII)
_TOKEN = re.compile(r"training-[0-9a-z]{9}-[1-9][0-9]*", re.ASCII)
MAX_TOKEN = 40
RESUMED = "resume"
"""Where the value of a resumed job came from, among the sources of its spec."""


def new_job_id() -> JobId:
    """A fresh id of 45 random bits; the store refuses the one collision in 3·10¹³ and the caller draws again."""
    return JobId(f"training-{draw_characters()}")


def draw_characters() -> str:
    """What follows the word in an id: nine random characters, 45 bits."""
    return "".join(secrets.choice(_ALPHABET) for _ in range(9))


def parse_job_id(text: str) -> JobId:
    """The id in `text`; ValueError where it is none (so that it may stand in a path)."""
    if not is_job_id(text):
        raise ValueError(f"{text[:60]!r} is not a training id; ids look like training-0a1b2c3d4")
    return JobId(text)


def is_job_id(text: str) -> bool:
    """Whether `text` has the form of a job's id."""
    return _JOB_ID.fullmatch(text) is not None


@dataclass(frozen=True, slots=True)
class Overrides:
    """What was altered for the next attempts, beside the spec that was submitted. `gpus` are per learner, `time_s`
    is the time limit in seconds (None = as submitted); `exclude` are nodes that failed this job."""

    gpus: float | None = None
    time_s: int | None = None
    exclude: tuple[str, ...] = ()

    def apply(self, spec: JobSpec) -> JobSpec:
        """The spec that the next attempt is planned from."""
        resources, batch, sources = spec.resources, spec.batch, dict(spec.sources)
        if self.gpus is not None:
            resources = replace(resources, gpus=self.gpus)
            sources["gpus"] = RESUMED
        if self.time_s is not None:
            batch = replace(batch, time_s=self.time_s)
            sources["batch.time"] = RESUMED
        if self.exclude:
            named = [part for part in batch.exclude.split(",") if part]
            batch = replace(batch, exclude=",".join([*named, *self.exclude]))
        return replace(spec, resources=resources, batch=batch, sources=sources)


def attempt_token(job: JobId, attempt: int) -> Token:
    """The token of one attempt; never given to another."""
    token = f"{job}-{attempt}"
    if attempt < 1 or len(token) > MAX_TOKEN:
        raise ValueError(f"attempt {attempt} of {job} has no token")
    return Token(token)


def is_token(text: str) -> bool:
    """Whether `text` has the form of an attempt's token."""
    return _TOKEN.fullmatch(text) is not None


@dataclass(frozen=True, slots=True)
class Job:
    """A job's row. Times are seconds since the epoch (UTC); `revision` guards every write.

    `backend` is the adapter's name, `native_id` the scheduler's id of the current attempt ("" until it has one).
    `uncertain_since` is set while nobody knows whether the scheduler took the current attempt. `overrides` and `spent`
    belong to the chain of attempts since the submission or the last resume.
    """

    id: JobId
    uid: int
    user: str
    spec: JobSpec
    state: JobState
    requested_action: RequestedAction
    backend: str
    attempt: int
    native_id: str
    revision: int
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
    warnings: tuple[str, ...] = ()
    log_tail: tuple[str, ...] = ()
    overrides: Overrides = field(default_factory=Overrides)
    spent: Spent = field(default_factory=Spent)

    @property
    def effective_spec(self) -> JobSpec:
        """The spec with what a resume altered."""
        return self.spec if self.overrides == Overrides() else self.overrides.apply(self.spec)

    @property
    def token(self) -> Token:
        """The current attempt's token."""
        return attempt_token(self.id, max(1, self.attempt))


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """One change of state, or what happened beside it: a learner was started again, or what an attempt owed was stored.
    `seq` counts from 1 without gaps within a job."""

    job_id: JobId
    seq: int
    at: float
    state: JobState
    attempt: int
    cause: str = "progress"
    message: str = ""
    error_code: str = "000"

    def is_restart_of(self, attempt: int) -> bool:
        """Whether the scheduler started this attempt anew by itself."""
        return (self.attempt, self.state, self.cause) == (attempt, JobState.QUEUED, Cause.REQUEUED)

    def is_learner_restart_of(self, attempt: int) -> bool:
        """Whether a learner of this attempt was started again by its node controller."""
        return (self.attempt, self.cause) == (attempt, Cause.RESTARTED)

    def is_upload_of(self, attempt: int) -> bool:
        """Whether what this attempt owed was stored, later than it had to be."""
        return (self.attempt, self.cause) == (attempt, Cause.STORED)


@dataclass(frozen=True, slots=True)
class AttemptEnd:
    """What is kept of an attempt that ended. `interruption` is an Interruption's value ("" = it was done or failed),
    `played`: a drill played it. `owed`: results or logs could not be stored yet. `gpu_seconds` is GPU time. `at` is
    when it ended, where that is not when its job does (None = it is, or the attempt has not ended after all)."""

    interruption: str = ""
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    gpu_seconds: float = 0.0
    upload_pending: bool = False
    played: bool = False
    at: float | None = None


@dataclass(frozen=True, slots=True)
class Change:
    """What a step wants written: states to pass through, in order, and the columns that change with them.

    `columns` names fields of :class:`Job`. State change and history commit together. `attempt_end` is noted with the
    current attempt. `succeeded`: the last step is DEPLOYING, and belongs to the next attempt, whose submission
    somebody else (the head controller) has begun; its row is made with it. `unsent`: the one step is PENDING, because
    the scheduler surely did not take the current attempt; it was none, and its number is the next one's. `restarts`
    are learners that were started again, oldest first: when, and what to say; entries beside those of the steps.
    `incidents` are of this job; one that is known (attempt and episode) is not written again.
    """

    steps: tuple[tuple[JobState, float], ...] = ()
    cause: str = "progress"
    message: str = ""
    error_code: str = "000"
    columns: dict[str, object] = field(default_factory=dict)
    attempt_end: AttemptEnd | None = None
    succeeded: bool = False
    unsent: bool = False
    restarts: tuple[tuple[float, str], ...] = ()
    incidents: tuple[Incident, ...] = ()
