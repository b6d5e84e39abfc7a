"""What is asked for one attempt or one native array, and the plan of what is sent to the scheduler for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from ffdl_batch.attempt.layout import ArrayDir, AttemptDir, JobDir
from ffdl_batch.domain.backend_facts import BackendFacts
from ffdl_batch.domain.data.mounts import Mounting
from ffdl_batch.domain.job.job import JobId, Token
from ffdl_batch.domain.job.spec import JobSpec, NetworkLevel
from ffdl_batch.domain.launch.launch_file import LaunchFile, Network
from ffdl_batch.domain.launch.limits import LeadFrom, LogLimits
from ffdl_batch.domain.outcome.continuation import Budget, Spent
from ffdl_batch.domain.outcome.observation import NativeId
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.host.permissions import PRIVATE_UMASK


@dataclass(frozen=True, slots=True)
class LaunchRequest:
    """One attempt to plan.

    The template of the next attempt is a request of its own. Its token and directory are named with
    :data:`ffdl_batch.domain.launch.launch_file.TEMPLATE`, and its `attempt` is the number of the present attempt plus
    1.
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
    """The image that the configuration has for the framework; "" if the backend runs without one."""
    signers: tuple[str, ...] = ()
    """Fingerprints of the keys that the site accepts for image files; () = they need no signature."""
    results_store: str = ""
    """The directory that results and logs are stored in; "" = they stay in the attempt."""
    user_env: Mapping[str, str] = field(default_factory=dict)
    """Literal variables of the learner, from the manifest and --export; values may be secret."""
    minimum_network: NetworkLevel = NetworkLevel.HOST
    lead_s: int | None = None
    """How long before the time limit the learners are warned; None = they are not."""
    lead_from: LeadFrom = LeadFrom.UNKNOWN
    """What decided `lead_s`; goes into the launch file unchanged."""
    budget: Budget = field(default_factory=Budget)
    spent: Spent = field(default_factory=Spent)
    """What the continuations so far have used of `budget`."""
    carry: str = ""
    """Results directory of the previous attempt; "" = none."""
    confirmed: str = ""
    """Newest file of the checkpoint that the attempts before this one confirmed last; see :class:`LaunchFile`."""
    array_dir: ArrayDir | None = None
    """Set for the first attempt of an element of an array."""
    logs: LogLimits = field(default_factory=LogLimits)
    cache_dir: str = ""
    """Directory of the cache on the nodes; "" = they have none."""
    cache_bytes: int = 0
    """Size of the cache; 0 = half of its file system."""
    images_dir: str = ""
    """Directory of the user's images that need credentials, for nodes without a cache."""
    mounting: Mounting = Mounting.NEVER
    """The site's setting; the manifest's wins over it."""
    only_stages: bool = False
    """Whether the attempt brings data and starts no learner; `spec` has the resources for that."""
    trains_from: int = 1
    """Number of the first attempt that starts learners, as far as it is known."""
    user: str = ""
    """Name of the user who submitted the job."""


@dataclass(frozen=True, slots=True)
class PlannedFile:
    """A file of the attempt's directory; `name` is relative to it."""

    name: str
    text: str
    mode: int = 0o600


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """Exactly what is sent: `ffdl-submit --dry-run` prints this value, and `submit` sends it."""

    backend: str
    token: Token
    attempt_dir: AttemptDir
    launch: LaunchFile
    files: tuple[PlannedFile, ...]
    """Written into the attempt's directory before `submit`: `script`, the launch file and the environment."""
    submit_argv: tuple[str, ...] = ()
    """The command that submits `script`."""
    script: str = ""
    """The batch script; "" if the backend has none."""
    objects: tuple[Mapping[str, object], ...] = ()
    """What a backend with an API creates."""
    environment: Mapping[str, str] = field(default_factory=dict)
    network: Network = field(default_factory=Network)
    warnings: tuple[str, ...] = ()
    array_script: str = ""
    """Script of a native array that the attempt can be a task of; "" = it can be a task of none. For the scheduler,
    attempts with the same text differ only in their `array_index`. The number of the chunk (see :class:`Chunk`) is
    written in it as :data:`ffdl_batch.domain.job.array.UNNUMBERED`."""
    array_index: int = 0
    kept_off: tuple[str, ...] = ()
    """Nodes that the platform, not the owner, excludes for this attempt, and why."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """A native array to plan: elements of one array."""

    token: Token
    """Name of the native array in the scheduler."""
    directory: AttemptDir
    max_array_size: int
    """The numbers of its tasks are below this."""
    limit: int | None = None
    """How many of its tasks may run at once; None = all."""


@dataclass(frozen=True, slots=True)
class ArrayPlan:
    """Exactly what is sent for a native array."""

    chunk: Chunk
    files: tuple[PlannedFile, ...]
    """Script and table of tasks; written into the directory of the chunk before `submit_array`."""
    tasks: Mapping[Token, str]
    """Token of an attempt → which task it is. Before `submit_array`, each attempt's mark says the same
    (:func:`ffdl_batch.domain.job.array.mark_of`)."""
    script: str
    submit_argv: tuple[str, ...] = ()
    umask: int = PRIVATE_UMASK


@dataclass(frozen=True, slots=True)
class AttemptNode:
    """A node of a running attempt."""

    native_id: NativeId
    attempt_dir: AttemptDir
    allocation: str
    """The allocation as its controller reported it; "" = it did not."""
    node_rank: int
    """Number of the node in the allocation."""


@dataclass(frozen=True, slots=True)
class NodeProgram:
    """How the owner starts a program on a node; the fields mean what they mean in
    :class:`ffdl_batch.domain.launch.attach_protocol.AttachPlan`."""

    argv: tuple[str, ...]
    host: str = ""
    unset: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()
