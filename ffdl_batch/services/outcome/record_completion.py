"""What an attempt that is over left beside its events: ends that no controller saw, and that what it owed is stored."""

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
from ffdl_batch.domain.outcome.continuation import Interruption
from ffdl_batch.domain.outcome.controller_events import HEAD, Event, FinalRecord, is_time, node_source
from ffdl_batch.domain.outcome.facts import Evidence, Known
from ffdl_batch.services.outcome.attempt_records import read_launch

_OF_LEARNERS = frozenset({"C201", "C202"})


def with_leftovers(attempt: AttemptDir, evidence: Evidence, known: Known) -> Evidence:
    """The evidence with those. Raises OSError, NewerFormat among them."""
    launch = read_launch(attempt)
    final = evidence.final and as_all_report(evidence.final, launch, evidence.events)
    final = final and _with_last_lines(final, attempt, launch, evidence.events)
    printed = () if known.began else _last_printed(attempt)
    evidence = replace(evidence, final=final, storable=_is_storable(launch), printed=printed)
    paid = uploaded_at(attempt)
    if known.final is not None:  # the head has said how each of its learners ended
        return replace(evidence, uploaded_at=paid)
    phases = PhaseFiles(attempt.state)
    found = unreported_ends(evidence.events, phases, range(1, known.learners + 1))
    ends = [at for number in found if (at := phases.ended_at(number)) is not None]
    return replace(evidence, uploaded_at=paid, found=found, found_at=max(ends, default=None))


def _last_printed(attempt: AttemptDir) -> tuple[str, ...]:
    """The last lines of the batch log; that it is damaged, if it is."""
    try:
        return tail(attempt.batch_log)
    except DamagedFile as error:
        return (str(error),)


def others_know_more(final: FinalRecord) -> bool:
    """Whether a head that does not see what other nodes write may lack something: it was ended by the platform, for a
    learner had failed elsewhere, or it knows no last line of one that did."""
    silent = final.error_code in _OF_LEARNERS and not final.log_tail
    return final.interruption == Interruption.PREEMPTION.value or silent


def as_all_report(final: FinalRecord, launch: LaunchFile | None, events: Sequence[Event]) -> FinalRecord:
    """Return the head's record as it would have been if its pod had not been ended before it heard how the learners of
    the other pods ended: that one failed, or that all saved a checkpoint. `events`: of all controllers."""
    if launch is None or not launch.apart or launch.nodes == 1 or final.error_code in _OF_LEARNERS:
        return final
    told = [event for event in events if event.source != HEAD]
    if any(not has_ended([one for one in told if one.source == node_source(rank)]) for rank in range(launch.nodes)):
        return final
    found = conclude(launch, told, terminated=False)
    if found.error_code not in _OF_LEARNERS and not found.interruption:
        return final
    return replace(
        final, outcome=found.outcome, stored=found.stored, exit_code=found.exit_code, exit_signal=found.exit_signal,
        error_code=found.error_code, message=found.message, interruption=found.interruption,
        checkpoint=found.checkpoint,
    )  # fmt: skip


def _with_last_lines(
    final: FinalRecord, attempt: AttemptDir, launch: LaunchFile | None, events: Sequence[Event]
) -> FinalRecord:
    """With those of the learner that failed, where it was in another pod than the head, which has no log of it."""
    if launch is None or not launch.apart or final.log_tail or final.error_code not in _OF_LEARNERS:
        return final
    learner = conclude(launch, [event for event in events if event.source != HEAD], terminated=False).learner_id
    return replace(final, log_tail=tail(attempt.training_log(learner))) if learner else final


def is_storable(attempt: AttemptDir) -> bool:
    """Of an attempt that has ended: not of pods, where each had a tree of its own, which is gone with it, or where all
    stays in the claim's. Raises OSError."""
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
