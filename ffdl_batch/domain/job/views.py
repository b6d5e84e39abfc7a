"""What the daemon says about jobs over its socket, and what ``--json`` prints: one schema for both.

`SCHEMA` counts up when a field changes its meaning or goes; a new field is no change. All times are seconds since
the epoch, UTC. The client reads these with :mod:`ffdl_batch.domain.codec`, so it needs no other library.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from ffdl_batch.domain.data.store_kinds import StoreAddress
from ffdl_batch.domain.findings import Finding
from ffdl_batch.domain.incidents.incident import IncidentRow

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
    :class:`ffdl_batch.domain.outcome.continuation.Checkpoint`), seconds from the request to the learners' end, and when
    the newest file of $CHECKPOINT_DIR was written. `played`: a drill played the interruption. `upload_pending`:
    results or logs could not be stored yet; unless a next attempt stores them, the daemon begins at `store_by` at the
    latest (None = it may have begun). `pending_upload_directory`: in words, where they are, unless in the attempt's own
    directory. `uploaded_at`: when they were stored after the job had gone on or ended (None = nothing was pending, or
    it still is).
    `results` and `logs` are the attempt's own directories, "" where none of its learners is known to have started.
    `restarts`: how often the scheduler started it anew, oldest first. `learner_restarts`: each learner that failed and
    was started again while the others went on, oldest first.
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
    upload_pending: bool = False
    played: bool = False
    results: str = ""
    logs: str = ""
    pending_upload_directory: str = ""
    store_by: float | None = None
    restarts: tuple[RestartView, ...] = ()
    learner_restarts: tuple[RestartView, ...] = ()
    uploaded_at: float | None = None


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
    for the whole job; `results_note`: where results are, though there is no directory of them here. `stored_in` is the
    URL of the store that results go to ("" = they go to none, or to a directory), `stored_at` its endpoint, where the
    URL does not say it. `settled_at`: when that was stored that could not be, which is the job's error (None = it is
    not, or not yet). `log_tail` holds the last lines of the learner that failed.
    `attempts` is the chain, oldest first; a list of jobs leaves it out. `overrides` are what a resume or a failed node
    altered for the next attempts, in words by manifest key (gpus, batch.time, batch.exclude). `array` is the id of the
    array that the job is element `array_index` of ("" = none), `array_values` what its sweep sets for it.
    `learner_list`, of one job with several learners: those of the last attempt whose learners started; a list of jobs
    leaves it out, and it is empty where the attempt's files cannot be read. `moving` says what moves to or from the
    job's stores, and how far it was at `moving_at`; likewise left out of lists. So are `incidents`, what went wrong
    with it, in the order in which it happened.
    """

    id: str
    name: str
    user: str
    state: str
    requested_action: str
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
    moving: str = ""
    moving_at: float | None = None
    stored_in: str = ""
    stored_at: str = ""
    settled_at: float | None = None
    incidents: tuple[IncidentRow, ...] = ()
    results_note: str = ""


@dataclass(frozen=True, slots=True)
class LeftView:
    """Where something lies that a job left: in a directory of the daemon's host, or below `prefix` in a store. Beside a
    store, `directory` is the attempt's own, which is had by its number ("" = there is none).

    `kind`: results, model, logs or checkpoint. `attempt`: whose it is, 0 = the whole job's. `name`: only this file of
    the directory. `inode` is the directory's, by which it is told from another of that path. `is_partial`: the job has
    not ended. `secrets` is the job's file of secrets, which the store's credentials name. `note` is for people. `roots`
    are absolute paths by which learners may know the directory. `claimed`: the directory is in a cluster's claim, as
    ``claim/path``; ``/path`` is in the claim of jobs' directories.
    """

    job_id: str
    kind: str
    state: str
    attempt: int = 0
    directory: str = ""
    name: str = ""
    inode: int = 0
    store: StoreAddress | None = None
    prefix: str = ""
    secrets: str = ""
    is_partial: bool = False
    note: str = ""
    roots: tuple[str, ...] = ()
    claimed: str = ""


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
    """One change of state, or (`cause` restarted) a learner that was started again, or (stored) that what an attempt
    owed was stored after its job had gone on or ended; `seq` counts from 1 without gaps within a job."""

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
    did not say it. `offset` is where the text begins in all that the learner printed, `end` where it ends with its
    newline, in bytes; 0 from a daemon that does not say it. `partial`: the line goes on with another piece.
    """

    learner: int
    index: int
    line: str
    at: float | None = None
    attempt: int = 0
    offset: int = 0
    end: int = 0
    partial: bool = False


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a request was refused. `exit_code` is what a command ends with (see domain.exit_codes)."""

    code: str
    message: str
    exit_code: int
    cure: str = ""
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True, slots=True)
class SecretView:
    """A named secret of the user's: its name, when its value was set, and how many jobs refer to it that live or owe a
    store."""

    name: str
    set_at: float
    jobs: int = 0


@dataclass(frozen=True, slots=True)
class PlannedFileView:
    """A file that would be written, by its name in the attempt's directory."""

    name: str
    text: str
    mode: int


@dataclass(frozen=True, slots=True)
class PlanView:
    """What ``--dry-run`` prints: exactly what would be sent. `objects` are those of a backend with an API, each as a
    document of YAML, in the order in which they are sent."""

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
    objects: tuple[str, ...] = ()
