"""Jobs that a scheduler remembers, and where they would run now: which of its places, and with what loss. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from ffdl_batch.domain.number_text import counted
from ffdl_batch.domain.quantity import format_time_limit

_MIB_PER_GIB = 1024


@dataclass(frozen=True, slots=True)
class PastJob:
    """One job as it was allocated. `cpus`, `gpus` and `memory_mib` are of all nodes together; `limit_s` None = it had
    no limit. `gpu_type` "" = not told. `licences` and `shares` (of GPUs) are names. `interactive`: a person sat at it;
    `heterogeneous`: it was one of several jobs that ran as one."""

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
    limit_s: int | None = None
    started: str = ""
    is_array: bool = False
    licences: tuple[str, ...] = ()
    shares: tuple[str, ...] = ()
    interactive: bool = False
    heterogeneous: bool = False

    @property
    def gpu_s(self) -> int:
        """GPU-seconds."""
        return self.gpus * self.elapsed_s

    @property
    def cpu_s(self) -> int:
        """CPU-seconds."""
        return self.cpus * self.elapsed_s

    def each(self, amount: int) -> int:
        """What a node has of an amount of all, rounded up."""
        return -(-amount // max(1, self.nodes))


@dataclass(frozen=True, slots=True)
class Unread:
    """A row of the accounting that is no job to us: `row` is its job's id, or how it begins."""

    row: str
    why: str


@dataclass(frozen=True, slots=True)
class PastJobs:
    """All jobs that have run, as far as their rows could be read."""

    jobs: Sequence[PastJob]
    unread: Sequence[Unread] = ()


@dataclass(frozen=True, slots=True)
class NodeGroup:
    """Nodes that are alike: how many, and what each has. None = not known. `gpus` maps a type ("" = untyped) to the
    number on a node."""

    nodes: int | None
    cpus: int | None
    memory_mib: int | None
    gpus: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Place:
    """Somewhere jobs can be sent: a partition, a profile. `rooms` None = its nodes are not known; `gpu_types` None =
    any type may be there. `limit_s` None = unlimited. `lacks` names what jobs never have there. `unread` is what could
    not be read of its nodes, which count for nothing then."""

    name: str
    backend: str
    node_groups: tuple[NodeGroup, ...] | None = None
    gpu_types: frozenset[str] | None = None
    limit_s: int | None = None
    lacks: frozenset[str] = frozenset()
    unread: tuple[Unread, ...] = ()


@dataclass(frozen=True, slots=True)
class Period:
    """Whose jobs, since which day (YYYY-MM-DD). Both "" = those of whoever asks."""

    since: str
    user: str = ""
    account: str = ""


class HistoryUnknown(Exception):
    """It cannot be asked, or what it says cannot be read; the message says what was tried and what to do."""


class HistoryMissing(HistoryUnknown):
    """What would have to be asked is not there at all, so that trying again does not help."""


SHARES, LICENCES, QUEUES = "shares", "licences", "queues"
"""What a place may lack: shares of a GPU, licences, and accounts and partitions of another scheduler."""


class Verdict(StrEnum):
    """Whether a job would run."""

    RUNS = "runs"
    LOSS = "with loss"
    NOT = "does not run"


@dataclass(frozen=True, slots=True)
class Fit:
    """Whether, where, and why not or with what loss."""

    place: Place
    verdict: Verdict
    reasons: tuple[str, ...] = ()


def judge(job: PastJob, place: Place) -> Fit:
    """Whether this place could have run it, by what it has and allows."""
    refused = [*_never(job), *_too_large(job, place)]
    if refused:
        return Fit(place, Verdict.NOT, tuple(refused))
    losses = _losses(job, place)
    return Fit(place, Verdict.LOSS if losses else Verdict.RUNS, tuple(losses))


def best_fit(job: PastJob, places: Sequence[Place]) -> Fit | None:
    """Where it would best run: without loss before with loss, where it ran before elsewhere, and then in the order of
    `places`; None where there is no place at all."""
    order = {Verdict.RUNS: 0, Verdict.LOSS: 1, Verdict.NOT: 2}
    fits = [judge(job, place) for place in places]
    return min(fits, key=lambda fit: (order[fit.verdict], fit.place.name != job.partition), default=None)


def _never(job: PastJob) -> list[str]:
    found = []
    if job.interactive:
        found.append("a person sat at it; `ffdl shell` and `ffdl exec` go into running trainings only")
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
    """Untyped GPUs may be of any type."""
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
        found.append(f"nobody counts licences ({', '.join(job.licences)}) there")
    if QUEUES in place.lacks and job.account:
        found.append("its account and priority are Slurm's; quotas there are the cluster's own")
    return found
