"""What the daemon returns about jobs over its socket, and what ``--json`` prints: one schema for both.

`SCHEMA` increases if a field is removed or changes its meaning; a new field is no change. All times are seconds since
the epoch, UTC. The client reads these with :mod:`ffdl_batch.domain.codec`, so it needs no other library.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from enum import StrEnum
from typing import Literal

from ffdl_batch.domain.data.store_kinds import StoreAddress
from ffdl_batch.domain.findings import Finding
from ffdl_batch.domain.incidents.incident import IncidentRow
from ffdl_batch.host.fast_dataclass import dataclass

SCHEMA = 1

AttemptChoice = int | Literal["all"] | None
"""Which log: that of one attempt, of all in order, or (None) of the newest attempt that has one."""


@dataclass(frozen=True, slots=True)
class RestartView:
    """A run of an attempt that ended and was followed by another, which the scheduler started under the same id."""

    at: float
    """When the run ended."""
    message: str = ""


@dataclass(frozen=True, slots=True)
class ResizeView:
    """A change of the size of an attempt in place."""

    at: float
    """When the attempt had the new size."""
    learners: int
    global_batch: int


@dataclass(frozen=True, slots=True)
class AttemptView:
    """One attempt of a job."""

    number: int
    native_id: str
    backend: str
    created_at: float
    submitted_at: float | None = None
    ended_at: float | None = None
    error_code: str = ""
    interruption: str = ""
    """What ended it before the training was done: halt, timeout, preemption, node_failure, failure; "" = nothing, or it
    has not ended."""
    nodes: str = ""
    network: str = ""
    network_by: str = ""
    checkpoint_asked: bool = False
    """See :class:`ffdl_batch.domain.outcome.continuation.Checkpoint` for this field and the two below."""
    checkpoint_confirmed: bool = False
    checkpoint_answered: bool = False
    checkpoint_took_s: float | None = None
    """Seconds from the checkpoint request to the end of the learners."""
    checkpoint_saved_at: float | None = None
    """When the newest file of $CHECKPOINT_DIR was written."""
    gpu_seconds: float = 0.0
    upload_pending: bool = False
    """Whether results or logs could not be stored yet."""
    simulated: bool = False
    """Whether a drill simulated the interruption."""
    results: str = ""
    """Directory of this attempt; "" if none of its learners is known to have started. So is `logs`."""
    logs: str = ""
    pending_upload_directory: str = ""
    """Where the pending upload is, in words, if it is not in the directory of the attempt."""
    store_by: float | None = None
    """When the daemon starts the pending upload at the latest, unless a next attempt does it; None = it may have
    begun."""
    restarts: tuple[RestartView, ...] = ()
    """Runs that the scheduler followed by another one, oldest first."""
    learner_restarts: tuple[RestartView, ...] = ()
    """Each failure of a learner after which only that learner was started again, oldest first."""
    uploaded_at: float | None = None
    """When a pending upload was stored; None = nothing was pending, or it still is."""
    learners: int = 0
    """Number of learners at the start; 0 = unknown: an older release started the attempt."""
    global_batch: int | None = None
    """Samples per step at the start; None = the job is not elastic."""
    gpus: float | None = None
    """GPUs that it holds, with shares as fractions of a GPU; None = unknown: it is not submitted yet, or an older
    release started it."""
    resizes: tuple[ResizeView, ...] = ()
    """Changes of its size in place, oldest first."""


class LearnerState(StrEnum):
    """What a learner is doing."""

    WAITING = "waiting"
    """It was not started yet. In an attempt that has ended: it was never started."""
    RUNNING = "running"
    RESTARTING = "restarting"
    """It failed, and will be started again."""
    ENDED = "ended"
    LOST = "lost"
    """The attempt has ended, and the learner's end was not recorded."""


@dataclass(frozen=True, slots=True)
class LearnerView:
    """One learner of an attempt."""

    number: int
    state: str
    role: str = ""
    """"" = the job has no roles."""
    index: int = 0
    """Number in its role, from 0."""
    service: bool = False
    name: str = ""
    """Host name by which the other learners reach it."""
    node: str = ""
    """"" = not known yet."""
    exit_code: int | None = None
    """Of its last end; so is `exit_signal`."""
    exit_signal: int | None = None
    ended_by: str = ""
    """Why the platform ended it; "" = it ended by itself."""
    restarts: int = 0
    """How often it was started again after a failure, in the latest run of the attempt."""


@dataclass(frozen=True, slots=True)
class Resume:
    """What a resume changes; None = no change."""

    gpus: float | None = None
    """Per learner."""
    time: str | None = None
    """A time limit as sbatch reads it."""
    learners: int | None = None
    """Of an elastic job."""
    global_batch: int | None = None
    """Of an elastic job: samples per step on all GPUs together."""


@dataclass(frozen=True, slots=True)
class JobView:
    """One job. A list of jobs leaves out `attempts`, `learner_list`, `moving`, `moving_at`, `expected_end`,
    `gpu_devices` and `incidents`."""

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
    continued_by: str = ""
    """The pool whose scaler halted the job to change its size and will continue it; "" for other jobs."""
    exit_code: int | None = None
    exit_signal: int | None = None
    pending_reason: str = ""
    nodes: str = ""
    network_requested: str = ""
    """The level in the manifest."""
    network: str = ""
    """The level of the job; "" before deployment."""
    network_by: str = ""
    """What enforces the level, once the learners were found in it; "" = not checked yet."""
    results: str = ""
    """Directory of the last attempt whose learners started, or of the whole job if results are kept for all attempts.
    So is `logs`."""
    logs: str = ""
    job_dir: str = ""
    warnings: tuple[str, ...] = ()
    log_tail: tuple[str, ...] = ()
    """Last lines of the learner that failed."""
    timestamps: Mapping[str, float] = field(default_factory=dict)
    """When each state was reached, since the job last returned to PENDING or QUEUED: the times of the latest run of its
    newest attempt. Times of earlier attempts are in `attempts` and among the events."""
    sources: Mapping[str, str] = field(default_factory=dict)
    uncertain_since: float | None = None
    attempts: tuple[AttemptView, ...] = ()
    """Oldest first."""
    overrides: Mapping[str, str] = field(default_factory=dict)
    """What a resume or a failed node changed for the next attempts, in words by manifest key (gpus, batch.time,
    batch.exclude)."""
    array: str = ""
    """Id of the array that the job is an element of; "" = none."""
    array_index: int | None = None
    array_values: Mapping[str, str] = field(default_factory=dict)
    """Variables that the sweep sets for this element."""
    array_states: Mapping[str, int] = field(default_factory=dict)
    """State → number of elements of its array, in a list with one element of each array."""
    learner_list: tuple[LearnerView, ...] = ()
    """Learners of the last attempt that started any, of a job with several; empty if the files of the attempt cannot be
    read."""
    moving: str = ""
    """What is transferred to or from the stores of the job, as of `moving_at`."""
    moving_at: float | None = None
    expected_end: float | None = None
    """When the learners will have processed the samples that they report as remaining; None = they report none."""
    limit_at: float | None = None
    """When the running attempt reaches the time limit that was requested; None = none was, or it does not run."""
    stored_in: str = ""
    """URL of the store that results go to; "" = to no store, or to a directory."""
    stored_at: str = ""
    """Endpoint of that store, if the URL does not have it."""
    settled_at: float | None = None
    """When results were stored whose failed upload is the job's error; None = not so, or not yet."""
    incidents: tuple[IncidentRow, ...] = ()
    """What went wrong with the job, in order of time."""
    results_note: str = ""
    """Where the results are, if no directory of this host has them."""
    total_gpus: float = 0.0
    """Requested GPUs of all learners together."""
    partition: str = ""
    """The requested partitions; "" = the default one."""
    gpu_devices: tuple[str, ...] = ()
    """Its GPUs while it is PROCESSING, each as node and device file, ``n1:/dev/nvidia0``; empty = unknown."""
    disk_bytes: int | None = None
    """Disk space of the job's directory, if it was requested; None = it was not, or measuring took too long."""


UNREADABLE = "FFDL.unreadable"
"""The extended header (pax) of a tar entry for a file or directory that could not be read: the reason."""
LEFT_OUT = "FFDL.left-out"
"""The extended header (pax) of a tar entry for a pipe, socket or device, which is not sent: its kind."""


@dataclass(frozen=True, slots=True)
class OutputView:
    """Where the output of a job is: in a directory of the daemon's host, or below `prefix` in a store."""

    job_id: str
    kind: str
    """results, model, logs or checkpoint."""
    state: str
    attempt: int = 0
    """0 = of the whole job."""
    directory: str = ""
    """With a `store`: the directory of the attempt; "" = there is none."""
    name: str = ""
    """Only this file of the directory."""
    inode: int = 0
    """Of the directory, to detect another directory with the same path."""
    store: StoreAddress | None = None
    prefix: str = ""
    secrets: str = ""
    """The job's file of secrets, which the credentials of the store refer to."""
    is_partial: bool = False
    """Whether the job has not ended."""
    note: str = ""
    """A sentence for the user."""
    roots: tuple[str, ...] = ()
    """Absolute paths under which learners may know the directory."""
    claimed: str = ""
    """The directory if it is in a claim of a cluster, as ``claim/path``; ``/path`` is in the claim of the jobs'
    directories."""


@dataclass(frozen=True, slots=True)
class SupportPart:
    """One file of a support archive, without secrets."""

    name: str
    """Path in the archive."""
    text: str = ""
    note: str = ""
    """Which part of the file it is."""
    left_out: str = ""
    """Why the archive does not have it."""


@dataclass(frozen=True, slots=True)
class ArrayView:
    """An array of jobs."""

    id: str
    name: str
    user: str
    backend: str
    elements: int
    states: Mapping[str, int]
    """State → number of elements."""
    submitted_at: float
    ended: bool
    """Whether all elements have ended."""
    limit: int | None = None
    """How many elements may run at once; None = all."""
    variables: tuple[str, ...] = ()
    """Names of the variables that the sweep sets."""
    directory: str = ""


@dataclass(frozen=True, slots=True)
class JobCounts:
    """How many jobs there are."""

    states: Mapping[str, int]
    """State → number of jobs that are not removed."""
    version: int
    """Differs after every change of a job, until the daemon ends."""


@dataclass(frozen=True, slots=True)
class EventView:
    """One change of state, or an event with cause `restarted` (a learner was started again) or `stored` (a pending
    upload was stored after the job continued or ended)."""

    job_id: str
    seq: int
    """Counts from 1 without gaps within a job."""
    at: float
    state: str
    attempt: int
    cause: str
    message: str = ""
    error_code: str = "000"


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line of one learner's log in one attempt, or a piece of a very long line."""

    learner: int
    index: int
    """Number of the line, from 1."""
    line: str
    at: float | None = None
    """None = no time is known."""
    attempt: int = 0
    """0 from a daemon of an older release."""
    offset: int = 0
    """Where the text begins in the learner's output, in bytes; 0 from a daemon of an older release."""
    end: int = 0
    """Where it ends with its newline, in bytes; 0 from a daemon of an older release."""
    partial: bool = False
    """Whether another piece of the line follows."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a request was refused."""

    code: str
    message: str
    exit_code: int
    """Exit status of the command; see domain.exit_codes."""
    cure: str = ""
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True, slots=True)
class SecretView:
    """A named secret of the user."""

    name: str
    set_at: float
    jobs: int = 0
    """How many jobs that are live, or have a pending upload, refer to it."""


@dataclass(frozen=True, slots=True)
class PlannedFileView:
    """A file that would be written."""

    name: str
    """Relative to the attempt's directory."""
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
    objects: tuple[str, ...] = ()
    """Objects of a backend with an API, each as a YAML document, in the order in which they are sent."""
