"""One thing that went wrong with one attempt: what kind it is, whose it is, and the words that say so.

An abnormal end of an attempt is one incident. So is what ends nothing but costs as much: a learner that hangs, or that
keeps all others waiting. `docs/faults.md` has the kinds with their cures.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

LINES = 20
"""How many lines of evidence an incident keeps at most."""
LINE_CHARS = 400
"""How long each may be."""


class Origin(StrEnum):
    """Where a fault comes from. Not who pays for a retry: that is the error code's."""

    USER = "user"
    DATA = "data"
    SCHEDULER = "scheduler"
    NODE = "node"
    CONTAINER = "container"
    PLATFORM = "platform"


@dataclass(frozen=True, slots=True)
class IncidentKind:
    """`name` is ``origin.word``. `weight` is what one incident adds to the score of its node: 0 = it is not the node's
    fault."""

    name: str
    title: str
    cure: str
    weight: float = 0.0

    @property
    def origin(self) -> Origin:
        """Where such a fault comes from."""
        return Origin(self.name.partition(".")[0])


@dataclass(frozen=True, slots=True)
class Evidence:
    """A line that speaks for the kind, and who said it: ``scheduler``, ``learner-2``, ``health``, ``controller``.

    `at` is in seconds since the epoch, None where the source has no time.
    """

    source: str
    text: str
    at: float | None = None


@dataclass(frozen=True, slots=True)
class Incident:
    """`episode` tells incidents of one attempt apart: ``end-0`` (the end of its run after no requeue), ``hang-2``...
    A second incident of the same job, attempt and episode is the first one.

    `at` is when it happened, in seconds since the epoch; `code` the error code that the job got (``000``: it ended
    nothing); `nodes` those that had a part in it, and of a node's fault the nodes at fault. `learner` counts from 1,
    0 = none in particular. `lost_gpu_s` are GPU-seconds of work after the last checkpoint, which are to be done again.
    """

    job_id: str
    attempt: int
    episode: str
    kind: str
    at: float
    code: str = "000"
    message: str = ""
    nodes: tuple[str, ...] = ()
    learner: int = 0
    evidence: tuple[Evidence, ...] = ()
    lost_gpu_s: float = 0.0

    @property
    def origin(self) -> Origin:
        """Where the fault comes from; a kind of a newer release is the platform's."""
        word = self.kind.partition(".")[0]
        return Origin(word) if word in Origin.__members__.values() else Origin.PLATFORM


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
