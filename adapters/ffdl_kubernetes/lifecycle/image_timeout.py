"""How long pods wait for an image that they cannot have."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from ffdl_batch.attempt.layout import AttemptDir
from ffdl_batch.attempt.reader import MAX_EVENT_BYTES, find_text
from ffdl_batch.domain.launch.launch_file import decode
from ffdl_batch.domain.launch.limits import Limits
from ffdl_batch.domain.launch.placeholders import LaunchFileError
from ffdl_kubernetes.observing.job_states import missing_image, started

Plain = Mapping[str, Any]
SHARE = 0.8
"""Of the time that a job has until its controller asks for a checkpoint: a learner that never began is to be told as
that, and not as one that met its time limit."""


def lacks_image(pods: Sequence[Plain], attempt: AttemptDir, patience_s: float) -> str:
    """Why its pods will not start any more ("" = they may): the patience with the registry is over, or nearly all of
    the job's own time."""
    lacking = missing_image(pods)
    if lacking is None:
        return ""
    since, why = lacking
    ends = [since + patience_s]
    began, limits = started(pods), _limits(attempt)
    if began is not None and limits.time_s is not None:
        ends.append(began + SHARE * (limits.time_s - _lead_s(limits, limits.time_s)))
    return why if time.time() >= min(ends) else ""


def _lead_s(limits: Limits, time_s: int) -> int:
    """As controllers have it."""
    return min(limits.grace_s if limits.lead_s is None else limits.lead_s, time_s // 2)


def _limits(attempt: AttemptDir) -> Limits:
    """None that is known, where the launch file cannot be read."""
    try:
        return decode(find_text(attempt.launch, MAX_EVENT_BYTES)).limits
    except (OSError, LaunchFileError):
        return Limits()
