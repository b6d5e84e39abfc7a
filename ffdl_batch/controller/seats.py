"""Which learners a node runs, and everything that starting each of them needs."""

from __future__ import annotations

import os
import sys
from typing import Dict

from ffdl_batch.controller.control import own_run, restarts
from ffdl_batch.controller.environment import check_shell, file_text, host_subset, merge, read_user_environment
from ffdl_batch.controller.files import make_private, read_text, write_text
from ffdl_batch.controller.learner import Start, first_host, placeholder_devices, values_for
from ffdl_batch.controller.location import controller_path
from ffdl_batch.controller.orphans import MARK, mark
from ffdl_batch.controller.phases import PhaseFiles
from ffdl_batch.domain.jobdir import AttemptDir
from ffdl_batch.domain.launch import EnvDelivery, LaunchFile, fill

NETNS = "FFDL_NETNS"
"""Variable in which a site's prolog says where the job's network namespace is."""


class Seats:
    """The learners of one node, from the launch file and the node's environment."""

    def __init__(self, launch: LaunchFile, launch_path: str, node_rank: int) -> None:
        self.launch, self.node_rank = launch, node_rank
        self.attempt = AttemptDir(launch.attempt_dir)
        self.learner_ids = list(launch.learners_on(node_rank))
        self.scratch = os.path.join(launch.scratch_base, f"ffdl-{launch.token}-{node_rank}")
        devices = os.environ.get(launch.host.gpus, "") if launch.host.gpus else ""
        self.devices = placeholder_devices(devices, max(1, len(self.learner_ids)))
        self.base = self._node_values(launch_path)

    def _node_values(self, launch_path: str) -> Dict[str, str]:
        launch, host = self.launch, os.uname().nodename
        nodes = os.environ.get(launch.host.node_list, "") if launch.host.node_list else ""
        run = own_run(os.environ)
        values = {
            "attempt": str(launch.attempt),
            "restart": str(restarts(launch, os.environ)),
            "resume": "1" if launch.attempt > 1 or run > 1 else "0",
            "attempt_dir": launch.attempt_dir,
            "job_dir": launch.job_dir,
            "launch": launch_path,
            "python": sys.executable,
            "controller": controller_path(),
            "scratch": self.scratch,
            "node_rank": str(self.node_rank),
            "hostname": host,
            "master_addr": "127.0.0.1" if launch.nodes == 1 else first_host(nodes) or host,
        }
        if NETNS in os.environ:  # left out otherwise: a launch file that needs it then fails to fill
            values["netns"] = os.environ[NETNS]
        return values

    def start(self, learner_id: int) -> Start:
        """What starts this learner. Raises OSError, LaunchFileError, EnvironmentRefused."""
        local_rank = learner_id - self.learner_ids[0]
        values = values_for(self.base, learner_id, local_rank, self.devices[local_rank])
        command = self.launch.learner
        contract = {name: fill(text, values) for name, text in command.env.items()}
        user = read_user_environment(read_text(self.attempt.environment))
        variables = merge(contract, user, command.protected)
        env = host_subset(os.environ, command.pass_host)
        make_private(os.path.join(self.scratch, f"learner-{learner_id}"))
        if command.delivery is EnvDelivery.FILE:
            write_text(values["env_file"], file_text(variables))
        else:
            check_shell(user)
            env.update(variables)
        env[MARK] = mark(self.launch.token, self.node_rank)
        phases = PhaseFiles(self.attempt.state)
        return Start(
            learner_id,
            tuple(fill(part, values) for part in command.argv),
            env,
            fill(command.working_dir, values),
            self.attempt.training_log(learner_id),
            phases.began_path(learner_id),
            phases.ended_path(learner_id),
        )
