"""What bounds an attempt: times, the lead before its time limit, and logs. Runs on Python 3.9."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import Optional


class LeadFrom(str, Enum):
    """What decided how long before the time limit the learners are warned."""

    UNKNOWN = ""
    MANIFEST = "manifest"
    MEASURED = "measured"
    """How long answers took in earlier attempts of this job."""
    DEFAULT = "default"
    """The grace period and the time for storing."""
    TIME_LIMIT = "time limit"
    """Half of it, because it would be more by any of the others."""


@dataclass(frozen=True)
class Lead:
    """How long before the time limit the learners are warned (None = nobody warns them), and what decided it."""

    seconds: Optional[int] = None
    origin: LeadFrom = LeadFrom.UNKNOWN


@dataclass(frozen=True)
class Limits:
    """Seconds. `time_s` is enforced by the head only where no scheduler does it (None = somebody else does).

    `lead_s` is how long before the time limit the warning comes (None = nobody warns), `lead_from` what decided that,
    and `store_s` what storing needs of it. A node controller that was not heard of for `fence_s` has killed its
    learners. What learners write goes to stores each `upload_s` while they run. A learner that gives no sign of life
    for `hang_s` may hang (0 = nobody looks).
    """

    grace_s: int = 60
    kill_wait_s: int = 30
    time_s: Optional[int] = None
    lead_s: Optional[int] = None
    lead_from: LeadFrom = LeadFrom.UNKNOWN
    store_s: int = 10
    heartbeat_s: float = 10.0
    fence_s: float = 120.0
    upload_s: float = 30.0
    hang_s: float = 0.0


LEAD_MARGIN = 1.5
"""The next checkpoint may take half as much again as the slowest so far: models grow, file systems have bad days."""


def needed_lead_s(took_s: float, store_s: int = Limits.store_s) -> int:
    """The lead that a checkpoint needs which took `took_s` from the request to the learners' end."""
    return math.ceil(LEAD_MARGIN * took_s) + store_s


@dataclass(frozen=True)
class LogLimits:
    """What one learner's log may take: `files` of `file_bytes` each, and `bytes_per_s` after the first `file_bytes`."""

    file_bytes: int = 64 * 1024**2
    files: int = 4
    bytes_per_s: int = 1024**2
