"""Whether the ports at which a job's learners meet are free on this node.

At level ``host`` they are the node's, and two jobs may have drawn the same. The learners of the second would fail in
ways of their own, or find those of the first.
"""

from __future__ import annotations

import errno
import os
import socket
from typing import Callable, List, Sequence

from ffdl_batch.attempt.layout import AttemptDir
from ffdl_batch.attempt.phase_files import PhaseFailed
from ffdl_batch.controller.learner.environment import EnvironmentRefused, read_file, read_user_environment
from ffdl_batch.controller.rendezvous.learner_addresses import LEVEL_HOST, master_port, place_values
from ffdl_batch.domain.launch.launch_file import LaunchFile

TAKEN = "S101"
LOOKS = 10
OWN_CHOICE = ("MASTER_PORT", "TF_CONFIG")
"""Variables by which a user says that his learners meet elsewhere."""


def ports_on(launch: LaunchFile, node_rank: int, attempt: AttemptDir) -> List[int]:
    """The ports that the learners of this node are told to listen at, and that are the node's; none where they meet
    elsewhere, or nobody. Raises OSError."""
    if not launch.ports or launch.learners == 1 or launch.network.level != LEVEL_HOST:
        return []
    try:
        chosen = read_user_environment(read_file(attempt.environment))
    except EnvironmentRefused:  # that is told when a learner is started
        return []
    if any(name in chosen for name in OWN_CHOICE):
        return []
    own = [int(place_values(launch, number)["port"]) for number in launch.learners_on(node_rank)]
    return [*([master_port(launch)] if launch.seat_of(1).node == node_rank else []), *own]


def await_free(ports: Sequence[int], rest: Callable[[], None]) -> None:
    """Until all are free, for LOOKS rests: who has one may be just ending. Raises PhaseFailed that names it, and what
    `rest` raises."""
    for _ in range(LOOKS):
        taken = next(filter(is_taken, ports), 0)
        if not taken:
            return
        rest()
    raise PhaseFailed(
        TAKEN,
        f"port {taken} of node {os.uname().nodename} is taken, at which learners of this job are to listen; jobs that "
        "share a node may have drawn the same ports: submit it again, for a new job draws others, or choose one "
        "yourself (MASTER_PORT in batch.env)",
    )


def is_taken(port: int) -> bool:
    """Whether somebody listens there, at whatever address of this machine. What an earlier run left in TIME_WAIT is
    nobody's: SO_REUSEADDR lets that pass, and nothing that listens (socket(7))."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
            probe.listen(1)
        except OSError as error:
            return error.errno == errno.EADDRINUSE
    return False
