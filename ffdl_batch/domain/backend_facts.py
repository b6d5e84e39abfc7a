"""What a backend reports about itself, its site, its accounting and what it stores; values without behaviour."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from ffdl_batch.domain.job.spec import JobSpec
from ffdl_batch.domain.launch.network_level import NetworkLevel
from ffdl_batch.domain.outcome.observation import NativeId
from ffdl_batch.host.fast_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class NodeShape:
    """One kind of node."""

    name: str
    cpus: int
    memory_bytes: int
    gpus: Mapping[str, int] = field(default_factory=dict)
    """GPU type ("" = untyped) → number of GPUs of a node."""
    partitions: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    """What the site says that these nodes can do."""
    gres: Mapping[str, int] = field(default_factory=dict)
    """Other generic resource (``name`` or ``name:type``) → count of a node."""


@dataclass(frozen=True, slots=True)
class PartitionShape:
    """One partition."""

    name: str
    is_default: bool = False
    max_time_s: int | None = None
    """None = unlimited."""


@dataclass(frozen=True, slots=True)
class BackendTraits:
    """What is constant for a backend, known without asking its scheduler."""

    own_keys: frozenset[str] = frozenset()
    """The keys of `batch:` that it uses and not every backend does; a subset of `profile` and `kubernetes`."""
    model_bytes: int | None = None
    """Size of the largest model archive that it accepts; None = any size."""
    credential_life_s: float = 0.0
    """Seconds after which a request that was sent can no longer be accepted."""


@dataclass(frozen=True, slots=True)
class BackendFacts:
    """What a backend knew about its site when it was last asked; input of `plan`, so that `plan` is pure."""

    nodes: tuple[NodeShape, ...] = ()
    partitions: tuple[PartitionShape, ...] = ()
    network_levels: frozenset[NetworkLevel] = frozenset({NetworkLevel.HOST})
    """Levels that every job can have: they were checked beforehand, or the program that starts a learner enforces
    them."""
    version: str = ""
    python: str = ""
    """Interpreter of the controllers on the nodes."""
    controller: tuple[str, ...] = ()
    """The argv after `python`."""
    staging: tuple[str, ...] = ()
    """The argv that starts the staging program on the nodes; empty = the nodes see no installation."""
    warnings: tuple[str, ...] = ()
    needs_image: bool = True
    """False if learners run as plain processes."""
    pulls_images: bool = False
    """Whether images are references of registries, never files."""
    max_array_size: int = 0
    """The largest index of a native array plus one; 0 = there are no native arrays."""
    elements_at_once: int | None = None
    """How many elements of one array may be submitted at the same time, if each waiting element costs this machine
    resources; None = all."""
    is_this_machine: bool = False
    """Whether jobs run on the machine that asks: a file that it does not see exists nowhere."""
    is_passing: bool = False
    """Whether more will be known in a moment, so that the backend is asked again soon."""
    lacks: tuple[str, ...] = ()
    """What this site cannot do, in sentences."""
    cpu_limit: float | None = None
    """CPU limit of a container that names none, if the cluster demands a limit; 0 = such a container is refused; None =
    no limit is needed."""
    default_storage_bytes: float | None = None
    """Disk space of a container that names none, if the cluster demands an amount; 0 = such a container is refused;
    None = no amount is needed."""


@dataclass(frozen=True, slots=True)
class WaitingRequest:
    """A job in the backend's queue, or a request that is not submitted."""

    spec: JobSpec
    facts: BackendFacts
    native_id: NativeId | None = None
    """None = it is not submitted."""


@dataclass(frozen=True, slots=True)
class Absent:
    """What a scheduler and its accounting report about jobs that they no longer list."""

    gone: frozenset[NativeId] = frozenset()
    """Jobs that the scheduler has forgotten."""
    lost: frozenset[NativeId] = frozenset()
    """Those of `gone` that it forgot although no process ended them: the accounting still shows them as waiting or
    running."""
    dropped: Mapping[NativeId, str] = field(default_factory=dict)
    """Those of `gone` that are array tasks missing from a listing which still has other tasks of their arrays, each
    with the token of its attempt. Such a task never started: it was cancelled."""


@dataclass(frozen=True, slots=True)
class AccountingOutage:
    """An accounting that does not answer."""

    for_s: float
    """Seconds since the outage began."""
    detail: str
    """The cause."""
    again_in_s: float
    """Seconds until the next request."""


@dataclass(frozen=True, slots=True)
class Storing:
    """Progress of the upload of what an attempt left."""

    why: str = ""
    """Why it waits or has failed; "" = it runs."""
    ended: bool = False
    """Whether it has stopped."""
    interrupted: bool = False
    """Whether it failed for a reason that concerns neither the store nor the data: it was preempted, its node was lost,
    or it never started."""


@dataclass(frozen=True, slots=True)
class AccountedRun:
    """One run of an attempt according to the accounting."""

    elapsed_s: float
    gpus: float | None
    """Allocated GPUs; None = the accounting does not count them."""
    cpus: float | None
    """Allocated CPUs; None = the accounting does not count them."""
    is_over: bool
    unread: str = ""
    """Why the record cannot be read; the other fields then mean nothing. "" = it can be read."""


@dataclass(frozen=True, slots=True)
class AccountedUse:
    """What one user held under one account in a period, according to the accounting."""

    user: str
    account: str
    jobs: int
    """Jobs that ran in the period. A requeued job counts once for each run."""
    gpu_s: float
    """GPU-seconds."""
    cpu_s: float
