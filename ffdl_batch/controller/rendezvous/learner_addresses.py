"""Calculate ranks, names, addresses and ports by which the learners of an attempt find each other.

Values of placeholders, for each learner:

``{local_rank}`` ``{local_world_size}`` ``{machine_rank}`` ``{machines}``
    as frameworks count them. If learners have GPUs, each is a machine of its own (0, 1, rank, learners): it sees only
    its own devices, and programs use the one with the number LOCAL_RANK. Else they follow the placement of learners.
``{local_index}``
    its number among the learners of its node.
``{role}`` ``{role_index}``
    of the learner; "" and its rank if the job has no roles.
``{name}`` ``{address}`` ``{port}``
    its own. Names count from 0, as in FfDL.
``{master_addr}`` ``{master_port}``
    the address of learner 1, as this learner sees it, and the job's first port.
``{tf_config}``
    the text of TF_CONFIG; "" if there is one learner.
``{hosts_file}``
    the file on the node that becomes /etc/hosts of the learner.
``{command}``
    the learner's command, unchanged.
``{netns}``
    the job's own network namespace on the node; see :mod:`ffdl_batch.controller.job_network`.
"""

from __future__ import annotations

import errno
import json
import os
import socket
from dataclasses import replace
from typing import Callable, Dict, List, Sequence, Tuple

from ffdl_batch.attempt.layout import AttemptDir
from ffdl_batch.attempt.phase_files import PhaseFailed
from ffdl_batch.controller.learner.environment import EnvironmentRefused, read_file, read_user_environment
from ffdl_batch.domain.launch.launch_file import LaunchFile, Seat
from ffdl_batch.domain.launch.network_level import OVERLAYS
from ffdl_batch.host.fast_dataclass import dataclass

LOOPBACK = "127.0.0.1"
FIRST_PORT = 29500
"""The first port of a job without ports of its own."""
LEVEL_HOST, LEVEL_NONE = "host", "none"
TASK_TYPE = "worker"
"""Task type in TF_CONFIG of a learner without a role."""
EVALUATOR = "evaluator"
"""TensorFlow: "evaluator is not part of the training cluster" (tf.estimator.train_and_evaluate)."""
MPI_WORKER = "worker"
"""Role of learners in which an MPI launcher starts ranks."""
_LOCALHOST = f"{LOOPBACK} localhost\n::1 localhost ip6-localhost ip6-loopback\n"


@dataclass(frozen=True)
class Peer:
    """A learner, as another learner sees it."""

    learner_id: int
    seat: Seat
    name: str
    address: str
    port: int


def meet(launch: LaunchFile, node_addresses: Sequence[str]) -> Tuple[Peer, ...]:
    """Return all learners in the order of their ids. `node_addresses` has the address of each node."""
    placed: Dict[int, int] = {}
    peers = []
    for learner_id in range(1, launch.learners + 1):
        seat = launch.seat_of(learner_id)
        local_index = placed[seat.node] = placed.get(seat.node, -1) + 1
        peers.append(
            Peer(
                learner_id,
                seat,
                f"{launch.names}-{learner_id - 1}",
                address_of(launch, learner_id, node_addresses),
                _port(launch, local_index),
            )
        )
    return tuple(peers)


def address_of(launch: LaunchFile, learner_id: int, node_addresses: Sequence[str]) -> str:
    """Return the address at which others reach the learner: its node's, or its own in the job's network.

    In that network the addresses of one node's learners follow each other.
    """
    node = launch.seat_of(learner_id).node
    if launch.pod is not None or launch.network.level not in OVERLAYS:
        return node_addresses[node]
    return f"{node_addresses[node].rpartition('.')[0]}.{launch.learners_on(node).index(learner_id) + 1}"


def seen_by(launch: LaunchFile, peers: Sequence[Peer], learner_id: int) -> Tuple[Peer, ...]:
    """Return the learners as this one sees them. Without a network it reaches only itself, at the loopback address."""
    if launch.network.level != LEVEL_NONE:
        return tuple(peers)
    return tuple(replace(peer, address=LOOPBACK) if peer.learner_id == learner_id else peer for peer in peers)


def _port(launch: LaunchFile, local_index: int) -> int:
    """Return a port for each learner of a node, because they may share an address."""
    return master_port(launch) + 1 + local_index


def master_port(launch: LaunchFile) -> int:
    """Return the job's first port."""
    return launch.ports or FIRST_PORT


def place_values(launch: LaunchFile, learner_id: int) -> Dict[str, str]:
    """Return the placeholders that depend only on the launch file."""
    seat = launch.seat_of(learner_id)
    beside = launch.learners_on(seat.node)
    local_index, rank = beside.index(learner_id), learner_id - 1
    has_gpus = any(one.gpus for one in launch.seats)
    places = (0, 1, rank, launch.learners) if has_gpus else (local_index, len(beside), seat.node, launch.nodes)
    values = dict(zip(("local_rank", "local_world_size", "machine_rank", "machines"), map(str, places)))
    values.update(
        local_index=str(local_index),
        role=seat.role,
        role_index=str(seat.index),
        master_port=str(master_port(launch)),
        port=str(_port(launch, local_index)),
    )
    command = launch.command_of(learner_id)
    if command:
        values["command"] = command
    return values


def node_values(peers: Sequence[Peer], learner_id: int) -> Dict[str, str]:
    """Return the placeholders that depend on the addresses of all nodes."""
    own = peers[learner_id - 1]
    return {
        "name": own.name,
        "address": own.address,
        "master_addr": peers[0].address,
        "tf_config": tf_config(peers, learner_id),
    }


def tf_config(peers: Sequence[Peer], learner_id: int) -> str:
    """Return the text of TF_CONFIG for this learner; "" if there is no other."""
    if len(peers) == 1:
        return ""
    cluster: Dict[str, List[str]] = {}
    for peer in sorted(peers, key=lambda one: one.seat.index):
        cluster.setdefault(_task_type(peer), []).append(f"{peer.address}:{peer.port}")
    cluster.pop(EVALUATOR, None)
    own = peers[learner_id - 1]
    task = {"type": _task_type(own), "index": own.seat.index}
    return json.dumps({"cluster": cluster, "task": task}, sort_keys=True)


def _task_type(peer: Peer) -> str:
    return peer.seat.role or TASK_TYPE


def hosts_text(launch: LaunchFile, peers: Sequence[Peer], learner_id: int, node_hosts: str) -> str:
    """Return the text of a learner's /etc/hosts. `node_hosts` is the node's, for learners in its network.

    The learner itself comes first. If learners share an address, a reverse lookup returns the name on the first line,
    and torchrun uses that to identify hosts (Python's socket.getfqdn()).
    """
    own_first = sorted(peers, key=lambda peer: peer is not peers[learner_id - 1])
    lines = [f"{peer.address} {peer.name} {peer.name}.{launch.names}\n" for peer in own_first]
    own = node_hosts if launch.pod is not None or launch.network.level == LEVEL_HOST else ""
    return _LOCALHOST + "".join(lines) + own


def hostfile_text(launch: LaunchFile, peers: Sequence[Peer], gpus: int, sign: str = " slots=") -> str:
    """Return the MPI host file with the learners that train or in which ranks are started.

    `gpus` is their number of GPUs if the launch file has none. `sign` separates name and count: Open MPI's, or Hydra's
    ":".
    """
    chosen = [peer for peer in peers if not peer.seat.service or peer.seat.role == MPI_WORKER]
    slots = [peer.seat.gpus if launch.seats else gpus for peer in chosen]
    return "".join(f"{peer.name}{sign}{max(1, count)}\n" for peer, count in zip(chosen, slots))


TAKEN = "S101"
LOOKS = 10
OWN_CHOICE = ("MASTER_PORT", "TF_CONFIG")
"""Variables with which a user chooses another meeting point."""


def ports_on(launch: LaunchFile, node_rank: int, attempt: AttemptDir) -> List[int]:
    """Return the ports of this node at which its learners will listen.

    Return none if the learners have a network of their own, or the user chose another meeting point. Raises OSError.
    """
    if not launch.ports or launch.learners == 1 or launch.network.level != LEVEL_HOST:
        return []
    try:
        chosen = read_user_environment(read_file(attempt.environment))
    except EnvironmentRefused:  # that is reported when a learner is started
        return []
    if any(name in chosen for name in OWN_CHOICE):
        return []
    own = [int(place_values(launch, number)["port"]) for number in launch.learners_on(node_rank)]
    return [*([master_port(launch)] if launch.seat_of(1).node == node_rank else []), *own]


def await_free(ports: Sequence[int], rest: Callable[[], None]) -> None:
    """Wait until all ports are free, for at most LOOKS rests, because a program that uses one may be ending.

    Raises PhaseFailed with the port, and what `rest` raises.
    """
    for _ in range(LOOKS):
        taken = next(filter(is_taken, ports), 0)
        if not taken:
            return
        rest()
    raise PhaseFailed(
        TAKEN,
        f"port {taken} of node {os.uname().nodename}, at which learners of this job must listen, is in use; another "
        "job on the node may have the same ports: submit the job again to get other ports, or choose one "
        "(MASTER_PORT in batch.env)",
    )


def is_taken(port: int) -> bool:
    """Return whether a process listens at the port, on any address of this machine.

    Connections in TIME_WAIT do not count: SO_REUSEADDR ignores them, but no listening socket (socket(7)).
    """
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
            probe.listen(1)
        except OSError as error:
            return error.errno == errno.EADDRINUSE
    return False
