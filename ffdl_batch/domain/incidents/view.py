"""An incident as reports and ``ffdl show`` have it: with what its kind means, and whose job it befell."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EvidenceRow:
    """A line, who said it, and when (None = not known)."""

    source: str
    text: str
    at: float | None = None


@dataclass(frozen=True, slots=True)
class IncidentRow:
    """One incident, with its job's name and owner. `lost_gpu_hours` is work after the last checkpoint. Times are
    seconds since the epoch: `at` when it happened, `noticed_at` when it was recorded."""

    job: str
    attempt: int
    episode: str
    kind: str
    origin: str
    title: str
    cure: str
    at: float
    noticed_at: float
    code: str
    message: str
    name: str = ""
    user: str = ""
    nodes: tuple[str, ...] = ()
    learner: int = 0
    lost_gpu_hours: float = 0.0
    evidence: tuple[EvidenceRow, ...] = ()

    @property
    def key(self) -> str:
        """What tells it from all others."""
        return f"{self.job}/{self.attempt}/{self.episode}"
