"""Whether a request can ever run on this cluster, told from its facts. Pure; every refusal names its field."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ffdl_batch.domain.findings import Finding
from ffdl_batch.domain.quantity import format_size, format_time_limit
from ffdl_batch.domain.spec import SITE_DEFAULT, JobSpec
from ffdl_batch.ports.scheduler import BackendFacts, NodeShape, PartitionShape
from ffdl_batch.runtimes.layout import RequestRefused, refusal
from ffdl_slurm.hostlist import expand
from ffdl_slurm.parsers import count_nodes

_MIB = 1024**2


@dataclass(frozen=True, slots=True)
class NodeRequest:
    """What one learner, which is one node's share, is asked for as: whole numbers. `gpu_type` "" = any; `kinds` are
    the types that nodes of the partition have."""

    cpus: int
    memory_mib: int
    gpus: int
    gpu_type: str
    kinds: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def gpu_gres(self) -> str:
        """The GPU part of ``--gres``, "" without GPUs."""
        kind = f"{self.gpu_type}:" if self.gpu_type else ""
        return f"gpu:{kind}{self.gpus}" if self.gpus else ""


def fit_request(spec: JobSpec, partition: str, facts: BackendFacts) -> NodeRequest:
    """Whole numbers for Slurm, checked against the nodes of `partition` ("" = the default one).

    Raises RequestRefused with all that does not fit. Without facts about nodes nothing is checked against them.
    """
    wanted = spec.resources
    findings: list[Finding] = []
    warnings: list[str] = []
    cpus = max(1, math.ceil(wanted.cpus))
    if cpus != wanted.cpus:
        warnings.append(f"cpus: {wanted.cpus:g} is rounded up to {cpus}, Slurm gives whole CPUs")
    if wanted.gpus != int(wanted.gpus) or wanted.gpus < 0:
        message = f"{wanted.gpus:g} GPUs: shares of a GPU (gres/shard, MPS, MIG) are not offered yet"
        raise RequestRefused([refusal("gpus", message, "ask for whole GPUs", "C104")], not_yet=True)
    shapes, chosen = _choose_partition(partition, facts, findings)
    gpu_type = _match_gpu_type(spec, shapes, findings) if wanted.gpus else ""
    request = NodeRequest(
        cpus, -(-wanted.memory_bytes // _MIB), int(wanted.gpus), gpu_type, _kinds(shapes), tuple(warnings)
    )
    _check_names(spec.batch.nodelist, facts.nodes, findings)
    if not findings:
        _check_nodes(spec, request, shapes, findings)
    if not findings:
        _check_learners(wanted.learners, request, shapes, chosen, findings)
    _check_time(spec, chosen, findings)
    if findings:
        raise RequestRefused(findings)
    return request


def _choose_partition(
    partition: str, facts: BackendFacts, findings: list[Finding]
) -> tuple[Sequence[NodeShape], Sequence[PartitionShape]]:
    """The nodes and partitions that the job may run in."""
    if not facts.partitions:
        return facts.nodes, ()
    known = {shape.name: shape for shape in facts.partitions}
    names = [name for name in partition.split(",") if name]
    for name in (name for name in names if name not in known):
        there = ", ".join(sorted(known))
        findings.append(refusal("batch.partition", f"there is no partition {name!r}; known: {there}", code="C104"))
    chosen = [known[name] for name in names if name in known]
    if not names:
        chosen = [shape for shape in facts.partitions if shape.is_default]
    wanted = {shape.name for shape in chosen}
    nodes = [node for node in facts.nodes if not wanted or not node.partitions or wanted & set(node.partitions)]
    return nodes, chosen


def _match_gpu_type(spec: JobSpec, nodes: Sequence[NodeShape], findings: list[Finding]) -> str:
    """The cluster's spelling of the GPU type that was asked for."""
    asked = spec.resources.gpu_type
    known = _kinds(nodes)
    if not asked or not nodes:
        return asked
    match = next((kind for kind in known if _same(kind, asked)), None)
    if match is not None:
        return match
    there = f"known: {', '.join(known)}" if known else "its GPUs have no types, so leave gpu_type out"
    findings.append(refusal("gpu_type", f"there is no GPU of type {asked!r} here; {there}", code="C104"))
    return asked


def _kinds(nodes: Sequence[NodeShape]) -> tuple[str, ...]:
    return tuple(sorted({kind for node in nodes for kind in node.gpus if kind}))


def _same(kind: str, asked: str) -> bool:
    """FfDL writes nvidia-TeslaK80 where a site may write tesla_k80: case, dashes and the vendor do not count."""

    def plain(text: str) -> str:
        letters = "".join(c for c in text.lower() if c.isalnum())
        return letters.removeprefix("nvidia").removeprefix("amd")

    return plain(kind) == plain(asked)


def _check_names(nodelist: str, nodes: Sequence[NodeShape], findings: list[Finding]) -> None:
    """Names that this cluster does not have. What is not surely understood is left to Slurm."""
    asked = expand(nodelist) if nodelist else None
    known = [expand(node.name) for node in nodes]
    if asked is None or not known or None in known:
        return
    unknown = sorted(asked.difference(*(names for names in known if names)))
    if unknown:
        more = f" and {len(unknown) - 1} more" if len(unknown) > 1 else ""
        there = ", ".join(dict.fromkeys(node.name for node in nodes))
        message = f"there is no node {unknown[0]!r}{more} here; known: {there}"
        findings.append(refusal("batch.nodelist", message, code="C104"))


def _check_nodes(spec: JobSpec, request: NodeRequest, nodes: Sequence[NodeShape], findings: list[Finding]) -> None:
    if not nodes:
        return
    gpus = max(_gpus(node, request.gpu_type) for node in nodes)
    kind = f" of type {request.gpu_type}" if request.gpu_type else ""
    if request.gpus > gpus:
        message = f"{request.gpus} GPUs{kind} per learner, but no node here has more than {gpus}"
        findings.append(refusal("gpus", message, "use more learners with fewer GPUs each", "C104"))
    cpus = max(node.cpus for node in nodes)
    if request.cpus > cpus:
        message = f"{request.cpus} CPUs per learner{_unsaid(spec, 'cpus')}, but no node here has more than {cpus}"
        findings.append(refusal("cpus", message, _cure(spec, "cpus"), "C104"))
    memory = max(node.memory_bytes for node in nodes)
    if request.memory_mib * _MIB > memory:
        asked = format_size(spec.resources.memory_bytes) + f" per learner{_unsaid(spec, 'memory')}"
        message = f"{asked}, but no node here has more than {format_size(memory)}"
        findings.append(refusal("memory", message, _cure(spec, "memory"), "C104"))
    if not findings and not any(_fits(request, node) for node in nodes):
        message = f"no single node here has {request.gpus} GPUs{kind}, {request.cpus} CPUs and that much memory at once"
        findings.append(refusal("", message, "ask for less of one of them", "C104"))


def _unsaid(spec: JobSpec, key: str) -> str:
    """Who said it, where the user did not."""
    return f" (the site's default_{key}: the manifest names none)" if spec.sources.get(key) == SITE_DEFAULT else ""


def _cure(spec: JobSpec, key: str) -> str:
    option = {"cpus": "-c", "memory": "--mem"}[key]
    if not _unsaid(spec, key):
        return ""
    return f"write {key}: in the manifest or give {option}; default_{key} is set in the configuration"


def _check_learners(
    learners: int,
    request: NodeRequest,
    nodes: Sequence[NodeShape],
    partitions: Sequence[PartitionShape],
    findings: list[Finding],
) -> None:
    """Every learner has a node of its own, and a job lies in one partition; Slurm would let it wait for ever."""
    if not nodes:
        return
    names = [shape.name for shape in partitions] or ["the cluster"]
    fitting = {
        name: sum(
            count_nodes(node.name)
            for node in nodes
            if _fits(request, node) and (not partitions or not node.partitions or name in node.partitions)
        )
        for name in names
    }
    if learners <= max(fitting.values()):
        return
    there = ", ".join(
        f"{name} has {count} {'node that holds' if count == 1 else 'nodes that hold'} one"
        for name, count in fitting.items()
    )
    message = f"{learners} learners need a node each, but {there}"
    findings.append(refusal("learners", message, "ask for fewer learners, or for less per learner", "C104"))


def _gpus(node: NodeShape, kind: str) -> int:
    return node.gpus.get(kind, 0) if kind else sum(node.gpus.values())


def _fits(request: NodeRequest, node: NodeShape) -> bool:
    return (
        _gpus(node, request.gpu_type) >= request.gpus
        and node.cpus >= request.cpus
        and node.memory_bytes >= request.memory_mib * _MIB
    )


def _check_time(spec: JobSpec, partitions: Sequence[PartitionShape], findings: list[Finding]) -> None:
    limits = [shape.max_time_s for shape in partitions]
    if spec.batch.time_s is None or not limits or None in limits:
        return
    longest = max(limit for limit in limits if limit is not None)
    if spec.batch.time_s > longest:
        names = ", ".join(shape.name for shape in partitions)
        message = f"{format_time_limit(spec.batch.time_s)} is over the limit of {names}, {format_time_limit(longest)}"
        findings.append(refusal("batch.time", message, code="C104"))
