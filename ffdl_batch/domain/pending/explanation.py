"""Why a job waits, as values: what a backend says of it, in words that no scheduler owns. The sentences for people are
:mod:`ffdl_batch.domain.pending.reason_text`'s."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class WaitKind(StrEnum):
    """What a job waits for."""

    UNCONSIDERED = "unconsidered"
    """The scheduler has not looked at it yet, or is doing so."""
    RESOURCES = "resources"
    PRIORITY = "priority"
    """Others are before it."""
    TURN = "turn"
    """Others are before it, and whoever came first starts first, whatever is asked for."""
    DEPENDENCY = "dependency"
    DEPENDENCY_NEVER = "dependency_never"
    BEGIN_TIME = "begin_time"
    HELD_BY_USER = "held_by_user"
    HELD_BY_ADMIN = "held_by_admin"
    HELD_AFTER_FAILURES = "held_after_failures"
    """The scheduler itself put it on hold, because it could not start it."""
    NODES_AWAY = "nodes_away"
    """Nodes that it needs are down, drained, or kept for something else."""
    RESERVATION = "reservation"
    """Its own reservation has not begun, or has no room."""
    RESERVATION_GONE = "reservation_gone"
    PARTITION_CLOSED = "partition_closed"
    PARTITION_SIZE = "partition_size"
    PARTITION_TIME = "partition_time"
    PARTITION_RULE = "partition_rule"
    IMPOSSIBLE = "impossible"
    """No node can ever hold it."""
    CONSTRAINTS = "constraints"
    """No node that has what it asks for is usable now."""
    LICENSES = "licenses"
    LIMIT = "limit"
    """A limit of a user, an account, a QOS or a quota; see :class:`Limit`."""
    NOT_ALLOWED = "not_allowed"
    """Account or QOS may not be used, or not there."""
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
    """So many nodes are switched on as the site allows."""
    DEFERRED = "deferred"
    """The scheduler tries no start at submission; it does so in its rounds."""
    BROKEN = "broken"
    """The scheduler failed to start it."""
    ENDED = "ended"
    """The word is about how a run ended."""
    KEPT_FOR_OTHERS = "kept_for_others"
    """Nodes would have room, and are kept for others (taints)."""
    WRONG_LABELS = "wrong_labels"
    """No node has the labels that it asks for."""
    NO_CAPACITY = "no_room"
    """No node has room for it now, and the scheduler keeps no order."""
    TOO_MUCH = "too_much"
    """The nodes of the cluster cannot hold it, even if nothing else runs."""
    NODES_CLOSED = "nodes_closed"
    """Nodes that it could have take nothing at this moment."""
    QUEUE = "queue"
    """A queue in front of the scheduler has not admitted it."""
    QUEUE_CLOSED = "queue_closed"
    IMAGE = "image"
    VOLUME = "volume"
    REFUSED = "refused"
    """Its parts are refused by a rule."""
    OURS = "ours"
    """It waits with us, and no scheduler has it."""
    OTHER = "other"


class Per(StrEnum):
    """Of whom a limit counts the use."""

    JOB = "job"
    NODE = "node"
    USER = "user"
    ACCOUNT = "account"
    ALL = "all"
    """Of all that the owner of the limit has."""


class Measure(StrEnum):
    """What of a resource is counted."""

    AMOUNT = "amount"
    MINUTES = "minutes"
    """Minutes of use, past and present."""
    RUN_MINUTES = "run_minutes"
    """Minutes that the running jobs may still use."""
    SUBMITTED = "submitted"
    """Those that wait are counted, too."""


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit that a job meets. `owner` is what it belongs to (QOS, association, quota, ...), `name` its name ("" = not
    known), `resource` what is limited, in words. Figures are texts as the backend has them, "" where it does not say:
    `most` is the limit, `used` what of it is in use, `asked` what the job asks for; of a resource ``time`` in minutes.
    `least`: it is a lower bound."""

    owner: str
    resource: str
    per: Per = Per.ALL
    measure: Measure = Measure.AMOUNT
    name: str = ""
    most: str = ""
    used: str = ""
    asked: str = ""
    least: bool = False

    @property
    def passes(self) -> bool:
        """Whether it is met because others run: alone, the job would keep to it."""
        if self.most.isdecimal() and self.asked.isdecimal() and int(self.asked) > int(self.most):
            return False
        return self.is_shared and not self.least

    @property
    def is_shared(self) -> bool:
        """Whether what other jobs use counts for it."""
        return self.per not in (Per.JOB, Per.NODE)


@dataclass(frozen=True, slots=True)
class Reason:
    """Why it waits. `word` is the scheduler's own, `detail` what else it says."""

    kind: WaitKind
    code: str = ""
    detail: str = ""
    limit: Limit | None = None


@dataclass(frozen=True, slots=True)
class NodeAway:
    """A node that takes no jobs: its state and why, in its scheduler's words."""

    name: str
    state: str
    why: str = ""


@dataclass(frozen=True, slots=True)
class Capacity:
    """The capacity of the nodes of a partition for a request, now or, if it is not known what is free, empty."""

    partition: str
    gpu_type: str
    """"" = any type."""
    gpus: int
    """Those of the type on `nodes`."""
    gpus_free: int | None
    """None = it is not known what is free: `fitting` and `learners_fitting` are of empty nodes."""
    nodes: int
    """Nodes that take jobs."""
    fitting: int
    """How many of the nodes can hold their share of the request."""
    wanted: int
    """How many nodes the request wants; with `learners_fitting` how many learners."""
    gpus_each: int
    away: tuple[NodeAway, ...] = ()
    """Nodes that would do and take no jobs."""
    away_more: int = 0
    """How many more of these there are."""
    learners_fitting: int | None = None
    """How many learners the nodes can hold, if several may share a node (None = the request wants nodes)."""


@dataclass(frozen=True, slots=True)
class Ahead:
    """Who is before it in a partition: `jobs` that wait with a higher priority, or the same and longer, of which `own`
    are the user's; `gpus` is what they ask for together. `waiting` and `running` are all jobs there. `next_end` is when
    the first running one reaches its time limit."""

    partition: str
    jobs: int
    own: int
    gpus: int
    waiting: int
    running: int
    next_end: float | None = None


class BlockerKind(StrEnum):
    """What stands in the way beside other jobs."""

    RESERVATION = "reservation"
    DEPENDENCY = "dependency"
    LICENSE = "license"


@dataclass(frozen=True, slots=True)
class Blocker:
    """Something by name that stands in the way, with when it begins and ends where that is known."""

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
    """What a backend knows of one request that waits, or would. `reason` None = the request is not in the queue.

    `expected_start` is the scheduler's own estimate. `position` is the place in a queue that tells it, from 1.
    `known_at` is when the backend reported all this. `lacks` has what could not be found out, and why.
    """

    known_at: float
    reason: Reason | None = None
    partitions: tuple[str, ...] = ()
    priority: float | None = None
    expected_start: float | None = None
    position: int | None = None
    capacity: tuple[Capacity, ...] = ()
    ahead: tuple[Ahead, ...] = ()
    factors: tuple[Factor, ...] = ()
    blockers: tuple[Blocker, ...] = ()
    figures: Mapping[str, str] = field(default_factory=dict)
    lacks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Foretold:
    """What is answered to a trial: when and where a request would start. `preempts` is how many running jobs it would
    preempt; some of them may be the caller's. `said` is the answer itself."""

    sentence: str
    at: float | None = None
    nodes: str = ""
    preempts: int = 0


@dataclass(frozen=True, slots=True)
class Alternative:
    """Another request for the same work, and when that would start. `change` names what differs, `options` how to ask
    for it. `sooner_s`: by so much it is before the request as it is (None = it is not, or nobody knows)."""

    change: str
    options: str
    at: float | None = None
    sooner_s: float | None = None
    preempts: int = 0
    sentence: str = ""


@dataclass(frozen=True, slots=True)
class WaitHistory:
    """How long own jobs of a shape waited, in seconds. `shape` says which jobs were counted."""

    shape: str
    jobs: int
    median_s: float
    ninth_decile_s: float
    longest_s: float


@dataclass(frozen=True, slots=True)
class WhyView:
    """Why a job waits, or what it does instead. `sentence` and `actions` are for people, `evidence` as well: each of
    its sentences rests on the values beside it. `trial` is what the scheduler says of the request as it is, submitted
    anew. `stale` says why nothing newer is known (\"\" = it is new)."""

    job_id: str
    name: str
    state: str
    backend: str
    native_id: str
    waits: bool
    sentence: str
    actions: tuple[str, ...] = ()
    evidence: tuple[str, ...] = ()
    explanation: Explanation | None = None
    trial: Foretold | None = None
    history: WaitHistory | None = None
    alternatives: tuple[Alternative, ...] = ()
    stale: str = ""


@dataclass(frozen=True, slots=True)
class Outlook:
    """What awaits a request that is not submitted: the same, before."""

    backend: str
    evidence: tuple[str, ...] = ()
    explanation: Explanation | None = None
    trial: Foretold | None = None
    history: WaitHistory | None = None
    alternatives: tuple[Alternative, ...] = ()
    stale: str = ""
