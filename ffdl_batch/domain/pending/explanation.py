"""Why a job waits, as values that a backend returns in terms that no scheduler owns. :mod:`.reason_text` turns them
into sentences."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from enum import StrEnum

from ffdl_batch.host.fast_dataclass import dataclass


class WaitKind(StrEnum):
    """What a job waits for."""

    UNCONSIDERED = "unconsidered"
    """The scheduler has not considered it yet, or is doing so."""
    RESOURCES = "resources"
    PRIORITY = "priority"
    """Other jobs are before it."""
    TURN = "turn"
    """Jobs that came earlier are before it, and the first one starts first, whatever it requests."""
    DEPENDENCY = "dependency"
    DEPENDENCY_NEVER = "dependency_never"
    BEGIN_TIME = "begin_time"
    HELD_BY_USER = "held_by_user"
    HELD_BY_ADMIN = "held_by_admin"
    HELD_AFTER_FAILURES = "held_after_failures"
    """The scheduler itself put it on hold, because it could not start it."""
    NODES_AWAY = "nodes_away"
    """Nodes that it needs are down, drained, or reserved."""
    RESERVATION = "reservation"
    """Its own reservation has not begun, or has no free nodes."""
    RESERVATION_GONE = "reservation_gone"
    PARTITION_CLOSED = "partition_closed"
    PARTITION_SIZE = "partition_size"
    PARTITION_TIME = "partition_time"
    PARTITION_RULE = "partition_rule"
    IMPOSSIBLE = "impossible"
    """No node can ever hold it."""
    CONSTRAINTS = "constraints"
    """No node with what it requests is usable now."""
    LICENSES = "licenses"
    LIMIT = "limit"
    """A limit of a user, an account, a QOS or a quota; see :class:`Limit`."""
    NOT_ALLOWED = "not_allowed"
    """Account or QOS may not be used, or does not exist."""
    ARRAY_LIMIT = "array_limit"
    CLEANING = "cleaning"
    STARTING = "starting"
    """It has its nodes, which are being prepared."""
    DEADLINE = "deadline"
    BURST_BUFFER = "burst_buffer"
    FEDERATION = "federation"
    DEVICE_CHANNELS = "device_channels"
    PORTS = "ports"
    POWER = "power"
    """As many nodes are powered on as the site allows."""
    DEFERRED = "deferred"
    """The scheduler does not try to start jobs at submission, only in its rounds."""
    BROKEN = "broken"
    """The scheduler failed to start it."""
    ENDED = "ended"
    """The reason is about how a run ended."""
    KEPT_FOR_OTHERS = "kept_for_others"
    """Nodes have capacity, but their taints exclude it."""
    WRONG_LABELS = "wrong_labels"
    """No node has the labels that it requests."""
    NO_CAPACITY = "no_room"
    """No node has capacity for it now, and the scheduler keeps no order."""
    TOO_MUCH = "too_much"
    """The nodes of the cluster cannot hold it, even if nothing else runs."""
    NODES_CLOSED = "nodes_closed"
    """Nodes that it could use accept nothing at this moment."""
    QUEUE = "queue"
    """A queue in front of the scheduler has not admitted it."""
    QUEUE_CLOSED = "queue_closed"
    IMAGE = "image"
    VOLUME = "volume"
    REFUSED = "refused"
    """A rule of the cluster refuses its parts."""
    OURS = "ours"
    """It waits in the daemon, and no scheduler has it."""
    OTHER = "other"


class Per(StrEnum):
    """Whose use a limit counts."""

    JOB = "job"
    NODE = "node"
    USER = "user"
    ACCOUNT = "account"
    ALL = "all"
    """The use of all that the owner of the limit has."""


class Measure(StrEnum):
    """How a resource is counted."""

    AMOUNT = "amount"
    MINUTES = "minutes"
    """Minutes of use, past and present."""
    RUN_MINUTES = "run_minutes"
    """Minutes that the running jobs may still use."""
    SUBMITTED = "submitted"
    """Waiting jobs count, too."""


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit that a job meets. Figures are texts of the backend, "" if it does not report them; those of a resource
    ``time`` are minutes."""

    owner: str
    """What has the limit: QOS, association, quota, ..."""
    resource: str
    """What is limited, in words."""
    per: Per = Per.ALL
    measure: Measure = Measure.AMOUNT
    name: str = ""
    """Name of the owner; "" = not known."""
    most: str = ""
    """The limit."""
    used: str = ""
    """How much of it is in use."""
    asked: str = ""
    """What the job requests."""
    least: bool = False
    """Whether it is a lower bound."""
    cure: str = ""
    """What the owner of the job can do, if it is not what one does about other limits; "" = the usual."""

    @property
    def passes(self) -> bool:
        """Whether other jobs use it up: alone, the job would keep to it."""
        if self.most.isdecimal() and self.asked.isdecimal() and int(self.asked) > int(self.most):
            return False
        return self.is_shared and not self.least

    @property
    def is_shared(self) -> bool:
        """Whether the use of other jobs counts for it."""
        return self.per not in (Per.JOB, Per.NODE)


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a job waits."""

    kind: WaitKind
    code: str = ""
    """The scheduler's own word."""
    detail: str = ""
    """What the scheduler says beside `code`."""
    limit: Limit | None = None


@dataclass(frozen=True, slots=True)
class NodeAway:
    """A node that accepts no jobs: its state and the reason, in its scheduler's words."""

    name: str
    state: str
    why: str = ""


@dataclass(frozen=True, slots=True)
class Capacity:
    """The capacity of the nodes of a partition for a request: what is free now or, if that is not known, all of it."""

    partition: str
    gpu_type: str
    """"" = any type."""
    gpus: int
    """GPUs of the type on `nodes`."""
    gpus_free: int | None
    """None = not known; `fitting` and `learners_fitting` then assume that nothing else runs."""
    nodes: int
    """Nodes that accept jobs."""
    fitting: int
    """How many of the nodes can hold their share of the request."""
    wanted: int
    """How many nodes the request needs; with `learners_fitting` how many learners."""
    gpus_each: int
    away: tuple[NodeAway, ...] = ()
    """Suitable nodes that accept no jobs."""
    away_more: int = 0
    """How many more of these there are."""
    learners_fitting: int | None = None
    """How many learners the nodes can hold, if several may share a node; None = the request is for whole nodes."""


@dataclass(frozen=True, slots=True)
class Ahead:
    """The jobs before a job in a partition."""

    partition: str
    jobs: int
    """Jobs that wait with a higher priority, or with the same one for longer."""
    own: int
    """How many of these are the user's."""
    gpus: int
    """GPUs that these request together."""
    waiting: int
    """All jobs that wait in the partition."""
    running: int
    """All jobs that run in the partition."""
    next_end: float | None = None
    """When the first running job reaches its time limit."""


class BlockerKind(StrEnum):
    """What delays a job beside other jobs."""

    RESERVATION = "reservation"
    DEPENDENCY = "dependency"
    LICENSE = "license"


@dataclass(frozen=True, slots=True)
class Blocker:
    """A named obstacle, with its begin and end if they are known."""

    kind: BlockerKind
    name: str
    detail: str = ""
    begins: float | None = None
    ends: float | None = None


@dataclass(frozen=True, slots=True)
class Factor:
    """One part of a priority."""

    name: str
    value: float


@dataclass(frozen=True, slots=True)
class Explanation:
    """What a backend knows of one request that waits, or would wait."""

    known_at: float
    """When the backend reported this."""
    reason: Reason | None = None
    """None = the request is not in the queue."""
    partitions: tuple[str, ...] = ()
    priority: float | None = None
    expected_start: float | None = None
    """The scheduler's own estimate."""
    position: int | None = None
    """Position in a queue that reports it, from 1."""
    capacity: tuple[Capacity, ...] = ()
    ahead: tuple[Ahead, ...] = ()
    factors: tuple[Factor, ...] = ()
    blockers: tuple[Blocker, ...] = ()
    figures: Mapping[str, str] = field(default_factory=dict)
    lacks: tuple[str, ...] = ()
    """What could not be found out, and why."""


@dataclass(frozen=True, slots=True)
class Foretold:
    """The scheduler's answer to a trial: when and where a request would start."""

    sentence: str
    """The answer as the scheduler gave it."""
    at: float | None = None
    nodes: str = ""
    preempts: int = 0
    """How many running jobs it would preempt; some of them may be the caller's."""


@dataclass(frozen=True, slots=True)
class Alternative:
    """Another request for the same work, and when it would start."""

    change: str
    """The difference from the request as it is."""
    options: str
    """How to request it."""
    at: float | None = None
    sooner_s: float | None = None
    """How much earlier it would start than the request as it is; None = it would not, or it is not known."""
    preempts: int = 0
    sentence: str = ""


@dataclass(frozen=True, slots=True)
class WaitHistory:
    """How long own jobs of a shape waited, in seconds."""

    shape: str
    """Which jobs were counted."""
    jobs: int
    median_s: float
    ninth_decile_s: float
    longest_s: float


@dataclass(frozen=True, slots=True)
class WhyView:
    """Why a job waits, or what it is doing instead. Each sentence of `evidence` is based on the values below it."""

    job_id: str
    name: str
    state: str
    backend: str
    native_id: str
    waits: bool
    sentence: str
    """For the user, as `actions` and `evidence` are."""
    actions: tuple[str, ...] = ()
    evidence: tuple[str, ...] = ()
    explanation: Explanation | None = None
    trial: Foretold | None = None
    """The scheduler's answer for the request as it is, if it were submitted again."""
    history: WaitHistory | None = None
    alternatives: tuple[Alternative, ...] = ()
    stale: str = ""
    """Why nothing newer is known; "" = it is new."""


@dataclass(frozen=True, slots=True)
class Outlook:
    """The same for a request that is not submitted."""

    backend: str
    evidence: tuple[str, ...] = ()
    explanation: Explanation | None = None
    trial: Foretold | None = None
    history: WaitHistory | None = None
    alternatives: tuple[Alternative, ...] = ()
    stale: str = ""
