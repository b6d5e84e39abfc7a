"""Limits of an attempt: times, the lead before its time limit, and logs. Runs on Python 3.9."""

from __future__ import annotations

import math
from enum import Enum
from typing import Optional

from ffdl_batch.host.fast_dataclass import dataclass


class LeadFrom(str, Enum):
    """What decided how long before the time limit the learners are warned."""

    UNKNOWN = ""
    MANIFEST = "manifest"
    MEASURED = "measured"
    """How long checkpoints took in earlier attempts of this job."""
    DEFAULT = "default"
    """The grace period and the time for storing."""
    TIME_LIMIT = "time limit"
    """Half of the time limit, because the other values are longer."""


@dataclass(frozen=True)
class Lead:
    """How long before the time limit the learners are warned (None = they are not), and what decided it."""

    seconds: Optional[int] = None
    origin: LeadFrom = LeadFrom.UNKNOWN


@dataclass(frozen=True)
class IdleLimit:
    """When a job is ended because all GPUs of a node are idle."""

    below: float
    """A GPU that is busy for a smaller share of the time, from 0 to 1, is idle."""
    for_s: int
    """Seconds for which all of them must be idle."""


@dataclass(frozen=True)
class Limits:
    """Limits of an attempt, in seconds."""

    grace_s: int = 60
    kill_wait_s: int = 30
    time_s: Optional[int] = None
    """Time limit that the head enforces because no scheduler does; None = the scheduler does."""
    lead_s: Optional[int] = None
    """How long before the time limit the learners are warned; None = they are not."""
    lead_from: LeadFrom = LeadFrom.UNKNOWN
    store_s: int = 10
    """The part of `lead_s` that storing needs."""
    heartbeat_s: float = 10.0
    fence_s: float = 120.0
    """A node controller that the head has not seen for so long has killed its learners."""
    upload_s: float = 30.0
    """Interval at which what learners write is uploaded while they run."""
    hang_s: float = 0.0
    """A learner without a sign of life for so long may hang; 0 = this is not checked."""
    idle: Optional[IdleLimit] = None
    """None = jobs with idle GPUs are not ended."""


LEAD_MARGIN = 1.5
"""The next checkpoint may take half as long again as the slowest so far: models grow, and file systems vary."""


def needed_lead_s(took_s: float, store_s: int = Limits.store_s) -> int:
    """Return the lead for a checkpoint that took `took_s` from the request to the learners' end."""
    return math.ceil(LEAD_MARGIN * took_s) + store_s


@dataclass(frozen=True)
class LogLimits:
    """Limits of one learner's log."""

    file_bytes: int = 64 * 1024**2
    files: int = 4
    bytes_per_s: int = 1024**2
    """Rate that is accepted after the first `file_bytes`."""
