"""Why work was lost: by the incident of the end, else by what else is known of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from ffdl_batch.domain.incidents.incident import Incident
from ffdl_batch.domain.incidents.kinds import kind_of
from ffdl_batch.domain.job_state import JobState
from ffdl_batch.domain.metrics.usage_timeline import AttemptRecord, Loss
from ffdl_batch.domain.outcome.continuation import Interruption
from ffdl_batch.domain.outcome.error_codes import FAULTS, NORMAL
from ffdl_batch.store import UsedJob

_WORDS = {
    Interruption.HALT.value: "halted by its owner",
    Interruption.TIMEOUT.value: "time limit",
    Interruption.PREEMPTION.value: "preempted",
    Interruption.NODE_FAILURE.value: "node or controller failed",
}
_STARTED_ANEW = "started anew by the scheduler"
_ENDS = "end-"
"""How the episodes of incidents begin that ended a run."""


class Causes(Protocol):
    """Who knows the cause of a loss."""

    def cause_of(self, job: UsedJob, record: AttemptRecord | None, loss: Loss) -> str:
        """A few words, the same for the same cause."""
        ...


@dataclass(frozen=True, slots=True)
class OutcomeCauses:
    """By outcome codes and interruptions of attempts."""

    def cause_of(self, job: UsedJob, record: AttemptRecord | None, loss: Loss) -> str:
        """See :class:`Causes`."""
        if loss.end is JobState.CANCELLED:
            return "cancelled by its owner"
        if record is None or (loss.end is JobState.QUEUED and not record.interruption):
            return _STARTED_ANEW
        if record.interruption in _WORDS:
            return _WORDS[record.interruption]
        code = record.outcome_code if record.outcome_code not in ("", NORMAL.code) else job.error_code
        kind = FAULTS.get(code)
        if code == NORMAL.code:
            return _STARTED_ANEW if loss.end is JobState.QUEUED else "ended early"
        return f"{kind.title} ({code})" if kind is not None else code


class IncidentCauses:
    """By the kinds of `incidents`; of ends without one, and of those of before there were any, by their outcomes. Of
    several runs of an attempt, which the scheduler started anew, it is the incident next to the end of the run."""

    def __init__(self, incidents: Iterable[Incident]) -> None:
        self._ends: dict[tuple[str, int], list[tuple[float, str]]] = {}
        self._otherwise = OutcomeCauses()
        for one in incidents:
            if one.episode.startswith(_ENDS):
                self._ends.setdefault((one.job_id, one.attempt), []).append((one.at, one.kind))

    def cause_of(self, job: UsedJob, record: AttemptRecord | None, loss: Loss) -> str:
        """See :class:`Causes`."""
        ends = self._ends.get((job.id, loss.attempt))
        if not ends:
            return self._otherwise.cause_of(job, record, loss)
        kind = kind_of(min(ends, key=lambda end: abs(end[0] - loss.ended))[1])
        return f"{kind.title} ({kind.name})"
