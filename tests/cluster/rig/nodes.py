"""Makes and ends nodes: network namespaces on a bridge, a process 1 in each, and what they leave behind.

Everything is named after the cluster's id, so it can be found and removed without a record of it.
"""

from __future__ import annotations

import signal as signals
import subprocess
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

from . import cgroups
from .boot import Bind, NodeLayout, boot_script, private_binds
from .command import bare_environment, run, tail_of
from .errors import RigError
from .processes import Process, wait_gone
from .topology import COMPUTE_NODES, NETWORK_PREFIX, NODES, NodeSpec

_BOOT_TIMEOUT_S = 300.0


@dataclass(frozen=True, slots=True)
class Fabric:
    """The network of one cluster: a bridge in a namespace of its own, and a namespace per node."""

    cluster_id: str

    @property
    def bridge_netns(self) -> str:
        """The namespace that holds the bridge."""
        return f"ffdl-{self.cluster_id}-fabric"

    def netns(self, node: str) -> str:
        """The namespace of a node."""
        return f"ffdl-{self.cluster_id}-{node}"

    def create(self) -> None:
        """Make the bridge."""
        _ip("netns", "add", self.bridge_netns)
        _ip("-n", self.bridge_netns, "link", "add", "br0", "type", "bridge")
        _ip("-n", self.bridge_netns, "link", "set", "br0", "up")

    def plug(self, spec: NodeSpec) -> None:
        """Make a node's namespace with its address. Addresses are up before a daemon asks for them."""
        netns, port = self.netns(spec.name), f"v-{spec.name}"
        _ip("netns", "add", netns)
        _ip("link", "add", port, "netns", self.bridge_netns, "type", "veth", "peer", "name", "eth0", "netns", netns)
        _ip("-n", self.bridge_netns, "link", "set", port, "master", "br0", "up")
        _ip("-n", netns, "addr", "add", f"{spec.address}/{NETWORK_PREFIX}", "dev", "eth0")
        _ip("-n", netns, "link", "set", "eth0", "up")
        _ip("-n", netns, "link", "set", "lo", "up")

    def link(self, node: str, state: str) -> None:
        """Pull (`down`) or plug (`up`) the node's cable at the bridge."""
        _ip("-n", self.bridge_netns, "link", "set", f"v-{node}", state)

    def signal(self, node: str, number: signals.Signals) -> None:
        """Send a signal to every process of the node."""
        for process in _processes_in(self.netns(node)):
            process.send(number)

    def unplug(self, node: str) -> None:
        """End every process that is still in the node's namespace, and remove the namespace with its cable."""
        self._remove(self.netns(node))
        # The kernel takes a namespace apart in its own time; until then the cable's other end would be in the way.
        run(["ip", "-n", self.bridge_netns, "link", "del", f"v-{node}"], check=False)

    def destroy(self) -> None:
        """Remove the bridge."""
        self._remove(self.bridge_netns)

    @staticmethod
    def _remove(netns: str) -> None:
        if not Path(f"/run/netns/{netns}").exists():
            return
        found = _processes_in(netns)
        for process in found:
            process.kill()
        wait_gone(found, 60)
        run(["ip", "netns", "del", netns], check=False)


def _processes_in(netns: str) -> list[Process]:
    """Those in the namespace and all below them: learners have networks of their own."""
    found = {int(number) for number in run(["ip", "netns", "pids", netns], check=False).stdout.split()}
    children = _children()
    waiting = list(found)
    while waiting:
        below = children.get(waiting.pop(), set()) - found
        found |= below
        waiting += below
    return [process for number in sorted(found) if (process := Process.of(number)) is not None]


def _children() -> dict[int, set[int]]:
    """Of every process of this machine."""
    found: dict[int, set[int]] = {}
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            text = (directory / "stat").read_text()
        except OSError:  # it has ended
            continue
        found.setdefault(int(text.rpartition(")")[2].split()[1]), set()).add(int(directory.name))
    return found


def _ip(*words: str) -> None:
    run(["ip", *words])


@dataclass(frozen=True, slots=True)
class NodeFactory:
    """Boots the nodes of one cluster."""

    fabric: Fabric
    layers: tuple[Path, ...]
    state_dir: Path
    binds: tuple[Bind, ...]
    confined: bool

    def private(self, node: str) -> Path:
        """The node's own directory on the host."""
        return self.state_dir / "nodes" / node

    def boot(self, spec: NodeSpec) -> None:
        """Start a node; `wait_ready` tells when it is up.

        `setsid --fork` leaves it without a parent of ours, so it may outlive this process and is never our zombie.
        """
        private = self.private(spec.name)
        for bind in private_binds(private, spec.role):
            bind.source.mkdir(parents=True, exist_ok=True)
        (private / "mnt").mkdir(exist_ok=True)
        (private / "init.pid").unlink(missing_ok=True)
        (private / "boot_id").write_text(f"{uuid.uuid4()}\n")
        (private / "init.py").write_text(Path(__file__).with_name("node_init.py").read_text())
        layout = NodeLayout(
            spec,
            self.layers,
            self.state_dir / "etc",
            private,
            self.binds,
            self.fabric.cluster_id,
            self.confined,
        )
        script = private / "boot.sh"
        script.write_text(boot_script(layout))
        self.fabric.plug(spec)
        argv = [
            "setsid",
            "--fork",
            "nsenter",
            f"--net=/run/netns/{self.fabric.netns(spec.name)}",
            "unshare",
            "--mount",
            "--uts",
            "--ipc",
            "--pid",
            "--fork",
            "--kill-child=KILL",
            "/bin/sh",
            str(script),
        ]
        with (private / "boot.log").open("ab") as log:
            subprocess.run(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=bare_environment(),
                umask=0o022,
                check=True,
                timeout=_BOOT_TIMEOUT_S,
            )

    def wait_ready(self, spec: NodeSpec) -> Process:
        """Wait until the node has booted; returns its process 1."""
        deadline = time.monotonic() + _BOOT_TIMEOUT_S
        seen: Process | None = None
        while time.monotonic() < deadline and (seen is None or seen.alive()):
            seen = self.init_of(spec.name)
            if seen is not None and Path(f"/proc/{seen.pid}/root", "run/rig/ready").exists():
                return seen
            time.sleep(0.01)
        log = self.private(spec.name) / "boot.log"
        raise RigError(f"node {spec.name} did not boot; {log} ends: {tail_of(log)}")

    def init_of(self, node: str) -> Process | None:
        """The node's process 1 as the host sees it; None when the node is off."""
        try:
            pid = int((self.private(node) / "init.pid").read_text())
        except (OSError, ValueError):
            return None
        process = Process.of(pid)
        # A number from before a reboot of the machine may be somebody else's by now: ask where it lives.
        inside = process is not None and _same_netns(pid, self.fabric.netns(node))
        return process if inside else None


def _same_netns(pid: int, netns: str) -> bool:
    try:
        return Path(f"/proc/{pid}/ns/net").samefile(f"/run/netns/{netns}")
    except OSError:
        return False


def tear_down(cluster_id: str) -> None:
    """End and remove everything of a cluster but its files. Safe to repeat, and after a crash at any point."""
    fabric = Fabric(cluster_id)
    for spec in NODES:
        fabric.unplug(spec.name)
    fabric.destroy()
    for spec in COMPUTE_NODES:
        cgroups.remove(cluster_id, spec.name)
