"""Read and complete the final record of an attempt, and remove secrets that no process needs any more."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from typing import Callable, List, Optional

from ffdl_batch.attempt.conclusion import may_run_again
from ffdl_batch.attempt.layout import AttemptDir, JobDir
from ffdl_batch.attempt.reader import find_object
from ffdl_batch.domain.launch.launch_file import LaunchFile
from ffdl_batch.domain.outcome.controller_events import (
    Event,
    EventKind,
    FinalRecord,
    GoesOn,
    Outcome,
    decode_final,
)


def read_final(attempt: AttemptDir) -> Optional[FinalRecord]:
    """Return the final record of an earlier run; None if it is missing or damaged. Raises OSError, also NewerFormat."""
    body = find_object(attempt.final, below=attempt.path)
    try:
        return decode_final(body) if body else None
    except ValueError:
        return None


def learners_not_stored(events: List[Event]) -> List[int]:
    """Return the learners that were started and whose results and logs were not stored since."""
    missing = set()
    for event in events:
        learner = event.fields.get("learner_id")
        if isinstance(learner, int) and event.kind in (EventKind.LEARNER_STARTED, EventKind.LEARNER_ENDED):
            missing.add(learner)
        elif isinstance(learner, int) and event.kind is EventKind.STORED:
            missing.discard(learner)
    return sorted(missing)


def left_to_others(launch: LaunchFile, final: FinalRecord, events: Callable[[], List[Event]]) -> FinalRecord:
    """Return the record, marked if the daemon must store the results because this node reaches no store.

    A cancelled attempt, or one that may run again, has no pending upload. Raises what `events` raises.
    """
    if not launch.cut_off or not launch.uploads or final.outcome is Outcome.CANCELLED or may_run_again(final):
        return final
    return replace(final, stores_later=bool(learners_not_stored(events())))


def forget_template(launch: LaunchFile, final: FinalRecord) -> None:
    """Remove the secrets of the next attempt's template, unless a head makes the next attempt from it.

    Call this before the final record is written: then the daemon may write a new template.
    """
    if final.goes_on in (GoesOn.NO, GoesOn.PLATFORM) and not may_run_again(final):
        remove_secrets(JobDir(launch.job_dir).template)


def forget_attempt(launch: LaunchFile, final: FinalRecord) -> None:
    """Remove the attempt's secrets if everything is stored and it cannot run again, after the record is written."""
    if final.stored and not may_run_again(final):
        remove_secrets(AttemptDir(launch.attempt_dir))


def remove_secrets(attempt: AttemptDir) -> None:
    """Remove the file with secrets. If that fails, the daemon removes it later."""
    try:
        os.unlink(attempt.secrets)
    except FileNotFoundError:
        return
    except OSError as error:
        sys.stderr.write(f"ffdl-controller: {error}\n")
