"""How learners ended and answered a checkpoint request, according to the event files of all nodes. Pure."""

from __future__ import annotations

from dataclasses import field, replace
from typing import Dict, Iterable, List, Optional, Sequence, Set, Tuple

from ffdl_batch.attempt.phase_files import PhaseFiles
from ffdl_batch.domain.launch.launch_file import LaunchFile
from ffdl_batch.domain.outcome.continuation import UNFIT_NODE, Checkpoint
from ffdl_batch.domain.outcome.controller_events import (
    HALT,
    IDLE_GPUS,
    TERM,
    TIME,
    WARNED,
    Event,
    EventKind,
    Scalar,
    node_source,
    released_learners,
)
from ffdl_batch.host.fast_dataclass import dataclass


@dataclass(frozen=True)
class Answer:
    """The learners' answer to a checkpoint request. Services do not count, since they need not answer."""

    reason: str = ""
    """Why the learners were asked; "" if they were not."""
    why: str = "GPUs were idle (batch.idle)"
    """The text of a request because of idle GPUs."""
    asked_at: Optional[float] = None
    """When, by the clock of the node that asked first."""
    fresh: bool = False
    """Whether a file of the checkpoint directory changed after that."""
    signalled: bool = False
    """Whether a process of a learner caught the checkpoint signal."""
    reacted: bool = False
    """Whether a learner ended by itself after it was asked."""
    checkpoint: Checkpoint = field(default_factory=Checkpoint)


def staying(launch: LaunchFile, events: Sequence[Event]) -> Tuple[LaunchFile, List[Event]]:
    """Return the launch file without the learners that have left, and the events without those of their nodes.

    The learners with the highest numbers leave, and always all learners of a node.
    """
    released = released_learners(events)
    if not released:
        return launch, list(events)
    learners = max(1, min(released) - 1)
    nodes = launch.seat_of(learners).node + 1
    gone = {node_source(rank) for rank in range(nodes, launch.nodes)}
    return replace(launch, learners=learners, nodes=nodes), [e for e in events if e.source not in gone]


def endings_of_run(events: Sequence[Event]) -> Dict[int, Event]:
    """Return the endings that count for this run, by learner.

    The ending of a learner before its node controller last started counts if the learner ended by itself, unasked: it
    is done or has failed. If it was asked or ended, or its node was unfit, it starts again in this run.
    """
    starts = _last_positions(events, EventKind.STARTED)
    positions = {id(event): at for at, event in enumerate(events)}
    found = {}
    for learner, event in last_endings(list(events)).items():
        earlier = positions[id(event)] < starts.get(event.source, -1)
        if not earlier or ended_of_itself(event):
            found[learner] = event
    return found


def answer(launch: LaunchFile, events: Sequence[Event]) -> Answer:
    """Return the answer of this run, from the events of all node controllers in order."""
    endings = {n: e for n, e in endings_of_run(events).items() if not launch.seat_of(n).service}
    requests = since_start(events, EventKind.ASKED)
    reports = since_start(events, EventKind.CHECKPOINT)
    reasons = {str(e.fields.get("asked")) for e in endings.values() if e.fields.get("asked")}
    reasons |= {str(e.fields.get("reason")) for e in requests}
    by_themselves = [e for e in endings.values() if not e.fields.get("ended_by")]
    all_by_themselves = len(by_themselves) == len(launch.trainees)
    # Each node looked after its own learners had ended, so only a later node saw what was completed later.
    fresh = any(e.fields.get("confirmed") is True for e in reports)
    took = [float(v) for e in reports for v in (e.fields.get("took_s"),) if isinstance(v, (int, float))]
    saved = [e for e in reports if isinstance(e.fields.get("saved_at"), (int, float))]
    newest = max(saved, key=lambda e: float(e.fields["saved_at"] or 0.0)) if saved else None
    missing = _missing(launch, endings, reports) if fresh else ()
    asked = bool(reasons) or any(e.fields.get("asked") for e in reports)
    return Answer(
        reason=_strongest(reasons),
        why=next((str(e.fields["message"]) for e in requests if e.fields.get("message")), Answer.why),
        asked_at=min((e.at for e in requests), default=None),
        fresh=fresh,
        signalled=any(e.fields.get("signalled") for e in endings.values()),
        reacted=any(e.fields.get("asked") for e in by_themselves),
        checkpoint=Checkpoint(
            asked=asked,
            confirmed=fresh and not missing,
            answered=asked and all_by_themselves,
            took_s=max(took) if took else None,
            saved_at=float(newest.fields["saved_at"] or 0.0) if newest else None,
            newest=str(newest.fields.get("newest") or "") if newest else "",
            missing=", ".join(map(str, missing)) if len(missing) < len(_savers(launch)) else "",
        ),
    )


def _savers(launch: LaunchFile) -> Sequence[int]:
    """Return the learners whose answers confirm a checkpoint of the job."""
    return launch.trainees[:1] if launch.checkpoint_saved_by == "first" else launch.trainees


def _missing(launch: LaunchFile, endings: Dict[int, Event], reports: Sequence[Event]) -> List[int]:
    """Return the learners of these that did not end by themselves, or left no new file in a directory of their own.

    In a shared directory, the writer of a file is unknown.
    """
    wrote = {report.source for report in reports if report.fields.get("confirmed") is True}
    own = launch.apart and not (launch.pod is not None and launch.pod.claimed(launch.checkpoints))
    answered = {n for n, event in endings.items() if not event.fields.get("ended_by")}
    if own:
        answered = {n for n in answered if node_source(launch.seat_of(n).node) in wrote}
    return [number for number in _savers(launch) if number not in answered]


def _strongest(reasons: "set[str]") -> str:
    """Return the strongest reason: the owner's halt, then the end of the allocation, TERM from outside, idle GPUs."""
    for reason in (HALT, WARNED, TIME, TERM, IDLE_GPUS):
        if reason in reasons:
            return reason
    return ""


def since_start(events: Sequence[Event], kind: EventKind) -> List[Event]:
    """Return the events of this kind that each source wrote after its controller last started."""
    starts = _last_positions(events, EventKind.STARTED)
    return [e for at, e in enumerate(events) if e.kind is kind and at > starts.get(e.source, -1)]


def _last_positions(events: Sequence[Event], kind: EventKind) -> Dict[str, int]:
    return {event.source: at for at, event in enumerate(events) if event.kind is kind}


def failing(endings: Dict[int, Event]) -> List[Event]:
    """Return the endings of learners that failed by themselves."""
    return [e for e in endings.values() if learner_status(e) != 0 and not e.fields.get("ended_by")]


def learner_status(event: Event) -> int:
    """Return the status of a learner like a shell: 128 + N for a signal, 127 if it could not be started."""
    code, number = event.fields.get("exit_code"), event.fields.get("signal")
    if isinstance(code, int):
        return code
    return 128 + number if isinstance(number, int) else 127


def last_endings(events: List[Event]) -> Dict[int, Event]:
    """Return the ending of each learner that has ended and was not, and will not be, started again."""
    found: Dict[int, Event] = {}
    for event in events:
        learner = event.fields.get("learner_id")
        if not isinstance(learner, int):
            continue
        if event.kind is EventKind.LEARNER_STARTED or event.fields.get("restarted"):
            found.pop(learner, None)
        elif event.kind is EventKind.LEARNER_ENDED:
            found[learner] = event
    return found


def ended_of_itself(event: Event) -> bool:
    """Return whether the learner ended without a request, on a node that was fit for it."""
    fields = event.fields
    return not (fields.get("ended_by") or fields.get("asked") or fields.get("code") in UNFIT_NODE)


def has_ended(events: List[Event]) -> bool:
    """Return whether the controller that started last reported that all its learners have ended."""
    kinds = [e.kind for e in events if e.kind in (EventKind.STARTED, EventKind.ENDED)]
    return bool(kinds) and kinds[-1] is EventKind.ENDED


def unreported_ends(events: Iterable[Event], phases: PhaseFiles, learner_ids: Sequence[int]) -> Dict[int, int]:
    """Return the status of learners whose end no controller reported, as noted by their shells. None may be alive.

    If learners had been asked for a checkpoint, return none: they continue from it when the attempt runs again.
    """
    reported: Set[Scalar] = set()
    asked = False
    for event in events:
        if event.kind is EventKind.LEARNER_STARTED:
            reported.discard(event.fields.get("learner_id"))
            asked = False
        elif event.kind is EventKind.LEARNER_ENDED:
            reported.add(event.fields.get("learner_id"))
        elif event.kind is EventKind.ASKED:
            asked = True
    if asked:
        return {}
    found = {number: phases.ended_status(number) for number in learner_ids if number not in reported}
    return {number: status for number, status in found.items() if status is not None}
