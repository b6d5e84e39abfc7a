"""Decide at the end of an attempt which uploads are left to others, and remove secrets that nothing needs any more."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from typing import Callable, List

from ffdl_batch.attempt.conclusion import may_run_again
from ffdl_batch.attempt.layout import AttemptDir, JobDir
from ffdl_batch.domain.launch.launch_file import LaunchFile
from ffdl_batch.domain.outcome.controller_events import Event, EventKind, FinalRecord, GoesOn, Outcome


def learners_not_stored(events: List[Event]) -> List[int]:
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
    return replace(final, stores_later=bool(learners_not_stored(events())))


def forget_template(launch: LaunchFile, final: FinalRecord) -> None:
    """Before the last word is written, by which the platform may write a new one: that of the next attempt, where no
    head makes one from it."""
    if final.goes_on in (GoesOn.NO, GoesOn.PLATFORM) and not may_run_again(final):
        remove(JobDir(launch.job_dir).template)


def forget_attempt(launch: LaunchFile, final: FinalRecord) -> None:
    """After it: this attempt's own, where everything is stored and it is not started anew."""
    if final.stored and not may_run_again(final):
        remove(AttemptDir(launch.attempt_dir))


def remove(attempt: AttemptDir) -> None:
    """The file, where there is one; what cannot be removed now is the platform's to remove."""
    try:
        os.unlink(attempt.secrets)
    except FileNotFoundError:
        return
    except OSError as error:
        sys.stderr.write(f"ffdl-controller: {error}\n")
