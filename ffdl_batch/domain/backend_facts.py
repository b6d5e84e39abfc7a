"""What a backend reports about its site, its accounting and what it stores; values without behaviour."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ffdl_batch.domain.job.spec import JobSpec
from ffdl_batch.domain.launch.network_level import NetworkLevel
from ffdl_batch.domain.outcome.observation import NativeId


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
class WaitingRequest:
    """What is asked about: a job in the backend's queue, or (`native_id` None) a request that is not submitted."""

    spec: JobSpec
    facts: BackendFacts
    native_id: NativeId | None = None


@dataclass(frozen=True, slots=True)
class AccountingOutage:
    """An accounting that does not answer: for how many seconds, why, and in how many it is asked again."""

    for_s: float
    detail: str
    again_in_s: float


@dataclass(frozen=True, slots=True)
class Storing:
    """How the storing of what an attempt left goes: `why` it waits, or failed ("" = it goes on). `ended`: it does not
    go on. `interrupted`: it failed by what says nothing of the store, or of what is to be stored: its place was taken,
    its node lost, or it never began."""

    why: str = ""
    ended: bool = False
    interrupted: bool = False


@dataclass(frozen=True, slots=True)
class AccountedRun:
    """One start of an attempt by the accounting: how long it took in seconds, and the GPUs and CPUs that were allocated
    (None = the accounting does not count them). `unread` ("" = it can be read) is why what the accounting has of the
    attempt cannot be read: nothing else is known then."""

    elapsed_s: float
    gpus: float | None
    cpus: float | None
    is_over: bool
    unread: str = ""
