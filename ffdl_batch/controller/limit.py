"""The time limit, where no scheduler keeps it: the learners are warned before it and ended at it."""

from __future__ import annotations

import sys
import time
from typing import Callable, Mapping, Optional

from ffdl_batch.controller.files import read_cell, write_cell
from ffdl_batch.controller.requests import TIME
from ffdl_batch.controller.running_time import RunningTime
from ffdl_batch.domain.jobdir import AttemptDir
from ffdl_batch.domain.launch import LaunchFile


class TimeLimit:
    """One run's time. `used_s` is how long it ran, without the time that it was stopped."""

    def __init__(self, launch: LaunchFile, clock: Optional[Callable[[], float]] = None) -> None:
        self._limits, self._cell = launch.limits, AttemptDir(launch.attempt_dir).stop
        self._clock = clock or RunningTime().now
        self._started = self._seen = self._clock()
        self._told = ""

    @property
    def used_s(self) -> float:
        """Seconds of this run up to the last look."""
        return self._seen - self._started

    def note(self) -> float:
        """Note the time, without any consequence; `used_s`."""
        self._seen = self._clock()
        return self.used_s

    def look(self) -> None:
        """Note the time; ask for a checkpoint before the limit, have the learners ended at it.

        A cell that cannot be written now is tried again at the next look.
        """
        self.note()
        limit = self._limits.time_s
        if limit is None:
            return
        what = "stop" if self.used_s >= limit else "halt" if self.used_s >= limit - self._lead_s(limit) else ""
        if not what or what == self._told:
            return
        try:
            if (read_cell(self._cell) or {}).get("what") != "stop":
                write_cell(self._cell, {"what": what, "reason": TIME, "at": time.time()})
            self._told = what
        except OSError as error:
            sys.stderr.write(f"ffdl-controller: {self._cell}: {error}; will be tried again\n")

    def _lead_s(self, limit: int) -> int:
        """Without a planned lead, the grace period; never more than half of the limit."""
        lead = self._limits.lead_s
        return min(self._limits.grace_s if lead is None else lead, limit // 2)


def deadline(launch: LaunchFile, environment: Mapping[str, str], started_at: float) -> Optional[float]:
    """The epoch second of the time limit: the scheduler's word, else the limit that we keep or asked for, else None."""
    succession = launch.succession
    for name in succession.deadline_variables if succession else ():
        text = environment.get(name, "")
        if text.isdigit():
            return float(text)
    asked_s = launch.limits.time_s if succession is None or succession.limit_s is None else succession.limit_s
    return None if asked_s is None else started_at + asked_s
