"""What the daemon says about jobs over its socket, and what ``--json`` prints: one schema for both.

`SCHEMA` counts up when a field changes its meaning or goes; a new field is no change. All times are seconds since
the epoch, UTC. The client reads these with :mod:`ffdl_batch.domain.codec`, so it needs no other library.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from ffdl_batch.domain.findings import Finding

SCHEMA = 1

AttemptChoice = int | Literal["all"] | None
"""Whose log: that of one attempt, of all in order, or (None) of the newest one of which there is any."""


@dataclass(frozen=True, slots=True)
class RestartView:
    """The scheduler started an attempt anew by itself, under the same id: when it had ended the run before, and why."""

    at: float
    message: str = ""


@dataclass(frozen=True, slots=True)
class AttemptView:
    """One attempt of a job.

    `interruption` says what ended it before the training was done ("" = nothing, or it has not ended): halt, timeout,
    preemption, node_failure, failure. `checkpoint_*`: asked for, confirmed, answered (see
    :class:`ffdl_batch.domain.continuation.Checkpoint`), seconds from the request to the learners' end, and when the
    newest file of $CHECKPOINT_DIR was written. `played`: a drill played the interruption. `owed`: results or logs could
    not be stored yet; the daemon, where no next attempt does, begins with that at `store_by` at the latest. `results`
    and `logs` are the attempt's own directories, "" where none of its learners is known to have started. `restarts`:
    how often the scheduler started it anew, oldest first. `learner_restarts`: each learner that failed and was started
    again while the others went on, oldest first.
    """

    number: int
    native_id: str
    backend: str
    created_at: float
    submitted_at: float | None = None
    ended_at: float | None = None
    error_code: str = ""
    interruption: str = ""
    nodes: str = ""
    network: str = ""
    network_by: str = ""
    checkpoint_asked: bool = False
    checkpoint_confirmed: bool = False
    checkpoint_answered: bool = False
    checkpoint_took_s: float | None = None
    checkpoint_saved_at: float | None = None
    gpu_seconds: float = 0.0
    owed: bool = False
    played: bool = False
    results: str = ""
    logs: str = ""
    store_by: float | None = None
    restarts: tuple[RestartView, ...] = ()
    learner_restarts: tuple[RestartView, ...] = ()


class LearnerState(StrEnum):
    """What a learner does."""

    WAITING = "waiting"
    """It was not started yet; of an attempt that has ended: it never was."""
    RUNNING = "running"
    RESTARTING = "restarting"
    """It failed, and is about to be started again."""
    ENDED = "ended"
    LOST = "lost"
    """The attempt has ended, and nobody saw the learner's end."""


@dataclass(frozen=True, slots=True)
class LearnerView:
    """One learner of an attempt. `role` "" = the job has none; `index` is its number in its role, from 0, `name` what
    the others reach it by, `node` "" = it is not known yet. `exit_code` and `exit_signal` are those of its last end,
    `ended_by` is why the platform ended it ("" = it ended of itself). `restarts`: how often it was started again after
    it had failed, in the latest run of the attempt."""

    number: int
    state: str
    role: str = ""
    index: int = 0
    service: bool = False
    name: str = ""
    node: str = ""
    exit_code: int | None = None
    exit_signal: int | None = None
    ended_by: str = ""
    restarts: int = 0


@dataclass(frozen=True, slots=True)
class Resume:
    """What a resume alters; None = as it was. `gpus` are per learner, `time` is a time limit as sbatch reads it."""

    gpus: float | None = None
    time: str | None = None


@dataclass(frozen=True, slots=True)
class JobView:
    """One job. `timestamps` holds when each state was reached since the job last went back: the times of its newest
    attempt (of the newest run of that, where the scheduler started it anew), from its waiting on. Those of the
    attempts before are in `attempts` and among the events.

    `network_requested` is the manifest's word, `network` the level ("" before deployment), `network_by` by what its
    learners have it, once they were found in it ("" = they were not yet).
    `results` and `logs` are directories: those of the last attempt whose learners started, or where they are kept
    for the whole job. `log_tail` holds the last lines of the learner that failed.
    `attempts` is the chain, oldest first; a list of jobs leaves it out. `overrides` are what a resume or a failed node
    altered for the next attempts, in words by manifest key (gpus, batch.time, batch.exclude). `array` is the id of the
    array that the job is element `array_index` of ("" = none), `array_values` what its sweep sets for it.
    `learner_list`, of one job with several learners: those of the last attempt whose learners started; a list of jobs
    leaves it out, and it is empty where the attempt's files cannot be read.
    """

    id: str
    name: str
    user: str
    state: str
    wish: str
    backend: str
    native_id: str
    attempt: int
    framework: str
    framework_version: str
    learners: int
    cpus: float
    gpus: float
    gpu_type: str
    memory_bytes: int
    submitted_at: float
    updated_at: float
    ended_at: float | None = None
    error_code: str = "000"
    message: str = ""
    cure: str = ""
    exit_code: int | None = None
    exit_signal: int | None = None
    pending_reason: str = ""
    nodes: str = ""
    network_requested: str = ""
    network: str = ""
    network_by: str = ""
    results: str = ""
    logs: str = ""
    job_dir: str = ""
    warnings: tuple[str, ...] = ()
    log_tail: tuple[str, ...] = ()
    timestamps: Mapping[str, float] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)
    uncertain_since: float | None = None
    attempts: tuple[AttemptView, ...] = ()
    overrides: Mapping[str, str] = field(default_factory=dict)
    array: str = ""
    array_index: int | None = None
    array_values: Mapping[str, str] = field(default_factory=dict)
    learner_list: tuple[LearnerView, ...] = ()


@dataclass(frozen=True, slots=True)
class ArrayView:
    """An array of jobs. `states` counts its elements by state; `limit` is how many of them may run at once (None =
    all), `variables` are the names that its sweep sets. `ended`: all of its elements have."""

    id: str
    name: str
    user: str
    backend: str
    elements: int
    states: Mapping[str, int]
    submitted_at: float
    ended: bool
    limit: int | None = None
    variables: tuple[str, ...] = ()
    directory: str = ""


@dataclass(frozen=True, slots=True)
class EventView:
    """One change of state, or (`cause` restarted) a learner that was started again; `seq` counts from 1 without gaps
    within a job."""

    job_id: str
    seq: int
    at: float
    state: str
    attempt: int
    cause: str
    message: str = ""
    error_code: str = "000"


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line of one learner's log in one attempt, or a piece of a line that is very long.

    `index` counts lines from 1; `at` is None where no time is known. `attempt` is 0 from a daemon of a release that
    did not say it. `offset` is where the text begins in the learner's file, in bytes.
    """

    learner: int
    index: int
    line: str
    at: float | None = None
    attempt: int = 0
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a request was refused. `exit_code` is what a command ends with (see domain.exit_codes)."""

    code: str
    message: str
    exit_code: int
    cure: str = ""
    findings: tuple[Finding, ...] = ()


class Expected(StrEnum):
    """What a submission has to come to, for who can do with nothing else."""

    ANY = "any"
    JOB = "job"
    ARRAY = "array"


@dataclass(frozen=True, slots=True)
class Submission:
    """One job to submit.

    `manifest` is the text, `manifest_name` and `base_dir` say where it came from (for messages and relative
    paths). `archive` is the SHA-256 (hex) of a model archive that was uploaded before. `options` are sbatch-like
    long option names without dashes to their texts ("" for flags), as given on the command line;
    `environment_options` likewise but read from SBATCH_* and FFDL_* (lower precedence than the manifest's values).
    `environ` holds the variables that --export needs. `key` makes a repeated request harmless. What does not
    come to `expected` is refused.
    """

    manifest: str
    manifest_name: str
    base_dir: str
    archive: str
    key: str
    options: Mapping[str, str] = field(default_factory=dict)
    environment_options: Mapping[str, str] = field(default_factory=dict)
    environ: Mapping[str, str] = field(default_factory=dict)
    backend: str = ""
    strict: bool = False
    expected: Expected = Expected.ANY


@dataclass(frozen=True, slots=True)
class SubmissionResult:
    """What became of one submission: an id, or a problem. Never both.

    Of an array, `id` is the array's and `elements` are those of its jobs, by index. `backend` is where it runs (""
    from a daemon of a release that did not say it).
    """

    id: str = ""
    problem: Problem | None = None
    warnings: tuple[str, ...] = ()
    network: str = ""
    elements: tuple[str, ...] = ()
    backend: str = ""


@dataclass(frozen=True, slots=True)
class PlannedFileView:
    """A file that would be written, by its name in the attempt's directory."""

    name: str
    text: str
    mode: int


@dataclass(frozen=True, slots=True)
class PlanView:
    """What ``--dry-run`` prints: exactly what would be sent."""

    backend: str
    script: str
    submit_argv: tuple[str, ...]
    learner_argv: tuple[str, ...]
    environment: Mapping[str, str]
    files: tuple[PlannedFileView, ...]
    network_requested: str
    network: str
    warnings: tuple[str, ...] = ()
    trial: str = ""


@dataclass(frozen=True, slots=True)
class BackendHealth:
    """One backend as the daemon last saw it. `unreachable_since` None = it answers; else `detail` says what came of the
    last question, and `asked_again_at` when the next one is due. `accounts_for` is the backend whose accounting this is
    ("" = it is a scheduler). `maybe_before`: it has not answered this daemon yet, so the outage may be older."""

    name: str
    unreachable_since: float | None = None
    detail: str = ""
    version: str = ""
    asked_again_at: float | None = None
    accounts_for: str = ""
    maybe_before: bool = False


@dataclass(frozen=True, slots=True)
class DatabaseTrouble:
    """The daemon cannot write into its database, or not even read it: since when, and in `detail` which one it is, why,
    and what helps. States of jobs are those that were written before. `holds_last_copy`: the database is in no file
    that outlives the daemon, which must not be ended."""

    since: float
    detail: str
    holds_last_copy: bool = False


@dataclass(frozen=True, slots=True)
class Health:
    """The daemon itself. `live_jobs` None = the database cannot be asked."""

    version: str
    host: str
    pid: int
    uid: int
    started_at: float
    database: str
    live_jobs: int | None
    backends: tuple[BackendHealth, ...] = ()
    schema: int = SCHEMA
    database_trouble: DatabaseTrouble | None = None
