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
from dataclasses import dataclass
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
from ffdl_batch.host.processes import boot_id

SILENCE_MARGIN_S = 5.0
BEGIN_S = 300.0
"""One job step starts the controllers of all nodes; one that has said nothing for so long never began."""
DISCARD_PORT = 9
NO_ADDRESS, LOST = "S101", "S106"


@dataclass(frozen=True)
class NodeState:
    """What a node controller has said in this run: where it began ("" = it has not), its address ("" = it is not
    ready), and whether it has ended."""

    host: str = ""
    boot_id: str = ""
    address: str = ""
    has_ended: bool = False


def node_state(events: Sequence[Event], run: int) -> NodeState:
    """The last word of one node controller about run number `run`; words of earlier runs say nothing."""
    found, has_met = NodeState(), False
    for event in events:
        fields = event.fields
        if event.kind is EventKind.STARTED:
            own, has_met = fields.get("run") == run, False
            found = NodeState(_text(fields, "host"), _text(fields, "boot_id")) if own else NodeState()
        elif event.kind is EventKind.READY and fields.get("run") == run:
            found = NodeState(found.host, found.boot_id, _text(fields, "address"))
        elif event.kind is EventKind.PHASE and fields.get("phase") == Phase.LEARNER.value:
            has_met = True  # all were ready then; one that had nothing to start may have ended since
        elif event.kind is EventKind.ENDED and found.host and not has_met:
            found = NodeState(found.host, found.boot_id, found.address, has_ended=True)
    return found


def _text(fields: Mapping[str, object], name: str) -> str:
    return str(fields.get(name) or "")


@dataclass(frozen=True)
class NodeReport:
    """What can be seen of another node controller: its events, and when its heart beat last (0 = never)."""

    events: List[Event]
    beat_at: float = 0.0


class NodeBarrier:
    """One node's wait for the others. `read` gives another node's word, `rest` waits a moment and raises what ends the
    waiting; `now` is this node's clock."""

    def __init__(
        self,
        launch: LaunchFile,
        node_rank: int,
        run: int,
        read: Callable[[int], NodeReport],
        rest: Callable[[], None],
        now: Callable[[], float],
    ) -> None:
        self.launch, self.node_rank, self.run = launch, node_rank, run
        self._read, self._rest, self._now = read, rest, now

    def await_neighbour(self) -> NodeState:
        """The first other node, once it has begun."""
        return self._await(1 if self.node_rank == 0 else 0, lambda found: bool(found.host))

    def await_addresses(self, own: str) -> Tuple[str, ...]:
        """The address of each node, once all are ready. One file at a time is looked at: many nodes ask one server."""
        ranks = range(self.launch.nodes)
        return tuple(own if rank == self.node_rank else self._await(rank, _is_ready).address for rank in ranks)

    def _await(self, rank: int, is_enough: Callable[[NodeState], bool]) -> NodeState:
        """Raises Ended, PhaseFailed, and what `read` and `rest` raise."""
        limits = self.launch.limits
        patience_s = limits.fence_s + limits.heartbeat_s + SILENCE_MARGIN_S
        if self.launch.pod is not None:  # pods begin one by one, and the platform hears of those that are lost
            patience_s = math.inf
        heard, heard_at = (-1, 0.0), self._now()
        while True:
            word = self._read(rank)
            found = node_state(word.events, self.run)
            if found.has_ended:
                raise Ended("stop", f"node {rank} ({found.host}) ended before all nodes were ready")
            if is_enough(found):
                return found
            sign = (len(word.events), word.beat_at)
            if sign != heard:
                heard, heard_at = sign, self._now()
            elif not found.host and self._now() - heard_at > max(patience_s, BEGIN_S):
                late = f"has not begun {max(patience_s, BEGIN_S):.0f} s after this one; the batch log may say why"
                raise PhaseFailed(LOST, f"the controller of node {rank} {late}")
            elif found.host and self._now() - heard_at > patience_s:
                silent = f"was not heard of for {patience_s:.0f} s before the learners started"
                raise PhaseFailed(LOST, f"the controller of node {rank} ({found.host}) {silent}")
            self._rest()


def _is_ready(found: NodeState) -> bool:
    return bool(found.address)


def own_address(neighbour: NodeState) -> str:
    """The IPv4 address at which other nodes reach this one: the one that the kernel would send from to `neighbour`,
    else what this host's name stands for. No packet is sent. Raises PhaseFailed that says what was tried."""
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
        f"node {host} has no address at which other nodes reach it ({'; '.join(tried)}); nodes have to resolve each "
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
    """Have all node controllers end their learners (`what` stop), or ask them to save and end (halt).

    `why` goes into the cell, too. A cell that says stop stays. Never raises.
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
    """The node controllers of one attempt, read afresh at every question; all but the own one, whose `journal` also
    knows what could not be written yet. Raises OSError."""

    def __init__(self, launch: LaunchFile, node_rank: int, journal: Journal) -> None:
        self.launch, self.node_rank, self.journal = launch, node_rank, journal
        self.attempt = AttemptDir(launch.attempt_dir)

    def events(self, ranks: Optional[Iterable[int]] = None) -> List[Event]:
        """Of all node controllers, in order; `ranks`: of these, and of the own one."""
        own, wanted = self.node_rank, range(self.launch.nodes) if ranks is None else sorted(ranks)
        files = (read_events(self.attempt, node_source(rank)) for rank in wanted if rank != own)
        return merge([*files, self.journal.events])

    def report(self, node_rank: int) -> NodeReport:
        """What can be seen of another one."""
        try:
            beat_at = os.lstat(self.attempt.heartbeat(node_rank)).st_mtime
        except (FileNotFoundError, NotADirectoryError):
            beat_at = 0.0
        return NodeReport(read_events(self.attempt, node_source(node_rank)), beat_at)

    def phase_status(self, node_rank: int, phase: Phase) -> Optional[int]:
        """How the phase last ended on that node; None when it is not done."""
        status: Optional[int] = None
        for event in read_events(self.attempt, node_source(node_rank)):
            if event.kind is EventKind.PHASE and event.fields.get("phase") == phase.value:
                found = event.fields.get("exit")
                status = found if event.fields.get("status") == "ended" and isinstance(found, int) else None
        return status

    def ended_of_themselves(self) -> Dict[int, int]:
        """Return the status of every learner that ended without a request, in this run or an earlier one.

        Such a learner is done or has failed; one that was asked for a checkpoint continues from it in a new run.
        """
        return {n: learner_status(event) for n, event in last_endings(self.events()).items() if ended_of_itself(event)}

    def all_learners_ended(self) -> bool:
        """Whether no learner of the job is left."""
        return len(last_endings(self.events())) >= self.launch.learners

    def all_learners_started(self) -> bool:
        """Whether each learner of the job was started, in this run or an earlier one."""
        found = {event.fields.get("learner_id") for event in self.events() if event.kind is EventKind.LEARNER_STARTED}
        return len(found) >= self.launch.learners
