"""Let the nodes of an attempt wait for each other, and read what the others report.

No learner starts before every node has loaded and reported its address. The event files of the node controllers say
which phase is done and who has ended.
"""

from __future__ import annotations

import math
import os
import socket
import sys
import time
from typing import Callable, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple

from ffdl_batch.attempt.event_journal import Journal
from ffdl_batch.attempt.file_writer import write_cell
from ffdl_batch.attempt.layout import AttemptDir
from ffdl_batch.attempt.learner_endings import ended_of_itself, last_endings, learner_status
from ffdl_batch.attempt.phase_files import Ended, PhaseFailed
from ffdl_batch.attempt.reader import MAX_EVENT_BYTES, find_object, find_text
from ffdl_batch.controller.rendezvous.learner_addresses import LOOPBACK
from ffdl_batch.domain.launch.launch_file import LaunchFile
from ffdl_batch.domain.outcome.controller_events import Event, EventKind, Phase, decode_events, merge, node_source
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.host.processes import boot_id

SILENCE_MARGIN_S = 5.0
BEGIN_S = 300.0
"""A controller without an event for this long has not begun: one job step starts the controllers of all nodes."""
DISCARD_PORT = 9
NO_ADDRESS, LOST = "S101", "S106"


@dataclass(frozen=True)
class NodeState:
    """The state of a node controller in this run, according to its events."""

    host: str = ""
    """"" if it has not begun."""
    boot_id: str = ""
    address: str = ""
    """"" if it is not ready."""
    has_ended: bool = False


def node_state(events: Sequence[Event], run: int) -> NodeState:
    """Return the state of one node controller in run number `run`. Events of earlier runs are ignored."""
    found, has_met = NodeState(), False
    for event in events:
        fields = event.fields
        if event.kind is EventKind.STARTED:
            own, has_met = fields.get("run") == run, False
            found = NodeState(_text(fields, "host"), _text(fields, "boot_id")) if own else NodeState()
        elif event.kind is EventKind.READY and fields.get("run") == run:
            found = NodeState(found.host, found.boot_id, _text(fields, "address"))
        elif event.kind is EventKind.PHASE and fields.get("phase") == Phase.LEARNER.value:
            has_met = True  # all nodes were ready; one without a learner to start may have ended since
        elif event.kind is EventKind.ENDED and found.host and not has_met:
            found = NodeState(found.host, found.boot_id, found.address, has_ended=True)
    return found


def _text(fields: Mapping[str, object], name: str) -> str:
    return str(fields.get(name) or "")


@dataclass(frozen=True)
class NodeReport:
    """The events and the last heartbeat of another node controller."""

    events: List[Event]
    beat_at: float = 0.0
    """0 if there was no heartbeat."""


class NodeBarrier:
    """Lets one node wait for the others."""

    def __init__(
        self,
        launch: LaunchFile,
        node_rank: int,
        run: int,
        read: Callable[[int], NodeReport],
        rest: Callable[[], None],
        now: Callable[[], float],
    ) -> None:
        """`read` returns another node's report. `rest` waits a moment and raises what ends the waiting."""
        self.launch, self.node_rank, self.run = launch, node_rank, run
        self._read, self._rest, self._now = read, rest, now

    def await_neighbour(self) -> NodeState:
        """Wait until the first other node has begun, and return its state."""
        return self._await(1 if self.node_rank == 0 else 0, lambda found: bool(found.host))

    def await_addresses(self, own: str) -> Tuple[str, ...]:
        """Wait until all nodes are ready, and return their addresses.

        One file is read at a time to spare the server.
        """
        ranks = range(self.launch.nodes)
        return tuple(own if rank == self.node_rank else self._await(rank, _is_ready).address for rank in ranks)

    def _await(self, rank: int, is_enough: Callable[[NodeState], bool]) -> NodeState:
        """Wait for the node. Raises Ended, PhaseFailed, and what `read` and `rest` raise."""
        limits = self.launch.limits
        patience_s = limits.fence_s + limits.heartbeat_s + SILENCE_MARGIN_S
        if self.launch.pod is not None:  # pods start one by one, and the daemon notices lost ones
            patience_s = math.inf
        seen, seen_at = (-1, 0.0), self._now()
        while True:
            report = self._read(rank)
            found = node_state(report.events, self.run)
            if found.has_ended:
                raise Ended("stop", f"node {rank} ({found.host}) ended before all nodes were ready")
            if is_enough(found):
                return found
            sign = (len(report.events), report.beat_at)
            if sign != seen:
                seen, seen_at = sign, self._now()
            elif not found.host and self._now() - seen_at > max(patience_s, BEGIN_S):
                late = f"has not begun {max(patience_s, BEGIN_S):.0f} s after this one; the batch log may say why"
                raise PhaseFailed(LOST, f"the controller of node {rank} {late}")
            elif found.host and self._now() - seen_at > patience_s:
                silent = f"gave no sign of life for {patience_s:.0f} s before the learners started"
                raise PhaseFailed(LOST, f"the controller of node {rank} ({found.host}) {silent}")
            self._rest()


def _is_ready(found: NodeState) -> bool:
    return bool(found.address)


def own_address(neighbour: NodeState) -> str:
    """Return the IPv4 address at which other nodes reach this one.

    It is the source address for packets to `neighbour`, else the address of this host's name. No packet is sent. Raises
    PhaseFailed with what was tried.
    """
    host = os.uname().nodename
    ways: Dict[str, Callable[[], str]] = {
        f"the way to {neighbour.host}": lambda: _sender_towards(neighbour.host),
        f"the name {host}": lambda: socket.gethostbyname(host),
    }
    tried = []
    for what, find in ways.items():
        try:
            address = find()
        except (OSError, UnicodeError) as error:
            tried.append(f"{what}: {error}")
            continue
        if not address.startswith("127."):
            return address
        tried.append(f"{what}: {address}")
    if neighbour.host == host and neighbour.boot_id == boot_id():  # several nodes on one machine
        return LOOPBACK
    raise PhaseFailed(
        NO_ADDRESS,
        f"node {host} has no address at which other nodes reach it ({'; '.join(tried)}); nodes must resolve each "
        "other's host names",
    )


def _sender_towards(host: str) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, DISCARD_PORT))
        return str(probe.getsockname()[0])


def read_events(attempt: AttemptDir, source: str) -> List[Event]:
    """Return one writer's events so far; () if its file is missing or damaged. Raises OSError."""
    return decode_events(find_text(attempt.event_file(source), MAX_EVENT_BYTES, below=attempt.path))


def notify_others(launch: LaunchFile, *, what: str = "stop", reason: str = "failure", **why: object) -> None:
    """Request all node controllers to end their learners (`what` stop), or to ask them for a checkpoint (halt).

    `why` is written into the cell. A stop is not replaced by a halt. Never raises.
    """
    if launch.nodes == 1:
        return
    path = AttemptDir(launch.attempt_dir).stop
    try:
        if find_object(path).get("what") not in ("stop", what):
            write_cell(path, {"what": what, "reason": reason, "at": time.time(), **why})
    except OSError as error:  # the other nodes end when the head does
        sys.stderr.write(f"ffdl-controller: {path}: {error}\n")


class OtherNodes:
    """Reads the events of the attempt's node controllers at each call. All methods raise OSError."""

    def __init__(self, launch: LaunchFile, node_rank: int, journal: Journal) -> None:
        """`journal` has the own events, also those that could not be written yet."""
        self.launch, self.node_rank, self.journal = launch, node_rank, journal
        self.attempt = AttemptDir(launch.attempt_dir)

    def events(self, ranks: Optional[Iterable[int]] = None) -> List[Event]:
        """Return the events of all node controllers in order, or of those in `ranks` and the own one."""
        own, wanted = self.node_rank, range(self.launch.nodes) if ranks is None else sorted(ranks)
        files = (read_events(self.attempt, node_source(rank)) for rank in wanted if rank != own)
        return merge([*files, self.journal.events])

    def report(self, node_rank: int) -> NodeReport:
        """Return the report about another node controller."""
        try:
            beat_at = os.lstat(self.attempt.heartbeat(node_rank)).st_mtime
        except (FileNotFoundError, NotADirectoryError):
            beat_at = 0.0
        return NodeReport(read_events(self.attempt, node_source(node_rank)), beat_at)

    def phase_status(self, node_rank: int, phase: Phase) -> Optional[int]:
        """Return the exit status of the phase on that node; None if it has not ended."""
        status: Optional[int] = None
        for event in read_events(self.attempt, node_source(node_rank)):
            if event.kind is EventKind.PHASE and event.fields.get("phase") == phase.value:
                found = event.fields.get("exit")
                status = found if event.fields.get("status") == "ended" and isinstance(found, int) else None
        return status

    def ended_of_themselves(self) -> Dict[int, int]:
        """Return the status of every learner that ended without a request, in this run or an earlier one.

        Such a learner is done or has failed. One that was asked for a checkpoint continues from it in a new run.
        """
        return {n: learner_status(event) for n, event in last_endings(self.events()).items() if ended_of_itself(event)}

    def all_learners_ended(self) -> bool:
        """Return whether all learners of the job have ended."""
        return len(last_endings(self.events())) >= self.launch.learners

    def all_learners_started(self) -> bool:
        """Return whether each learner of the job was started, in this run or an earlier one."""
        found = {event.fields.get("learner_id") for event in self.events() if event.kind is EventKind.LEARNER_STARTED}
        return len(found) >= self.launch.learners
