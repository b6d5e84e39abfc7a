"""What is asked for one attempt or one native array, and the plan of what is sent to the scheduler for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ffdl_batch.attempt.layout import ArrayDir, AttemptDir, JobDir
from ffdl_batch.domain.backend_facts import BackendFacts
from ffdl_batch.domain.data.mounts import Mounting
from ffdl_batch.domain.job.job import JobId, Token
from ffdl_batch.domain.job.spec import JobSpec, NetworkLevel
from ffdl_batch.domain.launch.launch_file import LaunchFile, Network
from ffdl_batch.domain.launch.limits import LeadFrom, LogLimits
from ffdl_batch.domain.outcome.continuation import Budget, Spent
from ffdl_batch.domain.outcome.observation import NativeId
from ffdl_batch.host.permissions import PRIVATE_UMASK


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


@dataclass(frozen=True, slots=True)
class AttemptNode:
    """A node of a running attempt. `allocation` is what its controller was told the allocation is called ("" = it does
    not say), `node_rank` the node's number in it."""

    native_id: NativeId
    attempt_dir: AttemptDir
    allocation: str
    node_rank: int


@dataclass(frozen=True, slots=True)
class NodeProgram:
    """How the owner starts a program there; fields as in
    :class:`ffdl_batch.domain.launch.attach_protocol.AttachPlan`."""

    argv: tuple[str, ...]
    host: str = ""
    unset: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()
