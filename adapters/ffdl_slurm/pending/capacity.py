"""What nodes and queue of a cluster, as they are at a moment, mean for one request. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ffdl_batch.domain.backend_facts import BackendFacts
from ffdl_batch.domain.job.spec import JobSpec
from ffdl_batch.domain.pending.explanation import Ahead, Capacity, NodeAway, WaitKind
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.runtimes.learner_start import RequestRefused
from ffdl_slurm.hostlist import expand
from ffdl_slurm.pending.parsers import NodeNow
from ffdl_slurm.pending.reasons import read_reason
from ffdl_slurm.pending.squeue import LiveJob
from ffdl_slurm.planning.eligible_nodes import may_have
from ffdl_slurm.planning.request_check import fit_request

_MIB = 1024**2
_MOST_AWAY = 8
_IN_LINE = frozenset({WaitKind.RESOURCES, WaitKind.PRIORITY, WaitKind.UNCONSIDERED, WaitKind.NODES_AWAY})
"""Jobs that wait for these may start when there is room; others wait for something else first."""


@dataclass(frozen=True, slots=True)
class Share:
    """What each of `nodes` nodes is asked for."""

    nodes: int
    gpus: int
    gpu_type: str
    cpus: int
    memory_mib: int

    @property
    def asked(self) -> dict[str, int]:
        """Of all nodes together, by the names of Slurm's trackable resources."""
        gpus = {f"gres/gpu:{self.gpu_type}" if self.gpu_type else "gres/gpu": self.nodes * self.gpus}
        return {"cpu": self.nodes * self.cpus, "mem": self.nodes * self.memory_mib, "node": self.nodes, **gpus}


def share_of(spec: JobSpec, partition: str, facts: BackendFacts) -> Share:
    """Return the request per node of the batch script; if it does not fit, that of one learner per node."""
    try:
        node = fit_request(spec, partition, facts)
    except RequestRefused:
        each = spec.resources
        return Share(
            each.learners,
            math.ceil(each.gpus),
            each.gpu_type,
            math.ceil(each.cpus),
            math.ceil(each.memory_bytes / _MIB),
        )
    load = node.load
    return Share(node.gang.nodes, load.gpus, node.generic.gpu_type, load.cpus, load.memory_mib)


def capacity_in(partition: str, share: Share, spec: JobSpec, nodes: Sequence[NodeNow]) -> Capacity:
    """Return what `partition` has for the request now."""
    named, excluded = expand(spec.batch.nodelist), expand(spec.batch.exclude) or frozenset[str]()
    suited = [
        node
        for node in nodes
        if partition in node.partitions
        and node.all_gpus(share.gpu_type) >= max(share.gpus, 1 if share.gpu_type else 0)
        and node.name not in excluded
        and (not spec.batch.nodelist or named is None or node.name in named)
        and may_have(spec.batch.constraint, node.features)
    ]
    open_: list[NodeNow] = []
    away: list[NodeAway] = []
    for node in suited:
        if node.takes_jobs and not node.is_kept_from(spec.batch.reservation):
            open_.append(node)
        else:
            away.append(_away(node))
    return Capacity(
        partition=partition,
        gpu_type=share.gpu_type,
        gpus=sum(node.all_gpus(share.gpu_type) for node in open_),
        gpus_free=sum(node.free_gpus(share.gpu_type) for node in open_),
        nodes=len(open_),
        fitting=sum(_holds(node, share) for node in open_),
        wanted=share.nodes,
        gpus_each=share.gpus,
        away=tuple(away[:_MOST_AWAY]),
        away_more=len(away[_MOST_AWAY:]),
    )


def _away(node: NodeNow) -> NodeAway:
    return NodeAway(node.name, node.state, node.why or (f"reservation {node.reservation}" if node.reservation else ""))


def _holds(node: NodeNow, share: Share) -> bool:
    return (
        node.free_gpus(share.gpu_type) >= share.gpus
        and node.cpus_free >= share.cpus
        and node.memory_free_mib >= share.memory_mib
    )


def ahead_in(partition: str, mine: LiveJob | None, user: str, jobs: Sequence[LiveJob]) -> Ahead:
    """Return the jobs before `mine` in `partition`. A request that was not submitted (None) has all waiting jobs before
    it."""
    there = [job for job in jobs if partition in job.partitions]
    waiting = [job for job in there if job.pending and job is not mine]
    before = [
        job for job in waiting if read_reason(job.reason).kind in _IN_LINE and (mine is None or _is_before(job, mine))
    ]
    running = [job for job in there if not job.pending]
    return Ahead(
        partition=partition,
        jobs=sum(job.elements for job in before),
        own=sum(job.elements for job in before if job.user == user),
        gpus=sum(job.elements * job.gpus for job in before),
        waiting=sum(job.elements for job in waiting),
        running=len(running),
        next_end=min((job.end for job in running if job.end is not None), default=None),
    )


def _is_before(other: LiveJob, mine: LiveJob) -> bool:
    """Equal priorities go by age (slurmctld's sort by job id)."""
    if other.priority != mine.priority:
        return other.priority > mine.priority
    return _age(other) < _age(mine)


def _age(job: LiveJob) -> tuple[int, ...]:
    """Return the order of a job id, such as ``12``, or ``12+1`` for a part of a heterogeneous job."""
    return tuple(int(number) for number in job.number.split("+"))
