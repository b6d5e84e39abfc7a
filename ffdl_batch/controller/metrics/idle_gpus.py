"""Detect that all GPUs of a node are idle for so long that ``batch.idle`` ends the job, and warn before."""

from __future__ import annotations

import os
import time
from typing import Optional

from ffdl_batch.attempt.event_journal import Journal
from ffdl_batch.domain.launch.limits import IdleLimit
from ffdl_batch.domain.metrics.usage import UsageSample
from ffdl_batch.domain.outcome.controller_events import EventKind

WARN_SHARE = 0.5
"""Share of the time after which a warning is written."""


class IdleGpus:
    """Follows the GPU use of one node. Times are of a monotonic clock that stands still while the job is suspended."""

    def __init__(self, limit: Optional[IdleLimit], journal: Journal) -> None:
        self.exceeded = ""
        """Why the job has to end; "" = it need not. Another thread reads this."""
        self._limit, self._journal = limit, journal
        self._since: Optional[float] = None
        self._is_warned = False

    def look(self, now: float, sample: UsageSample) -> None:
        """Evaluate a sample. A GPU whose use is not known counts as busy, and so does a node without GPUs."""
        limit = self._limit
        if limit is None or self.exceeded:
            return
        uses = [gpu.used for gpu in sample.gpus]
        if not uses or any(use is None or use >= limit.below for use in uses):
            if self._is_warned:
                self._warn("")
            self._since, self._is_warned = None, False
            return
        self._since = now if self._since is None else self._since
        idle_s = now - self._since
        share = f"{100 * limit.below:g} %"
        so_far = f"each GPU on {sample.host} was busy for less than {share} of {idle_s:.0f} s (batch.idle)"
        if idle_s >= limit.for_s:
            self.exceeded = so_far
        elif idle_s >= WARN_SHARE * limit.for_s and not self._is_warned:
            self._is_warned = True
            left_s, at = limit.for_s - idle_s, time.time()
            message = f"{so_far}; the job ends in {left_s:.0f} s unless one is used"
            self._warn(message, since=at - idle_s, ends_at=at + left_s)

    def _warn(self, message: str, **fields: float) -> None:
        self._journal.append(EventKind.IDLE, host=os.uname().nodename, message=message, **fields)
