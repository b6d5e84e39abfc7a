"""One thing that went wrong with one attempt: its kind, its origin, and the evidence.

An abnormal end of an attempt is one incident. So is a fault that ends nothing but costs as much: a learner that hangs,
or one that makes all others wait. `docs/faults.md` has the kinds with their cures.
"""

from __future__ import annotations

from enum import StrEnum

from ffdl_batch.host.fast_dataclass import dataclass

LINES = 20
"""Maximum number of lines of evidence of an incident."""
LINE_CHARS = 400
"""Maximum length of each of them."""
MOST_IN_REQUEST = 10
"""Incidents that a daemon reports to the site's hub in one request."""


class Origin(StrEnum):
    """Where a fault comes from. The error code, not the origin, decides which retry budget is charged."""

    USER = "user"
    DATA = "data"
    SCHEDULER = "scheduler"
    NODE = "node"
    CONTAINER = "container"
    PLATFORM = "platform"


@dataclass(frozen=True, slots=True)
class IncidentKind:
    """A kind of incidents."""

    name: str
    """``origin.word``."""
    title: str
    cure: str
    weight: float = 0.0
    """What one incident adds to the score of its node; 0 = it is not the node's fault."""

    @property
    def origin(self) -> Origin:
        """Where such a fault comes from."""
        return Origin(self.name.partition(".")[0])


@dataclass(frozen=True, slots=True)
class Evidence:
    """A line that supports the kind."""

    source: str
    """Who wrote it: ``scheduler``, ``learner-2``, ``health``, ``controller``."""
    text: str
    at: float | None = None
    """Seconds since the epoch; None = the source has no time."""


@dataclass(frozen=True, slots=True)
class Incident:
    """One incident of an attempt."""

    job_id: str
    attempt: int
    episode: str
    """Distinguishes incidents of one attempt: ``end-0`` (the end of its run after no requeue), ``hang-2``... A second
    incident with the same job, attempt and episode is the first one."""
    kind: str
    at: float
    """When it happened, in seconds since the epoch."""
    code: str = "000"
    """Error code of the job; ``000`` = it ended nothing."""
    message: str = ""
    nodes: tuple[str, ...] = ()
    """Nodes that were involved; if the node is the origin, the nodes at fault."""
    learner: int = 0
    """From 1; 0 = none in particular."""
    evidence: tuple[Evidence, ...] = ()
    lost_gpu_s: float = 0.0
    """GPU-seconds of work after the last checkpoint, which is lost."""

    @property
    def origin(self) -> Origin:
        """Where the fault comes from; the platform, if the kind is of a newer release."""
        word = self.kind.partition(".")[0]
        return Origin(word) if word in Origin.__members__.values() else Origin.PLATFORM


@dataclass(frozen=True, slots=True)
class EvidenceRow:
    """A line of evidence in a report."""

    source: str
    """Who wrote it."""
    text: str
    at: float | None = None
    """None = not known."""


@dataclass(frozen=True, slots=True)
class IncidentRow:
    """One incident in a report or in ``ffdl show``, with its job's name and owner. Times are seconds since the
    epoch."""

    job: str
    attempt: int
    episode: str
    kind: str
    origin: str
    title: str
    cure: str
    at: float
    """When it happened."""
    noticed_at: float
    """When it was recorded."""
    code: str
    message: str
    name: str = ""
    user: str = ""
    nodes: tuple[str, ...] = ()
    learner: int = 0
    lost_gpu_hours: float = 0.0
    """Work after the last checkpoint."""
    evidence: tuple[EvidenceRow, ...] = ()

    @property
    def key(self) -> str:
        """Unique among all incidents."""
        return f"{self.job}/{self.attempt}/{self.episode}"
