"""Enforce the time limit if no scheduler does: request a checkpoint before it, and end the learners at it."""

from __future__ import annotations

import os
import re
import sys
import time
from dataclasses import replace
from typing import Callable, Mapping, Optional

from ffdl_batch.attempt.file_writer import write_cell
from ffdl_batch.attempt.layout import AttemptDir
from ffdl_batch.attempt.reader import find_object
from ffdl_batch.controller.head.next_attempt import fill_all, run_command
from ffdl_batch.domain.launch.launch_file import LaunchFile
from ffdl_batch.domain.launch.placeholders import LaunchFileError
from ffdl_batch.domain.outcome.controller_events import TIME
from ffdl_batch.host.running_clock import RunningTime

ASKING_S = 5.0
"""Seconds that the scheduler may take to answer. The attempt has little time left then."""
_LIMIT = re.compile(r"^(?:(?:(\d+)-)?(\d+):)?(\d+):(\d+)$", re.ASCII | re.MULTILINE)
_PARTS_S = (86400, 3600, 60, 1)


class TimeLimit:
    """Measures the time of one run, without the time for which it was stopped, and enforces the limit."""

    def __init__(self, launch: LaunchFile, clock: Optional[Callable[[], float]] = None) -> None:
        self._limits, self._cell = launch.limits, AttemptDir(launch.attempt_dir).stop
        self._clock = clock or RunningTime().now
        self._started = self._seen = self._clock()
        self._reported = ""

    @property
    def used_s(self) -> float:
        """Return the seconds of this run up to the last :meth:`note`."""
        return self._seen - self._started

    def note(self) -> float:
        """Read the clock. Return `used_s`."""
        self._seen = self._clock()
        return self.used_s

    def look(self) -> None:
        """Read the clock. Request a checkpoint before the limit, and have the learners ended at it.

        If the cell cannot be written, the next call tries again.
        """
        self.note()
        limit = self._limits.time_s
        if limit is None:
            return
        what = "stop" if self.used_s >= limit else "halt" if self.used_s >= limit - self._lead_s(limit) else ""
        if not what or what == self._reported:
            return
        try:
            if find_object(self._cell).get("what") != "stop":
                write_cell(self._cell, {"what": what, "reason": TIME, "at": time.time()})
            self._reported = what
        except OSError as error:
            sys.stderr.write(f"ffdl-controller: {self._cell}: {error}; will be tried again\n")

    def _lead_s(self, limit: int) -> int:
        """Return the planned lead, else the grace period; at most half of the limit."""
        lead = self._limits.lead_s
        return min(self._limits.grace_s if lead is None else lead, limit // 2)


def deadline(launch: LaunchFile, environment: Mapping[str, str], started_at: float) -> Optional[float]:
    """Return the time limit in epoch seconds: the scheduler's value, else the enforced or requested one; None if there
    is no limit."""
    succession = launch.succession
    for name in succession.deadline_variables if succession else ():
        text = environment.get(name, "")
        if text.isdigit():
            return float(text)
    asked_s = launch.limits.time_s if succession is None or succession.limit_s is None else succession.limit_s
    return None if asked_s is None else started_at + asked_s


def limit_now_s(launch: LaunchFile, native_id: str) -> Optional[int]:
    """Return the current time limit in seconds according to the scheduler; None if it is unknown or there is none."""
    succession = launch.succession
    if succession is None or not succession.limit_now:
        return None
    asking = replace(succession, timeout_s=min(ASKING_S, succession.timeout_s))
    ours, theirs = os.pipe()
    with open(ours, encoding="ascii", errors="replace") as reply:
        try:
            failed = run_command(fill_all(succession.limit_now, {"native_id": native_id}), asking, theirs, 2)
        except (OSError, LaunchFileError) as error:
            failed = str(error)
        finally:
            os.close(theirs)
        answer = "" if failed else reply.read()
    if failed:
        sys.stderr.write(f"ffdl-controller: the current time limit is unknown: {failed}\n")
        return None
    found = _LIMIT.search(answer)  # UNLIMITED does not match
    return None if found is None else sum(int(n or 0) * unit_s for n, unit_s in zip(found.groups(), _PARTS_S))
