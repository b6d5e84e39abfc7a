"""What can be done with a running cluster: programs, files, daemons, and faults.

Everything goes through the nodes' process 1 (nsenter), so it works from any process of root on this machine.
"""

from __future__ import annotations

import os
import shutil
import signal as signals
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from . import cgroups, record, site
from .access import enter_argv
from .boot import Bind, private_binds
from .builder import account_id
from .command import bare_environment, tail
from .errors import RigError
from .nodes import Fabric, NodeFactory
from .processes import Process
from .python_layers import SOURCE
from .record import Blueprint, Record
from .services import NodeServices, Service
from .suites import suite_named
from .topology import COMPUTE_NODES, NODES, Role, node_named


class CommandError(RigError):
    """A program on a node failed, or did not end in time; the text has what it printed."""


@dataclass(frozen=True, slots=True)
class RunningCluster:
    """A cluster whose nodes have been made. `Cluster` adds how it begins and ends."""

    cluster_id: str
    state_dir: Path
    blueprint: Blueprint

    @property
    def fabric(self) -> Fabric:
        """The network."""
        return Fabric(self.cluster_id)

    @property
    def factory(self) -> NodeFactory:
        """What boots a node."""
        binds = (
            Bind(self.state_dir / "home", "/home"),
            Bind(self.state_dir / "shared", "/shared"),
            Bind(Path(self.blueprint.checkout), SOURCE, read_only=True),
        )
        layers = tuple(Path(layer) for layer in self.blueprint.layers)
        return NodeFactory(self.fabric, layers, self.state_dir, binds, self.blueprint.confined)

    # --- programs and files -----------------------------------------------------------------------------------

    def run(
        self,
        node: str,
        argv: Sequence[str],
        *,
        user: str = "root",
        env: Mapping[str, str] | None = None,
        input: str | None = None,
        timeout_s: float = 300.0,
        cwd: str | None = None,
        check: bool = True,
    ) -> subprocess.CompletedProcess[str]:
        """Run a program on a node to its end. Raises CommandError on a status other than 0 (if `check`) or time-out.

        At the time-out the program's whole process group is killed, unless it made one of its own.
        """
        command = enter_argv(self.init(node).pid, argv, user=user, env=env, cwd=cwd)
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL if input is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env=bare_environment(),
            umask=0o022,
            start_new_session=True,
        )
        shown = f"{' '.join(argv)} as {user} on {node}"
        try:
            out, err = process.communicate(input, timeout=timeout_s)
        except subprocess.TimeoutExpired as error:
            self.kill(process)
            raise CommandError(f"{shown} did not end within {timeout_s:.0f} s") from error
        if check and process.returncode != 0:
            raise CommandError(f"{shown} ended with {process.returncode}\nstdout: {tail(out)}\nstderr: {tail(err)}")
        return subprocess.CompletedProcess(list(argv), process.returncode, out, err)

    def scontrol(self, *words: str) -> str:
        """What an administrator asks of Slurm: scontrol("requeue", job), scontrol("update", f"JobId={job}", ...)."""
        return self.run("ctl", ["scontrol", *words]).stdout

    def popen(
        self,
        node: str,
        argv: Sequence[str],
        *,
        user: str = "root",
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        stdin: int | None = subprocess.DEVNULL,
        stdout: int | None = subprocess.PIPE,
        stderr: int | None = subprocess.STDOUT,
    ) -> subprocess.Popen[str]:
        """Start a program on a node and go on. Its process is a child of the returned one, which waits for it.

        End it with `kill`; to send it another signal, run the program `kill` on the node.
        """
        command = enter_argv(self.init(node).pid, argv, user=user, env=env, cwd=cwd)
        return subprocess.Popen(
            command,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            text=True,
            errors="replace",
            env=bare_environment(),
            umask=0o022,
            start_new_session=True,
        )

    @staticmethod
    def kill(process: subprocess.Popen[str]) -> None:
        """End a program that `popen` started, with its process group, and close its pipes."""
        if process.poll() is None:
            os.killpg(process.pid, signals.SIGKILL)
        with process:
            process.wait()

    def path(self, node: str, inside: str) -> Path:
        """The host's path of an absolute path on a node. What is kept on disk is found while the node is off, too."""
        spec = node_named(node)
        binds = (*self.factory.binds, *private_binds(self.factory.private(node), spec.role))
        for bind in binds:
            if Path(inside).is_relative_to(bind.target):
                return bind.source / Path(inside).relative_to(bind.target)
        return Path(f"/proc/{self.init(node).pid}/root") / inside.lstrip("/")

    def init(self, node: str) -> Process:
        """Process 1 of a node as the host sees it; RigError when the node is off."""
        found = self.factory.init_of(node_named(node).name)
        if found is None:
            raise RigError(f"node {node} is off")
        return found

    def collect_logs(self, destination: Path) -> None:
        """Copy the logs of all nodes, for a person to read after a failure."""
        shutil.rmtree(destination, ignore_errors=True)
        for spec in NODES:
            private = self.factory.private(spec.name)
            if (private / "log").is_dir():
                shutil.copytree(private / "log", destination / spec.name)
            if (private / "boot.log").is_file():
                shutil.copy(private / "boot.log", destination / spec.name)

    # --- faults -----------------------------------------------------------------------------------------------

    def power_off(self, node: str) -> None:
        """A power cut: every process of the node is gone at once, so are memory, /run and its network."""
        self.fabric.unplug(node_named(node).name)
        cgroups.remove(self.cluster_id, node)

    def power_on(self, node: str) -> None:
        """Boot the node again, with a new boot id, and start its daemons. Returns before slurmd has registered."""
        spec = node_named(node)
        if self.factory.init_of(node) is not None:
            raise RigError(f"node {node} is on")
        self.factory.boot(spec)
        self.factory.wait_ready(spec)
        if spec.role is Role.CONTROL and self.blueprint.accounting:
            self.services(node).start(Service.MARIADB)
            self.services(node).start(Service.SLURMDBD)
        self.start_services(node)

    def cut(self, node: str) -> None:
        """Pull the node's network cable. Its processes go on; the shared directories stay (they are no network)."""
        self.fabric.link(node_named(node).name, "down")

    def heal(self, node: str) -> None:
        """Plug the cable in again."""
        self.fabric.link(node_named(node).name, "up")

    def freeze(self, node: str) -> None:
        """Let every process of the node stand still: it is up, holds its connections, and does nothing."""
        for _ in range(2):  # what the first round missed was being started by what it stopped
            self.fabric.signal(node_named(node).name, signals.SIGSTOP)

    def thaw(self, node: str) -> None:
        """Let a frozen node go on where it stood."""
        self.fabric.signal(node_named(node).name, signals.SIGCONT)

    def services(self, node: str) -> NodeServices:
        """The daemons of a node, to stop and start singly."""
        root = Path(f"/proc/{self.init(node).pid}/root")
        return NodeServices(node, root, lambda script: self.run(node, ["sh", "-eu", "-c", script], timeout_s=600))

    def stop_slurmctld(self, *, signal: str = "TERM") -> None:
        """Stop slurmctld; signal="KILL" for a crash."""
        self.services("ctl").stop(Service.SLURMCTLD, signal=signal)

    def start_slurmctld(self, *, wait: bool = True) -> None:
        """Start slurmctld and wait until it answers."""
        self.services("ctl").start(Service.SLURMCTLD)
        if wait:
            # In 20.11 the status of `scontrol ping` is 0 whatever it found.
            self._poll(lambda: " is UP" in self._ping(), "answer of slurmctld", 300)

    def restart_slurmctld(self, *, signal: str = "TERM") -> None:
        """Stop and start slurmctld."""
        self.stop_slurmctld(signal=signal)
        self.start_slurmctld()

    def stop_slurmdbd(self, *, signal: str = "TERM") -> None:
        """Stop slurmdbd; slurmctld then keeps records until it is back."""
        self.services("ctl").stop(Service.SLURMDBD, signal=signal)

    def start_slurmdbd(self) -> None:
        """Start slurmdbd and wait until it answers."""
        self.services("ctl").start(Service.SLURMDBD)
        self._wait_for(["sacctmgr", "-n", "list", "cluster"], "slurmdbd")

    def restart_slurmdbd(self, *, signal: str = "TERM") -> None:
        """Stop and start slurmdbd."""
        self.stop_slurmdbd(signal=signal)
        self.start_slurmdbd()

    def restart_slurm(self) -> None:
        """Restart slurmctld and each slurmd; running jobs continue."""
        self.restart_slurmctld()
        for spec in COMPUTE_NODES:
            self.services(spec.name).stop(Service.SLURMD)
            self.services(spec.name).start(Service.SLURMD)

    def reconfigure(self, values: Mapping[str, str]) -> Self:
        """Render the configuration with other values and restart slurmctld and slurmd; running jobs go on.

        The values replace those of the cluster's options; reconfigure({}) goes back to the files alone.
        """
        changed = replace(self, blueprint=replace(self.blueprint, values=dict(values)))
        changed.write_slurm()
        changed.restart_slurm()
        found = record.read(self.cluster_id)
        if found is not None:
            record.write(Record(found.cluster_id, found.state_dir, found.owner, found.complete, changed.blueprint))
        return changed

    # --- parts of up and power_on ---------------------------------------------------------------------------

    def write_slurm(self) -> None:
        """Render the configuration; the daemons read it when they start."""
        plan = self.blueprint
        options = site.SiteOptions(
            Path(plan.checkout),
            suite_named(plan.suite),
            plan.slurm_version,
            plan.accounting,
            plan.confined,
            plan.values,
        )
        site.write_slurm(self.state_dir / "etc", options, account_id(plan.layers[-1], "slurm"))

    def start_services(self, node: str) -> None:
        """The daemons of a node, but for the accounting."""
        role, services = node_named(node).role, self.services(node)
        if role is Role.CONTROL:
            services.start(Service.SLURMCTLD)
        if role is Role.COMPUTE:
            services.start(Service.SLURMD)
        else:
            services.start(Service.SSHD)
            services.start(Service.CRON)

    # --- waiting and looking ----------------------------------------------------------------------------------

    def wait_idle(self, timeout_s: float = 600.0) -> None:
        """Wait until every compute node is idle in Slurm's eyes."""
        names = ",".join(spec.name for spec in COMPUTE_NODES)
        argv = ["sinfo", "--noheader", "--partition=main", "--states=idle", f"--nodes={names}", "--format=%D %t"]

        def ready() -> bool:
            done = self.run("ctl", argv, timeout_s=300, check=False)
            return done.stdout.split() == [str(len(COMPUTE_NODES)), "idle"]

        self._poll(ready, "all nodes idle", timeout_s)

    def versions(self) -> dict[str, str]:
        """The versions that this run used; "none" for what is not there."""
        commands = {
            "slurm": "slurmctld -V",
            "apptainer": "apptainer --version",
            "python": "python3 -V",
            "munge": "munge --version",
            "pyslurm": "/opt/ffdl/venv/bin/python3 -c 'import importlib.metadata as m; print(m.version(\"pyslurm\"))'",
            "mariadb": "mariadbd --version | sed 's/.*Ver \\([^ ]*\\).*/\\1/'",
        }
        found = {"suite": self.blueprint.suite}
        for name, command in commands.items():
            done = self.run("ctl", ["sh", "-c", f"{command} 2>/dev/null"], check=False)
            words = done.stdout.split()
            found[name] = next((word.removeprefix("munge-") for word in words if any(map(str.isdigit, word))), "none")
        return found

    def _ping(self) -> str:
        return self.run("ctl", ["scontrol", "ping"], timeout_s=300, check=False).stdout

    def _wait_for(self, argv: Sequence[str], what: str) -> None:
        self._poll(lambda: self.run("ctl", argv, timeout_s=300, check=False).returncode == 0, f"answer of {what}", 300)

    def _poll(self, ready: Callable[[], bool], what: str, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while not ready():
            if time.monotonic() > deadline:
                raise RigError(f"no {what} within {timeout_s:.0f} s; the logs are in {self.state_dir}/nodes/*/log")
            time.sleep(0.05)
