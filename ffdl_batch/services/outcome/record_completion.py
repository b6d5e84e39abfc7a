"""Complete the facts about an ended attempt from the files that it left beside its events."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ffdl_batch.attempt.conclusion import conclude
from ffdl_batch.attempt.layout import AttemptDir
from ffdl_batch.attempt.learner_endings import has_ended, unreported_ends
from ffdl_batch.attempt.log_tail import tail
from ffdl_batch.attempt.phase_files import PhaseFiles
from ffdl_batch.attempt.reader import DamagedFile, read_object
from ffdl_batch.domain.file_format import require_known
from ffdl_batch.domain.launch.launch_file import LaunchFile
from ffdl_batch.domain.outcome.attempt_reports import LEARNER_FAILURES
from ffdl_batch.domain.outcome.continuation import Interruption
from ffdl_batch.domain.outcome.controller_events import HEAD, Event, FinalRecord, is_time, node_source
from ffdl_batch.domain.outcome.facts import AttemptFacts
from ffdl_batch.services.outcome.attempt_records import read_launch


def add_leftovers(attempt: AttemptDir, facts: AttemptFacts) -> AttemptFacts:
    """Return the facts of an ended attempt with the learners' ends that no controller reported, its pending upload, and
    a final record that all controllers' reports complete.

    Raises OSError, NewerFormat among them.
    """
    launch = read_launch(attempt)
    final = facts.final_record and as_all_report(facts.final_record, launch, facts.events)
    final = final and _with_last_lines(final, attempt, launch, facts.events)
    completed = replace(
        facts,
        final_record=final,
        is_storable=_is_storable(launch),
        uploaded_at=uploaded_at(attempt),
        batch_log_tail=() if facts.has_begun else _batch_log_tail(attempt),
    )
    if facts.valid_record is not None:  # it says how each learner ended
        return completed
    phases = PhaseFiles(attempt.state)
    exits = unreported_ends(facts.events, phases, range(1, facts.learners + 1))
    ended = [at for number in exits if (at := phases.ended_at(number)) is not None]
    return replace(completed, unreported_exits=exits, unreported_exit_at=max(ended, default=None))


def _batch_log_tail(attempt: AttemptDir) -> tuple[str, ...]:
    """Return the last lines of the batch log, or an error message if it is damaged."""
    try:
        return tail(attempt.batch_log)
    except DamagedFile as error:
        return (str(error),)


def others_know_more(final: FinalRecord) -> bool:
    """Return whether controllers of other nodes may have reported more than the head controller, which cannot read
    their files: the platform ended it because a learner had failed elsewhere, or it has no log of that learner."""
    lacks_log = final.error_code in LEARNER_FAILURES and not final.log_tail
    return final.interruption == Interruption.PREEMPTION.value or lacks_log


def as_all_report(final: FinalRecord, launch: LaunchFile | None, events: Sequence[Event]) -> FinalRecord:
    """Return the final record as the head controller would have written it with the reports of all pods.

    Its own pod may have been ended before it read that a learner of another pod had failed, or that all had saved a
    checkpoint. `events` are those of all controllers.
    """
    if launch is None or not launch.apart or launch.nodes == 1 or final.error_code in LEARNER_FAILURES:
        return final
    reported = [event for event in events if event.source != HEAD]
    by_node = ([event for event in reported if event.source == node_source(rank)] for rank in range(launch.nodes))
    if not all(map(has_ended, by_node)):
        return final
    found = conclude(launch, reported, terminated=False)
    if found.error_code not in LEARNER_FAILURES and not found.interruption:
        return final
    return replace(
        final, outcome=found.outcome, stored=found.stored, exit_code=found.exit_code, exit_signal=found.exit_signal,
        error_code=found.error_code, message=found.message, interruption=found.interruption,
        checkpoint=found.checkpoint,
    )  # fmt: skip


def _with_last_lines(
    final: FinalRecord, attempt: AttemptDir, launch: LaunchFile | None, events: Sequence[Event]
) -> FinalRecord:
    """Return the record with the last lines of the learner that failed, if it ran in another pod than the head."""
    if launch is None or not launch.apart or final.log_tail or final.error_code not in LEARNER_FAILURES:
        return final
    learner = conclude(launch, [event for event in events if event.source != HEAD], terminated=False).learner_id
    return replace(final, log_tail=tail(attempt.training_log(learner))) if learner else final


def is_storable(attempt: AttemptDir) -> bool:
    """Return whether what an ended attempt left can be stored from outside. That is not so if its pods had separate
    trees, which are gone, or if everything stays on a claim. Raises OSError."""
    return _is_storable(read_launch(attempt))


def _is_storable(launch: LaunchFile | None) -> bool:
    return launch is None or launch.pod is None or (launch.stores_elsewhere and not launch.apart)


def uploaded_at(attempt: AttemptDir) -> float | None:
    """Return when the last pending upload of the attempt was stored; None if uploads are still pending."""
    try:
        changed = Path(attempt.uploaded).lstat().st_mtime
        body = read_object(attempt.uploaded, below=attempt.path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except DamagedFile:
        return changed
    require_known(body, attempt.uploaded)
    at = body.get("at")
    return float(at) if is_time(at) else changed
