"""What controllers report: append-only event files and the head's final record. Runs on Python 3.9.

Each controller writes one file ``events/<source>.jsonl``, one JSON object a line, with a sequence number from 1.
A torn last line is ignored by readers; a writer that restarts continues after the last whole line.
"""

from __future__ import annotations

import json
from dataclasses import field
from enum import Enum
from typing import TYPE_CHECKING, Dict, Iterable, List, Mapping, Optional, Set, Tuple, Union

from ffdl_batch.domain.codec import from_plain
from ffdl_batch.domain.file_format import FORMAT, require_known
from ffdl_batch.domain.outcome.continuation import UNFIT_NODE, Checkpoint, Spent
from ffdl_batch.domain.untrusted_json import parse_json
from ffdl_batch.host.fast_dataclass import dataclass

if TYPE_CHECKING:
    from typing import TypeGuard  # Python 3.10

Scalar = Union[str, int, float, bool, None]
HEAD = "head"
NOT_KEPT = "results: "
"""How warnings of a job begin that are about events of this name."""
LATEST_S = 1e11
"""Times of events must be between the epoch and this time (in the year 5138)."""
_WHOLE = ("learner_id", "pid", "start_ticks", "exit_code", "signal")
"""Fields of events that hold whole numbers."""
MAX_EVENTS = 50_000
"""Maximum number of lines that are read from one file. An attempt has some hundreds of events."""
MAX_SIGNAL = 64
"""The largest signal number of Linux."""
HALT, WARNED, TIME, TERM = "halt", "warned", "time", "term"
"""Reasons of checkpoint requests."""
LIMITS = (WARNED, TIME)
"""Reasons that mean: the allocation is about to end."""
IDLE_GPUS = "idle"
"""The reason of a checkpoint request because of ``batch.idle``. The job fails."""
RELEASED = "released"
"""`ended_by` of a learner that left because its node will be released. The attempt continues without it."""
LOST_NODE = UNFIT_NODE | {"S110"}
"""Error codes of attempts that lost a node or got one that is not fit for the job."""
LOST_CONTROLLER = LOST_NODE | {"S106"}
"""These, and the code of attempts that lost a controller."""


def node_source(node_rank: int) -> str:
    """The name under which node controller `node_rank` (from 0) writes."""
    return f"node-{node_rank}"


class EventKind(str, Enum):
    """What an event says. Fields in brackets."""

    CLAIMED = "claimed"
    """The head executes this attempt [native_id, host, restart]."""
    STARTED = "started"
    """A controller runs [host, pid, boot_id, start_ticks, run (a node controller's run of the attempt, from 1)]."""
    READY = "ready"
    """Nothing stands in the way of this node's learners; they start when all nodes have said so
    [host, address, run]."""
    DEVICES = "devices"
    """What the learners of this node are given [host, vendor, gpus (as the scheduler names them), files (device files
    that they can open), message ("" = none but those that were allocated)]."""
    DATA = "data"
    """How learners of this node have the data of a store [fetch (its place among the launch file's), how = mounted |
    staged, message (what is mounted, or why it is not)]."""
    PHASE = "phase"
    """[phase, status = started | ended, exit]: load-model, load-data, learner, store-results, store-logs."""
    LEARNER_STARTED = "learner_started"
    """[learner_id, pid, host, boot_id, start_ticks, service (true where it is one)]"""
    NETWORK = "network"
    """The network that the learners of this node have [level, mechanism, seen (whether a learner was found in it; one
    that ends at once may not have been looked at)]."""
    LEARNER_ENDED = "learner_ended"
    """[learner_id, exit_code | signal, out_of_memory, began (the user's command was reached), detail,
    ended_by (why the controller ended it: "" = it ended itself, else stop, term, halt, warned, time, fence, service =
    a service that was no longer needed, released = its node is to be released), asked (the reason for which it had been
    asked for a checkpoint: "" = it had not, else halt, warned, term, time), signalled (somebody in it caught the
    checkpoint signal), code (a fault code where the learner could not be run), service (true where it is one),
    restarted (true where it is started again: this was not its last end), waited (true where it was to be started again
    when all were ended)]"""
    METRICS = "metrics"
    """What keeps metrics of a learner from being collected, or some of them [learner_id, message]."""
    HANG = "hang"
    """A learner gives no sign of life [learner_id, host, silent_s, idle (it computes nothing either), stack (the end of
    its stacks), file (where they are as a whole, in its $LOG_DIR; "" = nowhere)]."""
    IDLE = "idle"
    """The GPUs of this node are idle, and the job will end because of it [host, message, since and ends_at (seconds
    since the epoch)], or they are used again [host, message = ""]."""
    PACE = "pace"
    """How fast a learner is, when that is known first, and when it changed [learner_id, host, step_s (median)]."""
    HEALTH = "health"
    """What root's program of the site found on this node [lines: a JSON value each, as the program wrote it down, with
    `at` (seconds since the epoch), `kind`, `device` ("" = the node) and `text`]."""
    NOT_KEPT = "not_kept"
    """What is not stored, or not as it is: links that lead out of the results, pipes, sockets, devices [message]."""
    STORED = "stored"
    """Everything of this learner is where it belongs [learner_id]."""
    FAULT = "fault"
    """[code, message, class (where data could not be moved, why: a value of
    :class:`~ffdl_batch.domain.data.staging_protocol.FaultClass`, else "")]"""
    ASKED = "asked"
    """The learners of this node are asked for a checkpoint [reason = halt | warned | term | time | idle,
    message (why, for idle)]."""
    CHECKPOINT = "checkpoint"
    """What the learners of this node did about checkpoints, once all of them have ended [asked, confirmed, answered,
    took_s, saved_at, newest]: the fields of :class:`~ffdl_batch.domain.outcome.continuation.Checkpoint`."""
    WAITING = "waiting"
    """What the head waits for before it starts the learners [message: "" = nothing any more]."""
    CONTINUED = "continued"
    """The head arranged another attempt or run [attempt, by = successor | requeue | platform, message]."""
    ENDED = "ended"
    """The controller is through and none of its learners lives: a newer attempt need not wait for it."""
    FINAL = "final"
    """The head's final record was written [outcome]."""


class Phase(str, Enum):
    """The phases of a node controller; the names are FfDL's."""

    LOAD_MODEL = "load-model"
    LOAD_DATA = "load-data"
    LEARNER = "learner"
    STORE_RESULTS = "store-results"
    STORE_LOGS = "store-logs"


@dataclass(frozen=True)
class Event:
    """One line of an event file. `at` is seconds since the epoch by the writer's clock."""

    seq: int
    at: float
    source: str
    kind: EventKind
    fields: Mapping[str, Scalar] = field(default_factory=dict)

    @property
    def machine(self) -> str:
        """Of a controller that has begun: the name of the machine that it is on. A pod's host has another name."""
        return str(self.fields.get("machine") or self.fields.get("host") or "")

    @property
    def node(self) -> str:
        """The name that schedulers use: the host without its domain, unless the controller was given a name."""
        return str(self.fields.get("machine") or "") or str(self.fields.get("host") or "").partition(".")[0]


class Outcome(str, Enum):
    """How an attempt ended, according to its head controller."""

    COMPLETED = "completed"
    FAILED = "failed"
    HALTED = "halted"
    CANCELLED = "cancelled"
    TIMED_OUT = "timed_out"


class GoesOn(str, Enum):
    """What the head arranged after an attempt."""

    NO = ""
    SUCCESSOR = "successor"
    """The next attempt's files are written and its submission was begun by the head."""
    REQUEUE = "requeue"
    """The scheduler was asked to start this attempt again."""
    PLATFORM = "platform"
    """The head could not; the platform should."""


@dataclass(frozen=True)
class AbandonMark:
    """The mark of an attempt that the daemon abandoned. Times are of the file system's clock."""

    run: int
    """The run of the attempt."""
    nodes: Tuple[str, ...] = ()
    """The nodes whose controllers gave no sign of life."""
    since: float = 0.0
    """Time of the last sign of life."""
    at: float = 0.0
    """When the mark was made."""


@dataclass(frozen=True)
class FinalRecord:
    """``final.json``: how an attempt ended."""

    native_id: str
    outcome: Outcome
    at: float
    stored: bool
    """Whether the results and logs of every learner are in their stores."""
    exit_code: Optional[int] = None
    exit_signal: Optional[int] = None
    error_code: str = "000"
    message: str = ""
    log_tail: Tuple[str, ...] = ()
    restart: int = 0
    interruption: str = ""
    """An :class:`~ffdl_batch.domain.outcome.continuation.Interruption` as the head knows it; "" = none."""
    simulated: bool = False
    """Whether a drill simulated the interruption."""
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    goes_on: GoesOn = GoesOn.NO
    spent: Optional[Spent] = None
    """What all attempts have used of the retry budgets, if the head decided about a continuation."""
    gpu_seconds: float = 0.0
    """GPU seconds of this run."""
    stores_later: bool = False
    """Whether only the upload is left. The attempt has ended when ``uploaded.json`` exists."""
    format: int = FORMAT


def released_learners(events: Iterable[Event]) -> Set[int]:
    """Return the numbers of the learners that left the attempt because their nodes will be released."""
    found: Set[int] = set()
    for event in events:
        learner = event.fields.get("learner_id")
        if isinstance(learner, int) and event.kind in (EventKind.LEARNER_STARTED, EventKind.LEARNER_ENDED):
            found.discard(learner)
            if event.fields.get("ended_by") == RELEASED:
                found.add(learner)
    return found


def is_final(final: FinalRecord) -> bool:
    """Return whether a run that the scheduler starts after this record has nothing left to do.

    An end that the attempt reached by itself (success, failure, halt, time limit) stays. An attempt continues if it was
    ended from outside, lost a controller, or asked to be started again.
    """
    if final.goes_on is GoesOn.REQUEUE:
        return False
    return final.outcome is not Outcome.CANCELLED and final.error_code not in LOST_CONTROLLER


def encode_event(event: Event) -> str:
    """One line, newline included."""
    body: Dict[str, Scalar] = {"seq": event.seq, "at": event.at, "source": event.source, "kind": event.kind.value}
    body["format"] = FORMAT
    body.update({f"x_{key}": value for key, value in event.fields.items()})
    return json.dumps(body, separators=(",", ":"), ensure_ascii=True) + "\n"


def decode_events(text: str) -> List[Event]:
    """The events of one file in order.

    Ignored: a last line without newline (torn), lines that are no event, kinds of a newer release, a
    sequence number that was seen before (a writer that retried), and lines after MAX_EVENTS. Raises
    :class:`~ffdl_batch.domain.file_format.NewerFormat` for a line in a format that this release does not know.
    """
    events: List[Event] = []
    last = 0
    for line in text.split("\n", MAX_EVENTS)[:-1]:
        event = _decode_line(line)
        if event is not None and event.seq > last:
            last = event.seq
            events.append(event)
    return events


def _decode_line(line: str) -> Optional[Event]:
    try:
        body = parse_json(line)
    except ValueError:
        return None
    if not isinstance(body, dict) or "seq" not in body:
        return None
    require_known(body, "an event")
    try:
        kind = EventKind(body["kind"])
        seq, at, source = body["seq"], body["at"], body["source"]
    except (ValueError, KeyError, TypeError):
        return None
    if not isinstance(seq, int) or not isinstance(source, str) or not is_time(at):
        return None
    fields = {key[2:]: value for key, value in body.items() if key.startswith("x_")}
    if any(isinstance(value, (list, dict)) for value in fields.values()):
        return None
    if not all(isinstance(fields.get(name, 0), (int, type(None))) for name in _WHOLE):
        return None
    return Event(seq, float(at), source, kind, fields)


def is_time(value: object) -> TypeGuard[float]:
    """Return whether `value` can be the time of an event, in seconds since the epoch."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= LATEST_S


def decode_final(body: Mapping[str, object]) -> FinalRecord:
    """Return the record in the JSON object of ``final.json``.

    Raises NewerFormat, and ValueError for a value of the wrong type or out of range.
    """
    require_known(body, "final.json")
    record = from_plain(FinalRecord, body)
    times = [record.at, *(at for at in (record.checkpoint.saved_at, record.checkpoint.took_s) if at is not None)]
    if not all(map(is_time, times)):
        raise ValueError("a time is out of range")
    if not 0 <= (record.exit_code or 0) <= 255 or not 0 <= (record.exit_signal or 0) <= MAX_SIGNAL:
        raise ValueError("an exit status is out of range")
    if record.restart < 0 or record.gpu_seconds < 0:
        raise ValueError("a count is negative")
    return record


def merge(files: Iterable[List[Event]]) -> List[Event]:
    """Events of several writers in the order of their clocks; ties by source and number.

    Those of one writer stay in the order in which it wrote them, also where its clock was set back meanwhile.
    """
    placed: List[Tuple[float, Event]] = []
    for events in files:
        latest = float("-inf")
        for event in events:
            latest = max(latest, event.at)
            placed.append((latest, event))
    return [event for _, event in sorted(placed, key=lambda one: (one[0], one[1].source, one[1].seq))]
