"""Distributes the learners of a job over nodes: one homogeneous allocation, all of it or nothing. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from ffdl_batch.domain.job.spec import JobSpec, Placement, Resources, Role
from ffdl_batch.domain.launch.launch_file import Seat
from ffdl_batch.domain.number_text import whole_number
from ffdl_batch.host.fast_dataclass import dataclass

PARAMETER_SERVER, WORKER, LAUNCHER = "ps", "worker", "launcher"
MPI_FRAMEWORKS = frozenset({"horovod", "pytorchmpi"})
"""FfDL starts these with mpirun in learner 1, and lets the others wait (``learner-configmap.yml``)."""
PS_COUNT = "PS_HOSTS_COUNT"
_PS_COUNT_TEXT = re.compile(rf"\b{PS_COUNT}=[\"']?(\d+)", re.ASCII)
_MIB = 1024**2


@dataclass(frozen=True, slots=True)
class Load:
    """What learners need of a node together."""

    cpus: int = 0
    """Whole CPUs."""
    memory_mib: int = 0
    gpus: int = 0
    """Whole GPUs."""
    shares: int = 0
    """Shares of one GPU."""
    equipped: int = 0
    """How many of the learners take the job's other generic resources."""

    @property
    def devices(self) -> int:
        """The GPUs that are visible: a share is a share of one."""
        return self.gpus or min(self.shares, 1)

    def plus(self, other: Load) -> Load:
        """Return the sum of both loads."""
        return Load(
            self.cpus + other.cpus,
            self.memory_mib + other.memory_mib,
            self.gpus + other.gpus,
            self.shares + other.shares,
            self.equipped + other.equipped,
        )

    def times(self, count: int) -> Load:
        """Return `count` times this load."""
        return Load(
            self.cpus * count, self.memory_mib * count, self.gpus * count, self.shares * count, self.equipped * count
        )

    def or_more(self, other: Load) -> Load:
        """Return the least capacity that holds either load."""
        return Load(
            max(self.cpus, other.cpus),
            max(self.memory_mib, other.memory_mib),
            max(self.gpus, other.gpus),
            max(self.shares, other.shares),
            max(self.equipped, other.equipped),
        )

    def fits(self, capacity: Load) -> bool:
        """Return whether `capacity` suffices for this load."""
        return (
            self.cpus <= capacity.cpus
            and self.memory_mib <= capacity.memory_mib
            and self.gpus <= capacity.gpus
            and self.shares <= capacity.shares
            and self.equipped <= capacity.equipped
        )


@dataclass(frozen=True, slots=True)
class Part:
    """Learners that are equal: all of the job, or those of one role. Amounts are those of each learner, as
    requested."""

    learners: int
    cpus: float
    gpus: float
    memory_bytes: int
    role: str = ""
    service: bool = False
    own: frozenset[str] = frozenset()
    """Keys that the role itself sets; the others are the job's."""

    @property
    def load(self) -> Load:
        """The load of one learner in whole numbers, rounded up."""
        return Load(max(1, math.ceil(self.cpus)), -(-self.memory_bytes // _MIB), math.ceil(self.gpus))

    def path(self, key: str) -> str:
        """Return the path in the manifest of `key` of these learners."""
        return f"batch.roles.{self.role}.{key}" if key in self.own else key

    def per_learner(self, key: str) -> str:
        """Return whose amount `key` is, for messages."""
        return f"per learner of role {self.role}" if key in self.own else "per learner"


@dataclass(frozen=True, slots=True)
class Member:
    """One learner to place."""

    load: Load
    role: str = ""
    index: int = 0
    """Number within its role, from 0."""
    service: bool = False


@dataclass(frozen=True, slots=True)
class Gang:
    """The learners of a job and the node of each, in the order of learner ids."""

    members: tuple[Member, ...]
    nodes_of: tuple[int, ...]
    nodes: int
    load: Load
    """What is requested of each node."""

    @property
    def table(self) -> tuple[Seat, ...]:
        """Seats for the launch file; empty if each learner has a node of its own and no role."""
        seats = tuple(
            Seat(node, one.role, one.index, one.service, one.load.devices)
            for one, node in zip(self.members, self.nodes_of, strict=True)
        )
        plain = tuple(Seat(number, index=number, gpus=self.load.devices) for number in range(len(seats)))
        return () if seats == plain else seats

    @property
    def gpus(self) -> int:
        """GPUs of all learners together."""
        return sum(one.load.gpus for one in self.members)

    @property
    def allocated_gpus(self) -> int:
        """GPUs of all nodes together: every node gets what the fullest one needs."""
        return self.nodes * self.load.gpus


def parts_of(spec: JobSpec) -> tuple[Part, ...]:
    """Return the learners in the order of their ids: the manifest's roles, or those that FfDL's manifests imply."""
    wanted = spec.resources
    if spec.batch.roles:
        return tuple(_of_role(name, role, wanted) for name, role in spec.batch.roles.items())
    whole = Part(wanted.learners, wanted.cpus, wanted.gpus, wanted.memory_bytes)
    if starts_mpi(spec) and wanted.learners > 1:
        return (
            replace(whole, learners=1, role=LAUNCHER),
            replace(whole, learners=wanted.learners - 1, role=WORKER, service=True),
        )
    servers = count_parameter_servers(_servers_described(spec), wanted.learners)
    if servers:
        return (
            replace(whole, learners=servers, role=PARAMETER_SERVER, service=True),
            replace(whole, learners=wanted.learners - servers, role=WORKER),
        )
    return (whole,)


def _of_role(name: str, role: Role, wanted: Resources) -> Part:
    amounts = {"cpus": role.cpus, "gpus": role.gpus, "memory": role.memory_bytes}
    return Part(
        learners=role.learners,
        cpus=wanted.cpus if role.cpus is None else role.cpus,
        gpus=wanted.gpus if role.gpus is None else role.gpus,
        memory_bytes=wanted.memory_bytes if role.memory_bytes is None else role.memory_bytes,
        role=name,
        service=role.service,
        own=frozenset(key for key, amount in amounts.items() if amount is not None),
    )


def starts_mpi(spec: JobSpec) -> bool:
    """Return whether the platform starts mpirun, as FfDL does. A job with named roles starts it itself."""
    return spec.framework.name in MPI_FRAMEWORKS and not spec.batch.roles


def _servers_described(spec: JobSpec) -> str:
    """Return the text with the number of parameter servers: the command, and the variable if it is set."""
    asked = spec.batch.env.get(PS_COUNT)
    return spec.framework.command if asked is None else f"{spec.framework.command} {PS_COUNT}={asked}"


def count_parameter_servers(command: str, learners: int) -> int:
    """Return how many of the first learners are parameter servers, as in FfDL's examples: PS_HOSTS_COUNT in the
    command. At least one learner trains."""
    match = _PS_COUNT_TEXT.search(command)
    if match is None:
        return 0
    asked = whole_number(match[1], learners)
    return learners - 1 if asked is None else min(asked, learners - 1)


def members_of(spec: JobSpec, load_of: Callable[[Part], Load] = lambda part: part.load) -> tuple[Member, ...]:
    """Return the learners one by one, in the order of their ids. `load_of` returns the load of each learner of a
    part."""
    return tuple(
        Member(load, part.role, index, part.service)
        for part, load in ((part, load_of(part)) for part in parts_of(spec))
        for index in range(part.learners)
    )


def count_gpus(spec: JobSpec) -> float:
    """Return the requested GPUs of all learners together."""
    return sum(part.gpus * part.learners for part in parts_of(spec))


def lay_out(
    members: Sequence[Member], placement: Placement, count_holding: Callable[[Load], int], named: int = 0
) -> Gang | None:
    """Return the gang, or None if the nodes cannot hold it. `count_holding` returns how many nodes could each take a
    load.

    `named` is the number of nodes that the request names: the allocation has no fewer, and if these suffice, learners
    are not spread over more.
    """
    learners, blocks = len(members), _blocks(members)
    least = max(1, min(named, learners))
    tried: Iterable[int] = {
        Placement.NODE: range(learners, learners + 1),
        Placement.PACK: range(least, learners + 1),
        Placement.SPREAD: (*((least,) if named else ()), *range(learners, least - 1, -1)),
    }[placement]
    for nodes in tried:
        load = _load_on(nodes, blocks)
        if count_holding(load) >= nodes:
            return Gang(tuple(members), deal(members, nodes), nodes, load)
    return None


def lay_on_one(members: Sequence[Member]) -> Gang:
    """Return the gang with all learners on one node, whatever the node has."""
    nodes_of = (0,) * len(members)
    return Gang(tuple(members), nodes_of, 1, fullest(members, nodes_of))


def takes_for_one(spec: JobSpec, gang: Gang) -> bool:
    """Return whether mpirun would start processes of learners with GPUs in another learner, which cannot see these
    GPUs: for MPI all learners on a node are one machine, since they have the node's addresses."""
    return starts_mpi(spec) and gang.nodes < len(gang.members) and gang.load.gpus > 0


def deal(members: Sequence[Member], nodes: int) -> tuple[int, ...]:
    """Return the node of each learner: every role in even blocks, so that neighbours by number share a node. The
    remainder is placed on the nodes with the least load, by GPUs, CPUs, memory, and then the first ones."""
    taken = [Load()] * nodes
    seats: list[int] = []
    for load, learners in _blocks(members):
        each, rest = divmod(learners, nodes)
        poorest = set(sorted(range(nodes), key=lambda node: (_order(taken[node]), node))[:rest])
        for node in range(nodes):
            count = each + (node in poorest)
            taken[node] = taken[node].plus(load.times(count))
            seats += [node] * count
    return tuple(seats)


def _blocks(members: Sequence[Member]) -> list[tuple[Load, int]]:
    """Return the load of each learner of a role, and the number of its learners, role by role."""
    blocks: dict[str, tuple[Load, int]] = {}
    for member in members:
        load, learners = blocks.get(member.role, (member.load, 0))
        blocks[member.role] = (load, learners + 1)
    return list(blocks.values())


def _load_on(nodes: int, blocks: Sequence[tuple[Load, int]]) -> Load:
    """Return the load of the fullest node if the blocks are distributed over so many nodes. It counts nodes with the
    same load, where :func:`deal` lists them one by one: this is fast enough to try many numbers of nodes."""
    kinds = {Load(): nodes}
    for load, learners in blocks:
        each, rest = divmod(learners, nodes)
        dealt: dict[Load, int] = {}
        for taken in sorted(kinds, key=_order):
            luckier = min(rest, kinds[taken])
            rest -= luckier
            for count, number in ((each + 1, luckier), (each, kinds[taken] - luckier)):
                if number:
                    kind = taken.plus(load.times(count))
                    dealt[kind] = dealt.get(kind, 0) + number
        kinds = dealt
    return _most(kinds)


def fullest(members: Sequence[Member], nodes_of: Sequence[int]) -> Load:
    """Return what a node must have to be any of them."""
    loads: dict[int, Load] = {}
    for member, node in zip(members, nodes_of, strict=True):
        loads[node] = loads.get(node, Load()).plus(member.load)
    return _most(loads.values())


def largest(members: Iterable[Member]) -> Load:
    """Return what a node must have to hold any one of them."""
    return _most(member.load for member in members)


def _most(loads: Iterable[Load]) -> Load:
    """Return the least capacity that holds any of them."""
    most = Load()
    for load in loads:
        most = most.or_more(load)
    return most


def _order(load: Load) -> tuple[int, ...]:
    """Return how full a node is. Only equal loads compare equal; otherwise :func:`_load_on` would distribute them in
    another way than :func:`deal`."""
    return load.gpus + load.shares, load.cpus, load.memory_mib, load.gpus, load.equipped
