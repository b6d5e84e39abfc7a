"""The time limit, where no scheduler keeps it: the learners are warned before it and ended at it."""

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
"""How long the scheduler may take to tell the limit: who asks has little time left."""
_LIMIT = re.compile(r"^(?:(?:(\d+)-)?(\d+):)?(\d+):(\d+)$", re.ASCII | re.MULTILINE)
_PARTS_S = (86400, 3600, 60, 1)


class TimeLimit:
    """One run's time. `used_s` is how long it ran, without the time that it was stopped."""

    def __init__(self, launch: LaunchFile, clock: Optional[Callable[[], float]] = None) -> None:
        self._limits, self._cell = launch.limits, AttemptDir(launch.attempt_dir).stop
        self._clock = clock or RunningTime().now
        self._started = self._seen = self._clock()
        self._reported = ""

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
        if not what or what == self._reported:
            return
        try:
            if find_object(self._cell).get("what") != "stop":
                write_cell(self._cell, {"what": what, "reason": TIME, "at": time.time()})
            self._reported = what
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


def limit_now_s(launch: LaunchFile, native_id: str) -> Optional[int]:
    """Seconds of the time limit as the scheduler has it by now; None where it does not say, or there is none."""
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
        said = "" if failed else reply.read()
    if failed:
        sys.stderr.write(f"ffdl-controller: the time limit as it is now is not known: {failed}\n")
        return None
    found = _LIMIT.search(said)  # there is none in UNLIMITED
    return None if found is None else sum(int(n or 0) * unit_s for n, unit_s in zip(found.groups(), _PARTS_S))
