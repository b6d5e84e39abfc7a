"""Jobs that a scheduler's accounting remembers, and on which partition or profile they would run now. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from enum import StrEnum

from ffdl_batch.domain.number_text import counted
from ffdl_batch.domain.quantity import format_time_limit
from ffdl_batch.host.fast_dataclass import dataclass

_MIB_PER_GIB = 1024


@dataclass(frozen=True, slots=True)
class PastJob:
    """One job as it was allocated. Amounts are totals of all its nodes."""

    id: str
    user: str
    account: str
    name: str
    partition: str
    state: str
    elapsed_s: int
    nodes: int
    cpus: int
    memory_mib: int = 0
    gpus: int = 0
    gpu_type: str = ""
    """"" = not recorded."""
    limit_s: int | None = None
    """None = it had no limit."""
    started: str = ""
    is_array: bool = False
    licences: tuple[str, ...] = ()
    """Names."""
    shares: tuple[str, ...] = ()
    """Names of shares of GPUs."""
    interactive: bool = False
    """Whether a person used it interactively."""
    heterogeneous: bool = False
    """Whether it was one component of a heterogeneous job."""

    @property
    def gpu_s(self) -> int:
        """GPU-seconds."""
        return self.gpus * self.elapsed_s

    @property
    def cpu_s(self) -> int:
        """CPU-seconds."""
        return self.cpus * self.elapsed_s

    def each(self, amount: int) -> int:
        """Return the share of one node in `amount`, rounded up."""
        return -(-amount // max(1, self.nodes))


@dataclass(frozen=True, slots=True)
class Unread:
    """A row of the accounting that cannot be read as a job."""

    row: str
    """The job's id, or how the row begins."""
    why: str


@dataclass(frozen=True, slots=True)
class PastJobs:
    """All jobs whose rows could be read, and the other rows."""

    jobs: Sequence[PastJob]
    unread: Sequence[Unread] = ()


@dataclass(frozen=True, slots=True)
class NodeGroup:
    """A number of equal nodes. None = not known."""

    nodes: int | None
    cpus: int | None
    memory_mib: int | None
    gpus: Mapping[str, int] = field(default_factory=dict)
    """GPU type ("" = untyped) → number on a node."""


@dataclass(frozen=True, slots=True)
class Place:
    """A partition or a profile that jobs can be sent to."""

    name: str
    backend: str
    node_groups: tuple[NodeGroup, ...] | None = None
    """None = its nodes are not known."""
    gpu_types: frozenset[str] | None = None
    """None = it may have any type."""
    limit_s: int | None = None
    """None = unlimited."""
    lacks: frozenset[str] = frozenset()
    """What jobs never get there: SHARES, LICENCES, QUEUES."""
    unread: tuple[Unread, ...] = ()
    """Rows about its nodes that could not be read; these nodes are not counted."""


@dataclass(frozen=True, slots=True)
class Period:
    """Which jobs to read. `user` and `account` "" = those of the user who asks."""

    since: str
    """A day, YYYY-MM-DD."""
    user: str = ""
    account: str = ""


class HistoryUnknown(Exception):
    """The history cannot be read; the message says what was tried and what to do."""


class HistoryMissing(HistoryUnknown):
    """The source of the history does not exist on this machine, so a retry does not help."""


SHARES, LICENCES, QUEUES = "shares", "licences", "queues"
"""What a place may lack: shares of a GPU, licences, and the accounts and partitions of another scheduler."""


class Verdict(StrEnum):
    """Whether a job would run."""

    RUNS = "runs"
    LOSS = "with loss"
    NOT = "does not run"


@dataclass(frozen=True, slots=True)
class Fit:
    """Whether a job would run at a place, and why not or with what loss."""

    place: Place
    verdict: Verdict
    reasons: tuple[str, ...] = ()


def judge(job: PastJob, place: Place) -> Fit:
    """Return whether the place could have run the job, by its nodes and limits."""
    refused = [*_never(job), *_too_large(job, place)]
    if refused:
        return Fit(place, Verdict.NOT, tuple(refused))
    losses = _losses(job, place)
    return Fit(place, Verdict.LOSS if losses else Verdict.RUNS, tuple(losses))


def best_fit(job: PastJob, places: Sequence[Place]) -> Fit | None:
    """Return the best place: one without loss first, then the partition in which the job ran, then the order of
    `places`. None if there is no place."""
    order = {Verdict.RUNS: 0, Verdict.LOSS: 1, Verdict.NOT: 2}
    fits = [judge(job, place) for place in places]
    return min(fits, key=lambda fit: (order[fit.verdict], fit.place.name != job.partition), default=None)


def _never(job: PastJob) -> list[str]:
    found = []
    if job.interactive:
        found.append("it was interactive; `ffdl shell` and `ffdl exec` go into running trainings only")
    if job.heterogeneous:
        found.append("it was one of several jobs that ran as one; write them as roles of one manifest")
    return found


def _too_large(job: PastJob, place: Place) -> list[str]:
    if job.shares and SHARES in place.lacks:
        return [f"shares of GPUs ({', '.join(job.shares)}) are not offered there"]
    if place.gpu_types is not None and job.gpus and not place.gpu_types:
        return ["it has no GPUs"]
    if job.gpu_type and place.gpu_types is not None and not _has_type(job, place):
        return [f"it has no GPUs of type {job.gpu_type} (it has {', '.join(sorted(place.gpu_types)) or 'none'})"]
    if place.node_groups is None:
        return []
    known = [room for room in place.node_groups if _fits_one(job, room)]
    if not known:
        return [f"none of its nodes has {_wanted(job)}"]
    if all(room.nodes is not None for room in known):
        there = sum(room.nodes or 0 for room in known)
        if there < job.nodes:
            return [f"{counted(job.nodes, 'node')} with {_wanted(job)}, and it has {there}"]
    return []


def _has_type(job: PastJob, place: Place) -> bool:
    """Return whether the place may have the type; untyped GPUs may be of any type."""
    types = {name.lower() for name in place.gpu_types or ()}
    return job.gpu_type.lower() in types or "" in types


def _fits_one(job: PastJob, node_group: NodeGroup) -> bool:
    if node_group.cpus is not None and job.each(job.cpus) > node_group.cpus:
        return False
    if node_group.memory_mib is not None and job.each(job.memory_mib) > node_group.memory_mib:
        return False
    wanted = job.each(job.gpus)
    types = {name.lower(): count for name, count in node_group.gpus.items()}
    there = max(types.get(job.gpu_type.lower(), 0), types.get("", 0)) if job.gpu_type else sum(types.values())
    return wanted <= there


def _wanted(job: PastJob) -> str:
    words = [counted(job.each(job.cpus), "CPU")]
    if job.gpus:
        kind = f" of type {job.gpu_type}" if job.gpu_type else ""
        words.append(f"{counted(job.each(job.gpus), 'GPU')}{kind}")
    if job.memory_mib:
        words.append(f"{job.each(job.memory_mib) / _MIB_PER_GIB:.1f} GiB")
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def _losses(job: PastJob, place: Place) -> list[str]:
    found = []
    if place.limit_s is not None and job.elapsed_s > place.limit_s:
        runs = -(-job.elapsed_s // place.limit_s)
        found.append(f"{runs} attempts of {format_time_limit(place.limit_s)}: the training has to write checkpoints")
    elif place.limit_s is not None and job.limit_s is not None and job.limit_s > place.limit_s:
        found.append(f"the time limit is {format_time_limit(place.limit_s)}, which was enough then")
    if job.licences and LICENCES in place.lacks:
        found.append(f"licences are not counted there ({', '.join(job.licences)})")
    if QUEUES in place.lacks and job.account:
        found.append("its account and priority are Slurm's; quotas there are the cluster's own")
    return found
