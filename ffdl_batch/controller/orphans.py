"""Processes that a killed controller left on this machine (a scheduler's cgroups end them; a plain host does not)."""

from __future__ import annotations

import signal
import time
from typing import Dict, Iterable, List, Mapping

from ffdl_batch.controller.processes import all_processes, lives_here, send, session_members
from ffdl_batch.domain.events import Event, EventKind, Scalar


def living_controller(events: Iterable[Event]) -> int:
    """The pid of the node controller that wrote these events, where it still lives here; else 0."""
    started = [event for event in events if event.kind is EventKind.STARTED]
    if started and lives_here(started[-1].fields):
        return int(started[-1].fields["pid"] or 0)
    return 0


def living_learners(events: Iterable[Event]) -> List[int]:
    """Main processes of learners that were started, are not reported as ended, and live here."""
    open_: Dict[Scalar, Mapping[str, Scalar]] = {}
    for event in events:
        learner = event.fields.get("learner_id")
        if event.kind is EventKind.LEARNER_STARTED:
            open_[learner] = event.fields
        elif event.kind is EventKind.LEARNER_ENDED:
            open_.pop(learner, None)
    return [int(fields["pid"] or 0) for fields in open_.values() if lives_here(fields)]


def end_learners(events: Iterable[Event]) -> None:
    """Kill such learners and everything in their sessions: nobody can collect how they end."""
    for session in living_learners(events):
        for pid in session_members(session, all_processes()):
            send(pid, signal.SIGKILL)


def end_controller(pid: int, patience_s: float) -> None:
    """TERM to a controller that is no longer wanted, KILL after `patience_s` seconds."""
    send(pid, signal.SIGTERM)
    end = time.monotonic() + patience_s
    while pid in all_processes():
        if time.monotonic() > end:
            send(pid, signal.SIGKILL)
        time.sleep(0.05)
