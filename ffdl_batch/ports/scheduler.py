"""The scheduler port: the contract between the core and a backend.

A backend is a package with one entry point in the group ``ffdl_batch.adapters`` that names a function
``create(settings, context) -> Scheduler`` (see :mod:`ffdl_batch.plugins`). One suite,
``tests/contract/test_scheduler_contract.py``, runs over all of them and is the contract's second half.

Required are six methods. Everything else is a small optional Protocol of :mod:`ffdl_batch.ports.capabilities`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from ffdl_batch.attempt.layout import ArrayDir, AttemptDir, JobDir
from ffdl_batch.domain.data.mounts import Mounting
from ffdl_batch.domain.findings import Finding
from ffdl_batch.domain.job.job import JobId, Token
from ffdl_batch.domain.job.spec import JobSpec, NetworkLevel
from ffdl_batch.domain.launch.launch_file import LaunchFile, Network
from ffdl_batch.domain.launch.limits import LeadFrom, LogLimits
from ffdl_batch.domain.outcome.continuation import Budget, Spent
from ffdl_batch.domain.outcome.observation import NativeId, Observation
from ffdl_batch.host.permissions import PRIVATE_UMASK


class SchedulerError(Exception):
    """Base of what a backend may raise. The message says what was tried, what came back, what to do."""


class InvalidRequest(SchedulerError):
    """The request can never succeed as it is; never retried. `findings` name the fields."""

    def __init__(self, message: str, findings: tuple[Finding, ...] = ()) -> None:
        super().__init__(message)
        self.findings = findings


class SchedulerUnreachable(SchedulerError):
    """The scheduler did not answer; nothing was changed; try again later."""


class SchedulerMissing(SchedulerUnreachable):
    """This machine has no such scheduler, or not now: a file system may be away, or credentials count no more. The
    message says what lacks; to wait helps only whoever has somebody mend it."""


class NotNow(SchedulerUnreachable):
    """Nothing was changed, for a reason that says nothing about whether the scheduler answers; try again later."""


class NotTaken(NotNow):
    """A submission failed, and the request is not the cause. Nothing was submitted. The job is submitted again after
    growing pauses. Other jobs do not wait for it."""


class TooMany(NotTaken):
    """The scheduler does not accept so many jobs now. Nothing was submitted, and fewer jobs may be accepted. Jobs that
    meet the same limit wait until one of them is accepted."""


class NotUnderstood(NotTaken):
    """The scheduler refused the submission with a message that the adapter does not know. The cause may be the request
    or the scheduler. Nothing was submitted. A job whose refusal repeats while others are accepted ends with `words`."""

    def __init__(self, message: str, words: str = "") -> None:
        super().__init__(message)
        self.words = words or message


class AccountingUnreachable(NotNow):
    """The scheduler answered, and its accounting did not. `found` is what was found without it, by token; it is asked
    again after `again_in_s` seconds."""

    def __init__(
        self, message: str, again_in_s: float, found: Mapping[Token, frozenset[NativeId]] | None = None
    ) -> None:
        super().__init__(message)
        self.again_in_s = again_in_s
        self.found = found or {}


class RefusedBySite(InvalidRequest):
    """The scheduler returned a site's own message and an unspecific error code. The job ends only if `find`, called
    after that, finds no job of the attempt."""


class NoResources(InvalidRequest):
    """No node of the site, as it is now, holds what is asked for."""


class ArraysRefused(InvalidRequest):
    """The scheduler takes no such array; its elements may be submitted one by one."""


class SubmissionUncertain(SchedulerError):
    """The submission may or may not have been accepted: `find` first, never submit again at once."""


@dataclass(frozen=True, slots=True)
class NodeShape:
    """One kind of node. `gpus` maps a GPU type ("" = untyped) to how many one node has, `gres` the name of another
    generic resource (``name`` or ``name:type``). `features` is what the site says that the nodes can do."""

    name: str
    cpus: int
    memory_bytes: int
    gpus: Mapping[str, int] = field(default_factory=dict)
    partitions: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    gres: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PartitionShape:
    """One partition. `max_time_s` None = unlimited."""

    name: str
    is_default: bool = False
    max_time_s: int | None = None


@dataclass(frozen=True, slots=True)
class BackendFacts:
    """What a backend knew about its site when it was last asked; input of `plan`, so that `plan` is pure.

    `network_levels` are the levels that every job can have: proved beforehand, or made by what starts the learner, so
    that none starts without.
    `python` is the interpreter that the controller runs with on the nodes, `controller` the argv after it. `staging`
    starts the staging program there (empty = nodes do not see an installation).
    `needs_image` is false where learners run as plain processes; `pulls_images`: images are references of registries,
    never files. `max_array_size` is one more than the largest index
    of a native array (0 = there are none). `elements_at_once`: how many elements of one array are handed over at the
    same time, where each of them costs this machine something while it waits (None = all). `is_this_machine`: jobs run
    on the machine that asks, and what it does not see is nowhere. `is_passing`: more will be known in a moment, so that
    it is asked again soon. `cpu_limit`: containers need a CPU limit, and one that names none gets so many CPUs (0 = it
    is refused; None = they need none).
    """

    nodes: tuple[NodeShape, ...] = ()
    partitions: tuple[PartitionShape, ...] = ()
    network_levels: frozenset[NetworkLevel] = frozenset({NetworkLevel.HOST})
    version: str = ""
    python: str = ""
    controller: tuple[str, ...] = ()
    staging: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    needs_image: bool = True
    pulls_images: bool = False
    max_array_size: int = 0
    elements_at_once: int | None = None
    is_this_machine: bool = False
    is_passing: bool = False
    lacks: tuple[str, ...] = ()
    cpu_limit: float | None = None


@dataclass(frozen=True, slots=True)
class LaunchRequest:
    """One attempt to plan.

    `image` is what the configuration resolved the framework to ("" where the backend runs without one).
    `results_store` is the directory that results and logs are stored into ("" = they stay in the attempt).
    `user_env` are the literal variables for the learner (manifest and --export); values may be secret.
    `lead_s` is how long before the time limit the learners are to be warned (None = not at all); `lead_from`, what
    decided that, goes into the launch file as it is. `budget` and `spent` are the chain's. `carry` is the results
    directory of the attempt before ("" = none). The template of the next attempt is a request of its own, whose token
    and directory are named with :data:`ffdl_batch.domain.launch.launch_file.TEMPLATE`; its `attempt` is this one's
    number plus 1. `array_dir` is set for the first attempt of an element of an array. `cache_dir` is the directory of
    the nodes' cache
    ("" = they have none), `cache_bytes` its size (0 = half of the file system). `images_dir` has the user's images that
    want credentials, where there is no cache. `mounting` is the site's word; the manifest's counts more. `only_stages`:
    the attempt brings data and starts no learner; `spec` asks for what that needs. `trains_from` is the number of the
    first attempt that does, as far as is known. `user` is the name of the user who submitted the job.
    """

    job_id: JobId
    attempt: int
    token: Token
    spec: JobSpec
    job_dir: JobDir
    attempt_dir: AttemptDir
    doorbell: str
    facts: BackendFacts
    image: str = ""
    results_store: str = ""
    user_env: Mapping[str, str] = field(default_factory=dict)
    minimum_network: NetworkLevel = NetworkLevel.HOST
    lead_s: int | None = None
    lead_from: LeadFrom = LeadFrom.UNKNOWN
    budget: Budget = field(default_factory=Budget)
    spent: Spent = field(default_factory=Spent)
    carry: str = ""
    confirmed: str = ""
    """Newest file of the checkpoint that the attempts before this one confirmed last; see :class:`LaunchFile`."""
    array_dir: ArrayDir | None = None
    logs: LogLimits = field(default_factory=LogLimits)
    cache_dir: str = ""
    cache_bytes: int = 0
    images_dir: str = ""
    mounting: Mounting = Mounting.NEVER
    only_stages: bool = False
    trains_from: int = 1
    user: str = ""


@dataclass(frozen=True, slots=True)
class PlannedFile:
    """A file of the attempt's directory; `name` is relative to it."""

    name: str
    text: str
    mode: int = 0o600


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """What is sent, exactly: `ffdl-submit --dry-run` prints this value, `submit` sends this value.

    `script` is the batch script ("" where the backend has none), `submit_argv` the command that submits it,
    `objects` what a backend with an API creates. `files` are written into the attempt's directory before
    `submit`; they hold `script`, the launch file and the environment.

    `array_script` is the script of a native array that the attempt can be a task of ("" = it can be none): attempts
    with the same text differ in nothing that the scheduler is told but in their `array_index`. The number of the chunk
    (see :class:`Chunk`) stands in it as :data:`ffdl_batch.domain.job.array.UNNUMBERED`. `kept_off` says which nodes the
    platform, not the owner, keeps the attempt off, and why.
    """

    backend: str
    token: Token
    attempt_dir: AttemptDir
    launch: LaunchFile
    files: tuple[PlannedFile, ...]
    submit_argv: tuple[str, ...] = ()
    script: str = ""
    objects: tuple[Mapping[str, object], ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    network: Network = field(default_factory=Network)
    warnings: tuple[str, ...] = ()
    array_script: str = ""
    array_index: int = 0
    kept_off: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Chunk:
    """A native array to be planned, of elements of one array. `token` is its name in the scheduler, `directory` its
    own; `limit` of its tasks may run at once (None = all), and their numbers are below `max_array_size`."""

    token: Token
    directory: AttemptDir
    max_array_size: int
    limit: int | None = None


@dataclass(frozen=True, slots=True)
class ArrayPlan:
    """A native array: what is sent, exactly.

    Before `submit_array`, `files` (the script and the table of its tasks) are written into its directory, and each
    attempt's mark says which task of it the attempt is (:func:`ffdl_batch.domain.job.array.mark_of`), as `tasks` does.
    """

    chunk: Chunk
    files: tuple[PlannedFile, ...]
    tasks: Mapping[Token, str]
    script: str
    submit_argv: tuple[str, ...] = ()
    umask: int = PRIVATE_UMASK


class Scheduler(Protocol):
    """A backend."""

    @property
    def name(self) -> str:
        """The adapter's name, as in configuration and records."""
        ...

    def probe(self) -> BackendFacts:
        """Ask the site what it is. Raises SchedulerUnreachable (SchedulerMissing where there is no such scheduler), or
        InvalidRequest where the settings cannot work."""
        ...

    def plan(self, request: LaunchRequest) -> LaunchPlan:
        """What would be sent. Pure: no I/O, same request, same plan. Raises InvalidRequest."""
        ...

    def submit(self, plan: LaunchPlan) -> NativeId:
        """Hand over one attempt whose files are written. Called at most once per process for a token unless
        `find` came back empty after the credential's life.

        Raises InvalidRequest (refused permanently because of this request), RefusedBySite, SchedulerUnreachable (not
        accepted), NotTaken, TooMany, NotUnderstood, SubmissionUncertain (call `find` first).
        """
        ...

    def find(self, token: Token, attempt_dir: AttemptDir) -> frozenset[NativeId]:
        """All own jobs of this token, living or ended, duplicates included; looks at the scheduler, its
        accounting and the attempt's claim. An id that `submit` was answered with proves nothing. Empty is a
        statement: raises SchedulerUnreachable rather than return half an answer.
        """
        ...

    def observe(self, ids: Collection[NativeId]) -> Mapping[NativeId, Observation]:
        """One round trip for any number of jobs. An id left out is unknown, not ended."""
        ...

    def signal(self, native_id: NativeId, signal: str) -> None:
        """Request that the node controllers get this signal (name without SIG), KILL included; the head and what
        submitted it live on. A job that waits, has ended or is unknown is no error. Idempotent."""
        ...

    def cancel(self, native_id: NativeId) -> None:
        """Request the end of the job; a job that has ended or is unknown is no error. Idempotent."""
        ...
