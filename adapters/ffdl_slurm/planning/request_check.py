"""Check whether a request can ever run on this cluster, according to its facts. Pure. Every refusal names its field."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ffdl_batch.domain.backend_facts import BackendFacts, NodeShape, PartitionShape
from ffdl_batch.domain.findings import Finding
from ffdl_batch.domain.job.learner_layout import Gang, Load, Part, largest, lay_out, members_of, parts_of
from ffdl_batch.domain.job.spec import SITE_DEFAULT, JobSpec, Placement
from ffdl_batch.domain.launch.attach_protocol import INTERACTIVE_COMMAND
from ffdl_batch.domain.number_text import counted
from ffdl_batch.domain.quantity import format_size, format_time_limit
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.runtimes.learner_start import RequestRefused, refusal
from ffdl_slurm.hostlist import expand
from ffdl_slurm.planning.eligible_nodes import Group, count_named, narrow, node_constraints
from ffdl_slurm.planning.gres import Generic, choose, count_gpus, kinds

_MIB = 1024**2


@dataclass(frozen=True, slots=True)
class NodeRequest:
    """The request for each node of the allocation, in whole numbers, and the placement of learners."""

    gang: Gang
    generic: Generic
    kinds: tuple[str, ...] = ()
    """The GPU types of the partition's nodes."""
    warnings: tuple[str, ...] = ()

    @property
    def load(self) -> Load:
        """The load of the fullest node, which is requested of all nodes."""
        return self.gang.load

    @property
    def gres(self) -> str:
        """The value of --gres for one node; "" for none."""
        return self.generic.text(self.load)

    @property
    def is_uniform(self) -> bool:
        """Whether all nodes of the allocation are known to have the same generic resources: GPUs of one type, or
        none."""
        return not self.gres or (not self.generic.each and (bool(self.generic.gpu_type) or len(self.kinds) < 2))

    @property
    def allocated_gpus(self) -> float:
        """The GPUs of all nodes together. Shares count as parts of a GPU."""
        shared = self.load.shares / self.generic.per_gpu if self.load.shares else 0.0
        return self.gang.allocated_gpus + self.gang.nodes * shared


def fit_request(spec: JobSpec, partition: str, facts: BackendFacts) -> NodeRequest:
    """Return the request in whole numbers, checked against the nodes of `partition` ("" = the default one).

    Raises RequestRefused with all that does not fit. Without facts about nodes, nothing is checked against them.
    """
    findings: list[Finding] = []
    parts = parts_of(spec)
    shapes, chosen = _choose_partition(partition, facts, findings)
    groups = narrow(spec.batch, shapes)
    left = [group.shape for group in groups] or shapes
    generic = choose(spec.resources.gres, spec.resources.gpu_type, parts, left, findings)
    _check_names(spec.batch.nodelist, facts.nodes, findings)
    if not findings:
        findings += _check_left(spec, shapes)
    if not findings:
        findings += dict.fromkeys(one for part in parts for one in _check_nodes(spec, part, generic, groups))
    gang = None
    if not findings:
        gang = _seat(spec, generic, groups, chosen, findings)
    _check_time(spec, chosen, findings)
    if findings or gang is None:
        raise RequestRefused(findings)
    shares = dict.fromkeys(filter(None, map(generic.note, parts)))
    return NodeRequest(gang, generic, kinds(shapes), (*_note_rounding(parts), *shares, *_note_idle(gang)))


def _note_rounding(parts: Sequence[Part]) -> tuple[str, ...]:
    notes = (
        f"{part.path('cpus')}: {part.cpus:g} is rounded up to {part.load.cpus}, Slurm gives whole CPUs"
        for part in parts
        if part.load.cpus != part.cpus
    )
    return tuple(dict.fromkeys(notes))


def _note_idle(gang: Gang) -> tuple[str, ...]:
    idle = gang.allocated_gpus - gang.gpus
    if not idle:
        return ()
    each = f"each of {gang.nodes} nodes is asked for {gang.load.gpus}, as many as the fullest one needs"
    counted = f"{idle} of {gang.allocated_gpus} are idle, and count for batch.retry.gpu_hours"
    return (f"gpus: {each}, and the learners have {gang.gpus}; {counted}",)


def _choose_partition(
    partition: str, facts: BackendFacts, findings: list[Finding]
) -> tuple[Sequence[NodeShape], Sequence[PartitionShape]]:
    """Return the nodes and partitions that the job may run in."""
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


def nodes_of(partition: str, facts: BackendFacts) -> Sequence[NodeShape]:
    """Return the nodes that a job of `partition` may run on ("" = the default one)."""
    return _choose_partition(partition, facts, [])[0]


def _check_names(nodelist: str, nodes: Sequence[NodeShape], findings: list[Finding]) -> None:
    """Report names of nodes that this cluster does not have. Lists that are not certain are left to Slurm."""
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


def _check_left(spec: JobSpec, nodes: Sequence[NodeShape]) -> Iterator[Finding]:
    """Yield a finding if the constraints of the request leave no node."""
    if not nodes or narrow(spec.batch, nodes):
        return
    said = [field for field in node_constraints(spec.batch) if field != "batch.nodelist"]
    features = sorted({feature for node in nodes for feature in node.features})
    known = f"; known features: {', '.join(features)}" if spec.batch.constraint else ""
    message = f"{' and '.join(said)} {'leaves' if len(said) == 1 else 'leave'} no node here{known}"
    yield refusal(said[-1], message, "ask for existing nodes", "C104")


def _check_nodes(spec: JobSpec, part: Part, generic: Generic, groups: Sequence[Group]) -> Iterator[Finding]:
    """Yield findings if no node could hold one of these learners."""
    each, gpu_type = generic.load_of(part), generic.gpu_type
    nodes = [group.shape for group in groups if group.named] or [group.shape for group in groups]
    said = node_constraints(spec.batch)
    here = f"here that {' and '.join(said)} leave{'s' if len(said) == 1 else ''}" if said else "here"
    if not nodes or any(each.fits(generic.capacity_of(node)) for node in nodes):
        return
    gpus = max(count_gpus(node, gpu_type) for node in nodes)
    cpus = max(node.cpus for node in nodes)
    memory = max(node.memory_bytes for node in nodes)
    kind = f" of type {gpu_type}" if gpu_type else ""
    if each.gpus > gpus:
        message = (
            f"{counted(each.gpus, 'GPU')}{kind} {part.per_learner('gpus')}, but no node {here} has more than {gpus}"
        )
        cure = f"ask for at most {gpus}"
        if spec.framework.command != INTERACTIVE_COMMAND:
            cure += ", or use more learners with fewer GPUs each"
        yield refusal(part.path("gpus"), message, cure, "C104")
    if each.cpus > cpus:
        message = f"{each.cpus} CPUs {_whose(spec, part, 'cpus')}, but no node {here} has more than {cpus}"
        yield refusal(part.path("cpus"), message, _cure(spec, part, "cpus"), "C104")
    if each.memory_mib * _MIB > memory:
        asked = f"{format_size(part.memory_bytes)} {_whose(spec, part, 'memory')}"
        message = f"{asked}, but no node {here} has more than {format_size(memory)}"
        yield refusal(part.path("memory"), message, _cure(spec, part, "memory"), "C104")
    if each.gpus <= gpus and each.cpus <= cpus and each.memory_mib * _MIB <= memory:
        others = "".join(f", {number} {name}" for name, number in generic.each.items())
        gpus_and = f"{part.gpus:g} {'GPU' if part.gpus == 1 else 'GPUs'}{kind}{others}"
        message = f"no single node {here} has {gpus_and}, {each.cpus} CPUs and that much memory at once"
        path = f"batch.roles.{part.role}" if part.own else ""
        yield refusal(path, message, "ask for less of one of them", "C104")


def _whose(spec: JobSpec, part: Part, key: str) -> str:
    """Return whose amount it is, and the source if it is not the user."""
    default = f" (the site's default_{key}: the manifest names none)" if _is_default(spec, part, key) else ""
    return part.per_learner(key) + default


def _cure(spec: JobSpec, part: Part, key: str) -> str:
    option = {"cpus": "-c", "memory": "--mem"}[key]
    if not _is_default(spec, part, key):
        return ""
    return f"write {key}: in the manifest or give {option}; default_{key} is set in the configuration"


def _is_default(spec: JobSpec, part: Part, key: str) -> bool:
    return key not in part.own and spec.sources.get(key) == SITE_DEFAULT


def _seat(
    spec: JobSpec,
    generic: Generic,
    groups: Sequence[Group],
    partitions: Sequence[PartitionShape],
    findings: list[Finding],
) -> Gang | None:
    """Place all learners on nodes of one partition, because Slurm would let a request that does not fit wait for ever.
    If no nodes are known, each learner has its own."""
    members = members_of(spec, generic.load_of)
    if not groups:
        return lay_out(members, Placement.NODE, lambda _: len(members))
    rooms = {shape.name: _capacities_in(shape.name, groups, generic) for shape in partitions}
    rooms = rooms or {"the cluster": _capacities_in("", groups, generic)}

    def count_holding(load: Load) -> dict[str, int]:
        return {name: _count_holding(load, found) for name, found in rooms.items()}

    def holds(load: Load) -> int:
        return max(count_holding(load).values())

    named = count_named(spec.batch)
    gang = lay_out(members, spec.batch.placement, holds, named)
    if gang is None:
        alone = spec.batch.placement is Placement.NODE
        sharing = alone and lay_out(members, Placement.PACK, holds, named) is not None
        findings.append(_unseated(len(members), count_holding(largest(members)), alone=alone, sharing=sharing))
    return gang


Capacities = Mapping[tuple[Load, bool], int]
"""How many nodes have this room; those that the request names, which have to be in the allocation, by themselves."""


def _capacities_in(partition: str, groups: Sequence[Group], generic: Generic) -> Capacities:
    """Return the nodes of one partition ("" = of all), counted by capacity and whether the request names them. There
    are few kinds of nodes, and many loads to check."""
    rooms: dict[tuple[Load, bool], int] = {}
    for group in groups:
        if partition and group.shape.partitions and partition not in group.shape.partitions:
            continue
        room = generic.capacity_of(group.shape)
        for is_named, count in ((True, group.named), (False, group.count - group.named)):
            rooms[room, is_named] = rooms.get((room, is_named), 0) + count
    return rooms


def _count_holding(load: Load, capacities: Capacities) -> int:
    """Return how many nodes can hold the load; 0 if a node that the allocation must have cannot."""
    if any(count and is_named and not load.fits(room) for (room, is_named), count in capacities.items()):
        return 0
    return sum(count for (room, _), count in capacities.items() if load.fits(room))


def _unseated(learners: int, fitting: Mapping[str, int], *, alone: bool, sharing: bool) -> Finding:
    """Return the finding for learners that do not fit together. `fitting` has the number of nodes of each partition
    that hold any one of them. `sharing`: two or more would fit on a node."""
    there = ", ".join(
        f"{name} has {count} {'node that holds' if count == 1 else 'nodes that hold'} one"
        for name, count in fitting.items()
    )
    message = f"{learners} learners {'need a node each' if alone else 'need more nodes than there are'}, but {there}"
    cure = "ask for fewer learners, or for less per learner"
    return refusal("learners", message, f"{cure}, or write placement: pack" if sharing else cure, "C104")


def _check_time(spec: JobSpec, partitions: Sequence[PartitionShape], findings: list[Finding]) -> None:
    limits = [shape.max_time_s for shape in partitions]
    if spec.batch.time_s is None or not limits or None in limits:
        return
    longest = max(limit for limit in limits if limit is not None)
    if spec.batch.time_s > longest:
        names = ", ".join(shape.name for shape in partitions)
        message = f"{format_time_limit(spec.batch.time_s)} is over the limit of {names}, {format_time_limit(longest)}"
        findings.append(refusal("batch.time", message, code="C104"))
