"""How the learners of a job are laid over nodes: one homogeneous allocation, all of it or nothing. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ffdl_batch.domain.launch import Seat
from ffdl_batch.domain.spec import Placement

PARAMETER_SERVER, WORKER, LAUNCHER = "ps", "worker", "launcher"
MPI_FRAMEWORKS = frozenset({"horovod", "pytorchmpi"})
"""FfDL starts these with mpirun in learner 1, and has the others wait for ever (``learner-configmap.yml``)."""
_PS_COUNT = re.compile(r"\bPS_HOSTS_COUNT=[\"']?(\d+)")


@dataclass(frozen=True, slots=True)
class Load:
    """What learners need of a node together: whole CPUs, memory in MiB, whole GPUs."""

    cpus: int = 0
    memory_mib: int = 0
    gpus: int = 0

    def plus(self, other: Load) -> Load:
        """Both."""
        return Load(self.cpus + other.cpus, self.memory_mib + other.memory_mib, self.gpus + other.gpus)

    def or_more(self, other: Load) -> Load:
        """The least that holds either."""
        return Load(max(self.cpus, other.cpus), max(self.memory_mib, other.memory_mib), max(self.gpus, other.gpus))

    def fits(self, room: Load) -> bool:
        """Whether there is room for it."""
        return self.cpus <= room.cpus and self.memory_mib <= room.memory_mib and self.gpus <= room.gpus


@dataclass(frozen=True, slots=True)
class Member:
    """One learner that is to be seated. `index` is its number within its role, from 0."""

    load: Load
    role: str = ""
    index: int = 0
    service: bool = False


@dataclass(frozen=True, slots=True)
class Gang:
    """Members and the node of each, in the order of learner ids. `load` is what each node is asked for."""

    members: tuple[Member, ...]
    nodes_of: tuple[int, ...]
    nodes: int
    load: Load

    @property
    def table(self) -> tuple[Seat, ...]:
        """For the launch file; none where each learner has a node of its own and no role."""
        seats = tuple(
            Seat(node, one.role, one.index, one.service, one.load.gpus)
            for one, node in zip(self.members, self.nodes_of, strict=True)
        )
        plain = tuple(Seat(number, index=number, gpus=self.load.gpus) for number in range(len(seats)))
        return () if seats == plain else seats


def lay_out(members: Sequence[Member], placement: Placement, count_holding: Callable[[Load], int]) -> Gang | None:
    """The gang, or None where the nodes cannot hold it. `count_holding` says how many nodes could each take a load."""
    numbers = range(1, len(members) + 1)
    tried = {Placement.NODE: numbers[-1:], Placement.PACK: numbers, Placement.SPREAD: numbers[::-1]}[placement]
    for nodes in tried:
        nodes_of = deal(members, nodes)
        load = fullest(members, nodes_of)
        if count_holding(load) >= nodes:
            return Gang(tuple(members), nodes_of, nodes, load)
    return None


def deal(members: Sequence[Member], nodes: int) -> tuple[int, ...]:
    """The node of each: every role in even blocks, so that neighbours by number share a node; what is left over goes
    to the nodes that have least, by GPUs, CPUs, memory, and then the first ones."""
    taken = [Load()] * nodes
    seats: list[int] = []
    for role in dict.fromkeys(member.role for member in members):
        block = [member for member in members if member.role == role]
        each, rest = divmod(len(block), nodes)
        poorest = sorted(range(nodes), key=lambda node: (_order(taken[node]), node))[:rest]
        counts = [each + (node in poorest) for node in range(nodes)]
        for node, count in enumerate(counts):
            for _ in range(count):
                taken[node] = taken[node].plus(block[0].load)
                seats.append(node)
    return tuple(seats)


def fullest(members: Sequence[Member], nodes_of: Sequence[int]) -> Load:
    """What a node must have to be any of them."""
    loads: dict[int, Load] = {}
    for member, node in zip(members, nodes_of, strict=True):
        loads[node] = loads.get(node, Load()).plus(member.load)
    most = Load()
    for load in loads.values():
        most = most.or_more(load)
    return most


def _order(load: Load) -> tuple[int, int, int]:
    return load.gpus, load.cpus, load.memory_mib


def count_parameter_servers(command: str, learners: int) -> int:
    """How many of the first learners are parameter servers, as FfDL's examples have it: PS_HOSTS_COUNT in the command.
    At least one learner trains."""
    match = _PS_COUNT.search(command)
    return min(int(match[1]), learners - 1) if match else 0
