"""What an attempt owes to its stores, by its events, and who stores it. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import Callable, List

from ffdl_batch.attempt.conclusion import may_run_again
from ffdl_batch.domain.launch.launch_file import LaunchFile
from ffdl_batch.domain.outcome.controller_events import Event, EventKind, FinalRecord, Outcome


def learners_owed(events: List[Event]) -> List[int]:
    """Learners that were started and not stored since."""
    owed = set()
    for event in events:
        learner = event.fields.get("learner_id")
        if isinstance(learner, int) and event.kind in (EventKind.LEARNER_STARTED, EventKind.LEARNER_ENDED):
            owed.add(learner)
        elif isinstance(learner, int) and event.kind is EventKind.STORED:
            owed.discard(learner)
    return sorted(owed)


def left_to_others(launch: LaunchFile, final: FinalRecord, events: Callable[[], List[Event]]) -> FinalRecord:
    """The record, which says so where stores are not reached from here and something is to go there. What may run
    again, or was ended from outside, waits for nobody. Raises what `events` raises."""
    if not launch.cut_off or not launch.uploads or final.outcome is Outcome.CANCELLED or may_run_again(final):
        return final
    return replace(final, stores_later=bool(learners_owed(events())))
