"""Prepare everything that starting the learners of one node needs."""

from __future__ import annotations

import contextlib
import os
import sys
from functools import partial
from typing import Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

from ffdl_batch.attempt.control_cell import count_restarts, own_run
from ffdl_batch.attempt.event_journal import Journal
from ffdl_batch.attempt.file_writer import make_private, read_text, rewrite_text, write_text
from ffdl_batch.attempt.layout import AttemptDir
from ffdl_batch.attempt.phase_files import PhaseFiles
from ffdl_batch.controller.data.job_directories import remove_scratch, scratch_of, scratch_of_earlier
from ffdl_batch.controller.job_network import JobNetwork, await_network, check_addresses, has_own
from ffdl_batch.controller.learner.environment import (
    check_shell,
    file_text,
    host_subset,
    merge,
    pick_secrets,
    read_file,
    read_user_environment,
)
from ffdl_batch.controller.learner.learner import Start, first_host, placeholder_devices, values_for
from ffdl_batch.controller.learner.orphans import MARK, mark
from ffdl_batch.controller.learner.pod_exchange import exchange_of
from ffdl_batch.controller.logs.output_pipe import LogPlace
from ffdl_batch.controller.node.devices import Equipment, equip, inspect, look
from ffdl_batch.controller.own_program import controller_path
from ffdl_batch.controller.rendezvous.launch_agent import install
from ffdl_batch.controller.rendezvous.learner_addresses import (
    LOOPBACK,
    Peer,
    hostfile_text,
    hosts_text,
    meet,
    node_values,
    place_values,
    seen_by,
)
from ffdl_batch.domain.launch.devices import DEVICE_OPTIONS
from ffdl_batch.domain.launch.launch_file import RESTART_LEARNER, EnvDelivery, LaunchFile
from ffdl_batch.domain.launch.placeholders import fill
from ffdl_batch.domain.launch.pod_protocol import HOSTS
from ffdl_batch.domain.outcome.controller_events import EventKind
from ffdl_batch.host.core_dumps import hide_memory

NODE_HOSTS = "/etc/hosts"
RESTARTS_VARIABLE = "FFDL_LEARNER_RESTARTS"
"""Variable with the number of times that the learner was restarted, if its restart policy allows that."""
MPI_HOSTS = {".hostfile": " slots=", ".machinefile": ":"}
"""MPI host files in $JOB_STATE_DIR, with the separator between name and count. Open MPI rejects the format of Hydra
(MPICH, Intel MPI), and Hydra that of Open MPI."""


class LearnerSetup:
    """The learners of one node, according to the launch file and the node's environment."""

    def __init__(self, launch: LaunchFile, launch_path: str, node_rank: int) -> None:
        self.launch, self.node_rank = launch, node_rank
        self.attempt = AttemptDir(launch.attempt_dir)
        self.learner_ids = list(launch.learners_on(node_rank))
        self.scratch = scratch_of(launch, node_rank)
        devices = os.environ.get(launch.host.gpus, "") if launch.host.gpus else ""
        wanted = [launch.seat_of(number).gpus for number in self.learner_ids]
        even = placeholder_devices(devices, max(1, len(self.learner_ids)))
        self.devices = deal_devices(devices, wanted) if launch.seats else even
        self._equipment = [Equipment() for _ in self.learner_ids]
        self._peers: Tuple[Peer, ...] = ()
        self._exposed: Dict[int, str] = {}
        self.seat = exchange_of(launch)
        """How this controller and the learner's container communicate, in a pod."""
        self.given_address = os.environ.get(launch.host.address, "") if launch.host.address else ""
        """The address of this node for the others, if the scheduler sets one."""
        self.network: Optional[JobNetwork] = None
        """The job's own network on this node, once it was found."""
        self.base = self._node_values(launch_path)

    def _node_values(self, launch_path: str) -> Dict[str, str]:
        launch, host = self.launch, os.uname().nodename
        nodes = os.environ.get(launch.host.node_list, "") if launch.host.node_list else ""
        run = own_run(os.environ)
        return {
            "attempt": str(launch.attempt),
            "restart": str(count_restarts(launch, os.environ, run)),
            "confirmed": launch.confirmed,
            "resume": "1" if launch.attempt > launch.trains_from or run > 1 else "0",
            "attempt_dir": launch.attempt_dir,
            "job_dir": launch.job_dir,
            "launch": launch_path,
            "python": sys.executable,
            "controller": controller_path(),
            "scratch": self.scratch,
            "pod": self.launch.pod.directory if self.launch.pod else "",
            "node_rank": str(self.node_rank),
            "hostname": host,
            "master_addr": "127.0.0.1" if launch.nodes == 1 else first_host(nodes) or host,
        }

    def clear_earlier(self) -> None:
        """Remove what killed controllers of earlier attempts left on this node. No process of theirs is left."""
        for left in scratch_of_earlier(self.launch):
            remove_scratch(left)

    def find_network(self, rest: Callable[[], None], now: Callable[[], float]) -> None:
        """Find the job's own network, if it has one.

        `rest` waits a moment. Raises PhaseFailed, and what `rest` raises.
        """
        if has_own(self.launch):
            self.network = await_network(self.launch, self.node_rank, os.environ, rest, now)

    def equip(self, journal: Journal, go_on: Callable[[], None]) -> None:
        """Find the devices of the learners and report them.

        `go_on` is called meanwhile. Raises PhaseFailed if they differ from the allocation's.
        """
        wanted = self.launch.devices
        if not wanted.gpus and not wanted.gres_files:
            return
        found = inspect(wanted, os.environ, self.launch.host.gpus, partial(look, go_on=go_on))
        seats = [self.launch.seat_of(number).gpus for number in self.learner_ids]
        even = len(found.assigned) // max(1, len(self.learner_ids))
        self._equipment = equip(wanted, found, seats if self.launch.seats else [even] * len(seats), os.environ)
        self.devices = [one.gpus for one in self._equipment]
        if wanted.gpu_files or wanted.gres_files:
            given = {"vendor": found.vendor, "gpus": ",".join(found.assigned), "files": ",".join(found.files)}
            journal.append(EventKind.DEVICES, host=os.uname().nodename, message="; ".join(found.doubts), **given)

    def prepare(self) -> None:
        """Install what learners use to start programs in each other, on the node of learner 1. Raises OSError."""
        launch = self.launch
        if not launch.names or launch.learners == 1 or 1 not in self.learner_ids:
            return
        peers = meet(launch, [""] * launch.nodes)
        install(self.attempt.state, [peer.name for peer in peers])
        gpus = len(_names(self.devices[self.learner_ids.index(1)]))
        for name, sign in MPI_HOSTS.items():
            write_text(os.path.join(self.attempt.state, name), hostfile_text(launch, peers, gpus, sign))

    def meet(self, node_addresses: Sequence[str] = (LOOPBACK,)) -> None:
        """Note the addresses of all nodes, and write the learners' hosts files. Raises OSError, PhaseFailed."""
        if self.network:
            check_addresses(node_addresses)
        if self.launch.names:
            self._peers = meet(self.launch, node_addresses)
            for number in self.learner_ids:
                peers = seen_by(self.launch, self._peers, number)
                text = hosts_text(self.launch, peers, number, read_text(NODE_HOSTS))
                text += self.network.hosts if self.network else ""
                if self.launch.pod is not None:  # the file itself is mounted into the container
                    rewrite_text(self._hosts_of(number), text)
                else:
                    write_text(self._hosts_of(number), text, 0o644)

    def _hosts_of(self, learner_id: int) -> str:
        if self.launch.pod is not None:
            return os.path.join(self.launch.pod.directory, HOSTS)
        return os.path.join(self.scratch, f"learner-{learner_id}.hosts")

    def values(self, learner_id: int) -> Dict[str, str]:
        """Return the values of one learner's placeholders."""
        local_index = self.learner_ids.index(learner_id)
        values = values_for(self.base, learner_id, local_index, self.devices[local_index])
        values.update(place_values(self.launch, learner_id))
        if self._peers:
            peers = seen_by(self.launch, self._peers, learner_id)
            values.update(node_values(peers, learner_id), hosts_file=self._hosts_of(learner_id))
        if self.network:
            values["netns"] = self.network.netns
        return values

    def start(self, learner_id: int, restarts: int = 0) -> Start:
        """Return what starts this learner, which failed and was restarted `restarts` times before.

        Raises OSError, LaunchFileError, EnvironmentRefused.
        """
        values = self.values(learner_id)
        if restarts:
            values["resume"] = "1"
        command = self.launch.learner
        equipment = self._equipment[self.learner_ids.index(learner_id)]
        contract = {name: fill(text, values) for name, text in command.env.items()}
        contract.update({to: os.environ[name] for to, name in command.host_values.items() if os.environ.get(name)})
        contract.update(equipment.variables)
        protected = command.protected
        if self.launch.restart == RESTART_LEARNER:
            contract[RESTARTS_VARIABLE] = str(restarts)
            protected += (RESTARTS_VARIABLE,)
        user = read_user_environment(read_file(self.attempt.environment))
        if self.launch.secrets:
            hide_memory()
            user.update(pick_secrets(read_file(self.attempt.secrets), self.launch.secrets))
        variables = merge(contract, user, protected)
        env = host_subset(os.environ, command.pass_host)
        make_private(os.path.join(self.scratch, f"learner-{learner_id}"))
        if command.delivery is EnvDelivery.FILE:
            write_text(values["env_file"], file_text(variables))
            if self.launch.secrets:
                self._exposed[learner_id] = values["env_file"]
        else:
            check_shell(user)
            env.update(variables)
        env[MARK] = mark(self.launch.token, self.node_rank)
        phases = PhaseFiles(self.attempt.state)
        return Start(
            learner_id,
            tuple(_words(command.argv, values, equipment.options)),
            env,
            fill(command.working_dir, values),
            LogPlace(
                self.launch.attempt_dir, learner_id, self.launch.logs, env[MARK], self.seat.output if self.seat else ""
            ),
            phases.began_path(learner_id),
            phases.ended_path(learner_id),
            self.seat,
            self.launch.umask,
        )

    def hide(self, learner_id: int) -> None:
        """Remove the file with secrets that the learner has read, so that a killed controller leaves none behind."""
        path = self._exposed.pop(learner_id, "")
        if path:
            with contextlib.suppress(OSError):  # it is removed with its directory
                os.unlink(path)


def _words(argv: Sequence[str], values: Mapping[str, str], options: Sequence[str]) -> Iterator[str]:
    for part in argv:
        yield from options if part == DEVICE_OPTIONS else (fill(part, values),)


def deal_devices(devices: str, wanted: Sequence[int]) -> List[str]:
    """Deal the node's devices to the learners in order, to each the wanted number while there are enough."""
    names, dealt = _names(devices), []
    for count in wanted:
        dealt.append(",".join(names[:count]))
        names = names[count:]
    return dealt


def _names(devices: str) -> List[str]:
    return [name for name in devices.split(",") if name]
