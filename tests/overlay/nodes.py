"""Two nodes on this machine: network namespaces with a cable between them, the rendered programs, and Slurm's words.

A node is a process in a network namespace of its own; mounts are this test's alone (private_mounts). Whatever kills the
test, the kernel takes all of it back. Prolog and epilog are the hooks that a site installs, run as slurmd runs them.
"""

from __future__ import annotations

import pwd
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.private_mounts import private_mounts

CONFIGS = Path(__file__).resolve().parents[2] / "slurm-configs"
PYTHON = [sys.executable, "-I", "-S"]
UDP_PORT = 299
SECRET = bytes(range(32))
WIREGUARD = {"NETWORK_MECHANISM": "wireguard", "NETWORK_WIREGUARD_PROGRAM": "/usr/bin/wireguard-go"}
"""Values of a site whose kernels may lack it."""
WIREGUARD_PORTS = range(10000, 26384)
GROUP = 3000
ALICE, BOB, STRANGER = (pwd.getpwnam(name).pw_uid for name in ("games", "news", "uucp"))
"""Users that every Debian has: two who may have networks, run with one group for both, and one who may not."""
PATIENT = {"NETWORK_COMMAND_TIMEOUT_S": "120", "NETWORK_TIMEOUT_S": "250", "PROLOG_EPILOG_TIMEOUT_S": "300"}
PATIENCES = (("locks.py", "_PATIENCE_S = 15.0"), ("network.py", "KILL_PATIENCE_S = 5.0"))
"""Limits of time that a busy machine keeps, and those of the programs that no value sets."""

Completed = subprocess.CompletedProcess[str]


@dataclass(frozen=True, slots=True)
class Node:
    """One node. Its name is its address, so no resolver is needed."""

    name: str
    pid: int
    place: Path
    own_run: bool = False
    """Whether it has a /run of its own, where WireGuard programs have their sockets."""

    @property
    def run_dir(self) -> Path:
        return self.place / "run"

    @property
    def libexec(self) -> Path:
        return self.place / "etc" / "libexec"

    def job_dir(self, job: int) -> Path:
        return self.run_dir / f"job-{job}"

    def facts(self, job: int) -> dict[str, str]:
        """What the controller reads of a job."""
        return pairs(self.job_dir(job) / "network")

    def namespace(self, job: int) -> str:
        return self.facts(job)["netns"]

    def enter(self, argv: Sequence[str], *, uid: int = 0) -> list[str]:
        """The argv that runs a program on the node."""
        mounts = [f"--mount=/proc/{self.pid}/ns/mnt"] if self.own_run else []
        return ["nsenter", f"--net=/proc/{self.pid}/ns/net", *mounts, *as_user(argv, uid)]

    def run(self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, check: bool = True) -> Completed:
        done = subprocess.run(
            self.enter(argv),
            env={"PATH": "/usr/sbin:/usr/bin", **(env or {})},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert not check or done.returncode == 0, done
        return done

    def environment(self, job: int, nodes: str, comment: str = "", uid: int = ALICE) -> dict[str, str]:
        """What slurmd gives its prolog."""
        return {
            "PATH": "/usr/bin:/bin",
            "SLURM_JOB_ID": str(job),
            "SLURM_JOB_UID": str(uid),
            "SLURM_JOB_NODELIST": nodes,
            "SLURMD_NODENAME": self.name,
            "SLURM_JOB_COMMENT": comment,
        }

    def prolog(self, job: int, nodes: str, comment: str = "ffdl-batch:job/2", uid: int = ALICE) -> str:
        """Run the hook, which ends with 0 whatever happens; the text of the job's error file, "" when there is none."""
        hook = str(self.place / "etc/prolog.d/50-ffdl")
        done = self.run([hook], env=self.environment(job, nodes, comment, uid))
        assert done.stdout + done.stderr == ""
        error = self.job_dir(job) / "error"
        return error.read_text() if error.exists() else ""

    def epilog(self, job: int) -> None:
        done = self.run([str(self.place / "etc/epilog.d/50-ffdl")], env={"SLURM_JOB_ID": str(job)})
        assert done.stdout + done.stderr == ""

    def left(self) -> list[str]:
        """Everything of any job that is on the node; empty when all is as before the first."""
        found = [line for line in Path("/proc/self/mounts").read_text().splitlines() if str(self.run_dir) in line]
        kept = {"slots", "locks", "capabilities", "booted", "forwarding"}
        found += [path.name for path in self.run_dir.glob("*") if path.name not in kept]
        found += [f"slots/{path.name}" for path in (self.run_dir / "slots").glob("*")]
        found += [f"locks/{path.name}" for path in (self.run_dir / "locks").glob("[!n]*")]
        tables = self.run(["nft", "list", "tables"]).stdout.splitlines()
        found += [line for line in tables if line != "table ip ffdl_node"]
        found += self.run(["ip", "-o", "link", "show", "type", "vxlan"]).stdout.splitlines()
        found += [line for line in self.run(["ip", "-o", "link"]).stdout.splitlines() if "ffdl-" in line]
        # The socket of a device lives here even when the device is elsewhere.
        bound = (line.split()[1] for line in Path(f"/proc/{self.pid}/net/udp").read_text().splitlines()[1:])
        ports = {int(address.partition(":")[2], 16) for address in bound}
        found += [str(port) for port in ports if port == UDP_PORT or port in WIREGUARD_PORTS]
        if self.own_run:
            found += self.run(["find", "/run", "-name", "*.sock"]).stdout.splitlines()
        return found + [f"process {pid}" for pid in self.programs()]

    def programs(self) -> list[int]:
        """WireGuard programs of jobs, by their number."""
        here, found = Path(f"/proc/{self.pid}/ns/net").readlink(), []
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # it has ended
                if (process / "comm").read_text() == "wireguard-go\n" and (process / "ns/net").readlink() == here:
                    found.append(int(process.name))
        return found

    def sent(self) -> int:
        """How many packets the node's cable has taken from it."""
        line = next(line for line in Path(f"/proc/{self.pid}/net/dev").read_text().splitlines() if "eth0:" in line)
        return int(line.partition(":")[2].split()[9])


def pairs(path: Path) -> dict[str, str]:
    """A file of `name=value` lines."""
    return dict(line.split("=", 1) for line in path.read_text().splitlines())


def as_user(argv: Sequence[str], uid: int) -> list[str]:
    """As that user of the shared group; 0: as root."""
    if not uid:
        return list(argv)
    return ["setpriv", "--reuid", str(uid), "--regid", str(GROUP), "--clear-groups", *argv]


@contextmanager
def two_nodes(**values: str) -> Iterator[tuple[Node, Node]]:
    """Nodes 10.9.0.1 and 10.9.0.2; `values` override values.env."""
    with ExitStack() as stack:
        place = Path(tempfile.mkdtemp(prefix="ffdl-overlay-"))
        stack.callback(shutil.rmtree, place)
        place.chmod(0o755)
        stack.enter_context(private_mounts())
        # What is mounted there by one who has a /run of its own is seen by all.
        _run("mount", "--bind", str(place), str(place))
        stack.callback(_run, "umount", str(place))
        _run("mount", "--make-shared", str(place))
        nodes = [_make(stack, place, number, values) for number in (1, 2)]
        first, second = (str(node.pid) for node in nodes)
        _run("ip", "link", "add", "eth0", "netns", first, "type", "veth", "peer", "name", "eth0", "netns", second)
        for number, node in enumerate(nodes, start=1):
            # Nothing is on the cable but what is sent: no IPv6 that looks for routers, no ARP now and then.
            node.run(["sysctl", "-qw", "net.ipv6.conf.eth0.disable_ipv6=1"])
            node.run(["ip", "link", "set", "eth0", "address", f"02:00:00:00:01:{number:02}", "up"])
            node.run(["ip", "link", "set", "lo", "up"])
            node.run(["ip", "addr", "add", f"{node.name}/24", "dev", "eth0"])
            other = 3 - number
            node.run(["ip", "neigh", "add", f"10.9.0.{other}", "lladdr", f"02:00:00:00:01:{other:02}", "dev", "eth0"])
        yield nodes[0], nodes[1]


def _make(stack: ExitStack, base: Path, number: int, values: Mapping[str, str]) -> Node:
    place = base / str(number)
    place.mkdir()
    own_run = values.get("NETWORK_MECHANISM") == "wireguard"
    own = ["--mount", "--propagation=unchanged"] if own_run else []
    argv = ["unshare", "--net", *own, "setpriv", "--pdeathsig", "KILL", "sleep", "infinity"]
    process = stack.enter_context(subprocess.Popen(argv))
    stack.callback(process.kill)
    wait_for_sleep(process.pid)
    node = Node(f"10.9.0.{number}", process.pid, place, own_run)
    if own_run:
        node.run(["mount", "-t", "tmpfs", "run", "/run"])
    secret = place / "network.secret"
    secret.write_bytes(SECRET)
    secret.chmod(0o600)
    starter = place / "starter-suid"
    shutil.copyfile(shutil.which("true") or "", starter)
    starter.chmod(0o4755)
    chosen = {
        "ACCOUNTING_STORAGE_HOST": "nowhere",
        "SLURM_ETC": str(place / "etc"),
        "FFDL_RUN": str(node.run_dir),
        "FFDL_LIBEXEC": str(node.libexec),
        "APPTAINER_CONF": str(place / "apptainer.conf"),
        "APPTAINER_STARTERS": str(starter),
        "NETWORK_GROUPS": "games,news",
        "NETWORK_SECRET": str(secret),
        **PATIENT,
        **values,
    }
    site = place / "values.env"
    site.write_text("".join(f"{name}={value}\n" for name, value in chosen.items()))
    files = ["--values", str(CONFIGS / "values.env"), "--values", str(site)]
    _run(sys.executable, str(CONFIGS / "render.py"), *files, "--out", str(place / "etc"))
    for name, line in PATIENCES:
        stack.enter_context(edited(node, name, re.escape(line), line.partition(" ")[0] + " = 120.0"))
    configure_apptainer(node)
    return node


@contextmanager
def edited(node: Node, name: str, pattern: str, text: str) -> Iterator[None]:
    """The node's programs, with another text in one of their modules."""
    file = node.libexec / "ffdl_network" / name
    whole = file.read_text()
    changed, count = re.subn(pattern, lambda _: text, whole, flags=re.MULTILINE)
    assert count == 1, (name, pattern)
    _write_module(file, changed)
    try:
        yield
    finally:
        _write_module(file, whole)


def _write_module(file: Path, text: str) -> None:
    """Python takes a file of the same size and second for the one that it has compiled, so that goes, too."""
    file.write_text(text)
    for compiled in (file.parent / "__pycache__").glob(f"{file.stem}.*"):
        compiled.unlink()


def settings_with(node: Node, name: str, value: str) -> AbstractContextManager[None]:
    """The node's programs with another value, as rendered again."""
    return edited(node, "settings.py", f'^    "{name}": .*$', f'    "{name}": "{value}",')


def configure_apptainer(node: Node) -> None:
    """Write apptainer.conf as the operator is told to."""
    lines = _run(str(node.libexec / "check"), "--apptainer-conf")
    (node.place / "apptainer.conf").write_text(f"allow setuid = yes\nallow net users =\n{lines}")


def wait_for_sleep(pid: int) -> None:
    """Until the process is the program sleep: before that its namespace may still be ours."""
    deadline = time.monotonic() + 120
    while Path(f"/proc/{pid}/comm").read_text() != "sleep\n":
        assert time.monotonic() < deadline
        time.sleep(0.005)


def _run(*argv: str) -> str:
    return subprocess.run(argv, check=True, capture_output=True, text=True, timeout=300).stdout
