"""Read the network that the site's prolog made for the job on this node, and check that learners are in it.

A network that is missing, or differs from the launch file's, ends the job before a learner starts. A learner outside
of it ends the job as well. Both have the code S107. A learner is checked once, from the node, in /proc, when its shell
runs: before that a container runtime is at work on the node's network. The shell is known by its command line, so the
check reads nothing on the shared file system.
"""

from __future__ import annotations

import os
from typing import Callable, Dict, List, Mapping, Optional, Sequence, Set, Tuple

from ffdl_batch.attempt.phase_files import PhaseFailed
from ffdl_batch.controller.learner.learner import Learner
from ffdl_batch.domain.launch.launch_file import LaunchFile
from ffdl_batch.domain.launch.network_level import OVERLAYS
from ffdl_batch.domain.outcome.controller_events import Scalar
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.host.processes import Process, all_processes, descendants

FAULT = "S107"
REQUEST_FAULT = "C101"
WRONG_DESTINATION = ("cannot be a destination", "no IPv4 address for the destination")
"""What the prolog prints (libexec/ffdl_network/destinations.py) if the manifest has to be changed: most names without
an address are misspelt, and the lookup fails on every node."""
WAIT_S = 5.0
"""Seconds until the facts must be visible. A prolog writes them before Slurm starts a process of the job."""
LONGEST_BYTES = 1 << 16
NONE, HOST = "none", "host"
_BEFORE_LEVELS = "job"
"""Level of networks whose facts do not name one."""
_DOCS = "docs/network.md"


@dataclass(frozen=True)
class JobNetwork:
    """The job's network on this node."""

    netns: str
    address: str
    """Address of the node's first learner."""
    mechanism: str
    level: str
    names: Tuple[Tuple[str, str], ...] = ()
    """Names and addresses of the allowed destinations."""

    @property
    def hosts(self) -> str:
        """Return lines for a hosts file."""
        return "".join(f"{address} {name}\n" for name, address in self.names)


def has_own(launch: LaunchFile) -> bool:
    """Return whether the learners must be in a network of the job's own."""
    return launch.pod is None and launch.network.level in OVERLAYS


def await_network(
    launch: LaunchFile,
    node_rank: int,
    env: Mapping[str, str],
    rest: Callable[[], None],
    now: Callable[[], float],
) -> JobNetwork:
    """Return the network that the prolog made. `rest` waits a moment and raises what ends the waiting.

    Raises PhaseFailed with what is missing and what to change.
    """
    allocation = env.get(launch.host.allocation, "") if launch.host.allocation else ""
    if not allocation.isdigit() or not launch.network.directory:
        raise _failed("the launch file does not name the directory in which the node's prolog describes it")
    directory = os.path.join(launch.network.directory, f"job-{allocation}")
    until = now() + WAIT_S
    while True:
        trouble = _read(os.path.join(directory, "error"))  # facts beside it are of an earlier start
        text = _read(os.path.join(directory, "network")) if trouble is None else None
        if text is not None:
            return check_facts(launch, node_rank, allocation, parse_facts(text))
        if trouble is not None or now() > until:
            is_request = any(words in (trouble or "") for words in WRONG_DESTINATION)
            raise _failed(_why_missing(directory, trouble), REQUEST_FAULT if is_request else FAULT)
        rest()


def _why_missing(directory: str, failure: Optional[str]) -> str:
    if failure is not None:
        return f"the prolog could not make it: {'; '.join(failure.split(chr(10))).strip('; ') or 'it gives no reason'}"
    begun = f"{directory} has neither network nor error, and its prolog.log may say why"
    there = begun if os.path.isdir(directory) else f"there is no {directory}"
    return (
        f"{there}; Slurm's prolog on this node must run prolog.d/50-ffdl of slurm-configs, and that the root "
        f"programs in libexec ({_DOCS}, 'Install'; `scontrol show config` names the prolog)"
    )


def _failed(why: str, code: str = FAULT) -> PhaseFailed:
    return PhaseFailed(code, f"node {os.uname().nodename} has no network for this job: {why}")


def _read(path: str) -> Optional[str]:
    """Return the text of root's file; None if it does not exist. Raises PhaseFailed if it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(LONGEST_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise _failed(f"{path}: {error.strerror}") from error


def parse_facts(text: str) -> Dict[str, str]:
    """Return the lines ``name=value`` as a dictionary."""
    pairs = (line.partition("=") for line in text.split("\n"))
    return {name: value for name, sign, value in pairs if sign}


def check_facts(launch: LaunchFile, node_rank: int, allocation: str, facts: Mapping[str, str]) -> JobNetwork:
    """Return the network in the facts. Raises PhaseFailed if they do not match the launch file."""
    wanted = {
        "job": allocation,
        "level": launch.network.level,
        "nodes": str(launch.nodes),
        "rank": str(node_rank),
    }
    for name, value in wanted.items():
        found = facts.get(name, _BEFORE_LEVELS if name == "level" else "")
        if found != value:
            raise _failed(f"the prolog made one with {name} {found!r}, but {value!r} is needed")
    learners, own = facts.get("learners", ""), len(launch.learners_on(node_rank))
    if not learners.isdigit() or int(learners) < own:
        raise _failed(f"the prolog made one for {learners!r} learners, but {own} must run here")
    prefix, netns = facts.get("prefix", ""), facts.get("netns", "")
    if not netns.startswith("/") or not prefix.endswith(f".{node_rank}."):
        raise _failed(f"the prolog gives no namespace ({netns!r}) or no addresses ({prefix!r}) for it")
    listed = (one.partition("=") for one in facts.get("names", "").split(",") if one)
    names = tuple((name, address) for name, _, address in listed)
    return JobNetwork(netns, f"{prefix}1", facts.get("mechanism", ""), launch.network.level, names)


def check_addresses(addresses: Sequence[str]) -> None:
    """Check that all nodes give learners addresses of the same network. Raises PhaseFailed."""
    base = addresses[0].split(".")[:2]
    for rank, address in enumerate(addresses):
        if address.split(".") != [*base, str(rank), "1"]:
            raise _failed(
                f"node {rank} gives its learners addresses from {address}, and node 0 from {addresses[0]}: "
                f"NETWORK_PREFIX must be the same on all nodes ({_DOCS}, 'Values')"
            )


def place_of(pid: int) -> Optional[Tuple[int, int]]:
    """Return the network namespace of a process; None if it has ended or cannot be read."""
    return _identity(f"/proc/{pid}/ns/net")


def _identity(path: str) -> Optional[Tuple[int, int]]:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def misplaced(level: str, place: Tuple[int, int], network: Optional[JobNetwork]) -> str:
    """Return what is wrong with a learner's network namespace `place` at this level; "" if it is right."""
    own = _identity("/proc/self/ns/net")
    if level == HOST:
        return "" if place == own else "it is in another network than the node's, and level host means the node's"
    if network is None:
        return "" if place != own else f"it is in the node's network, and level {level} means one of its own"
    if place == _identity(network.netns):
        return ""
    where = "the node's" if place == own else "another"
    return f"it is in {where} network, not in {network.netns}, which is the job's"


OFTEN, SELDOM_S = 40, 1.0
"""Number of checks without a pause, and the pause between later ones, because fetching an image takes time."""
SHELL_WORDS = 3
"""A learner's argv ends with a shell, -c and the text that runs its command."""


class NamespaceCheck:
    """Checks that the learners of one node are in the planned network."""

    def __init__(self, launch: LaunchFile, network: Optional[JobNetwork]) -> None:
        """`network` is the job's own on this node; None if it has none."""
        self._level = launch.network.level
        self._expected = HOST if launch.pod is not None else self._level  # a pod's network is that of its controller
        self._mechanism = network.mechanism if network else launch.network.mechanism
        self._network = network
        self._seen: Set[int] = set()
        self._checks, self._next = 0, 0.0
        self.wrong: Dict[int, str] = {}
        """Learners in another network, with what is wrong."""

    def hurries(self, learners: Mapping[int, Learner]) -> bool:
        """Return whether a learner must still be checked, which may be possible at any moment."""
        return self._checks < OFTEN and any(learner.pid not in self._seen for learner in learners.values())

    @property
    def has_seen(self) -> bool:
        """Return whether a learner was checked."""
        return bool(self._seen)

    def look(self, learners: Mapping[int, Learner], now: float) -> List[int]:
        """Check learners whose shell runs now. Return those in the wrong network."""
        waiting = {number: one for number, one in learners.items() if one.pid not in self._seen}
        if not waiting or now < self._next:
            return []
        self._checks += 1
        self._next = now if self._checks < OFTEN else now + SELDOM_S
        table = all_processes()
        found = []
        for number, learner in waiting.items():
            place = self._place(learner, table)
            if place is None:
                continue
            self._seen.add(learner.pid)
            wrong = misplaced(self._expected, place, self._network)
            if wrong:
                self.wrong[number] = f"learner {number} was ended: {wrong}"
                found.append(number)
        return found

    def _place(self, learner: Learner, table: Mapping[int, Process]) -> Optional[Tuple[int, int]]:
        shell = tuple(learner.start.argv[-SHELL_WORDS:])
        for pid in descendants(learner.root, table):
            words = _command_line(pid)
            if words[1:] == shell[1:] and words[:1] and _name(words[0]) == _name(shell[0]):
                return place_of(pid)
        return None

    def achieved(self) -> Dict[str, Scalar]:
        """Return the fields of the event. `seen` is false if no learner was checked, because it ended at once."""
        return {"level": self._level, "mechanism": self._mechanism, "seen": self.has_seen}


def _name(program: str) -> str:
    """Return the name without the directory, because Apptainer starts a shell by its path."""
    return program.rpartition("/")[2]


def _command_line(pid: int) -> Tuple[str, ...]:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return tuple(file.read().decode("utf-8", "surrogateescape").split("\0")[:-1])
    except OSError:
        return ()
