"""Copy findings of the site's health program about this node into events.

They are findings from the time of the attempt, and if something failed, older findings that persist. This module checks
nothing itself. While nothing new was found, it costs one stat(2) a minute.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from typing import Callable, List, Optional, Set

from ffdl_batch.attempt.event_journal import Journal
from ffdl_batch.domain.outcome.controller_events import EventKind
from ffdl_batch.host.processes import boot_id

EARLIER_S = 60.0
"""A finding from this many seconds before the attempt may still explain its end."""
PAUSE_S = 60.0
FINDINGS_MOST = 60
"""Maximum number of findings reported for one run (the first ones), and of further ones about its end."""
LINE_MOST = 1024
BYTES_MOST = 1 << 20
WAIT_MOST_S = 20.0
LASTING_MOST = 20
"""Maximum number of persistent findings reported. The first ones are those that make a node unfit."""
CHECKS_MISSED = 4.0
FORGOTTEN_S = 600.0
"""Persistent findings count if the program checked at most this long, or CHECKS_MISSED intervals, ago."""
_INCIDENTS = ("incidents.1", "incidents")
_LOOKED = "looked"
_LASTING = "lasting"


class HealthFindings:
    """Reports the findings for one run of a node controller."""

    def __init__(self, directory: str, journal: Journal) -> None:
        """`directory` is where the program writes; "" if the site has none."""
        self._directory, self._journal = directory, journal
        self._since = time.time() - EARLIER_S
        self._reported: Set[str] = set()
        self._seen = (0, 0, 0)
        self._next_look = 0.0
        self._at_work = threading.Lock()

    def look_again(self) -> None:
        """Do the same as `look`, at most once a minute."""
        if time.monotonic() >= self._next_look:
            self.look()

    def look(self, ended_at: Optional[float] = None, failed: bool = False) -> None:
        """Report new findings.

        If something ended at `ended_at`, findings about that time are reported beyond the maximum. If it `failed`,
        persistent findings are reported as well.
        """
        if not self._directory:
            return
        with self._at_work:
            self._next_look = time.monotonic() + PAUSE_S
            try:
                found = self._found(ended_at) + (self._lasting(ended_at) if failed else [])
            except OSError as error:
                sys.stderr.write(f"ffdl-controller: findings about this node cannot be read: {error}\n")
                self._directory = ""
                return
            if found:
                self._journal.append(EventKind.HEALTH, lines="\n".join(found))

    def await_look(self, ended_at: float, failed: bool, rest: Callable[[], bool]) -> None:
        """Wait a few seconds for the program's next check, which may explain what ended at `ended_at`, and report it.

        `rest` waits a moment and returns whether to wait longer.
        """
        waits_s = min(WAIT_MOST_S, self._interval_s() + 1.0)
        deadline = time.monotonic() + waits_s
        while waits_s > 1.0 and self._looked_at() <= ended_at and time.monotonic() < deadline and rest():
            pass
        self.look(ended_at, failed)

    def _found(self, ended_at: Optional[float]) -> List[str]:
        """Return new findings. Raises OSError."""
        try:
            stat = os.stat(os.path.join(self._directory, "incidents"))
        except FileNotFoundError:  # nothing has been found since the boot
            return []
        seen = (stat.st_ino, stat.st_size, stat.st_mtime_ns)
        if seen == self._seen and (ended_at is None or len(self._reported) < FINDINGS_MOST):
            return []
        found = self._new(ended_at)
        self._seen = seen
        return found

    def _lasting(self, ended_at: Optional[float]) -> List[str]:
        """Return persistent findings of this boot that began well before the end; later ones are reported by `_found`.

        Return none if the program has not checked for long. Raises OSError.
        """
        if time.time() - self._looked_at() > max(FORGOTTEN_S, CHECKS_MISSED * self._interval_s()):
            return []
        lines = _lines(os.path.join(self._directory, _LASTING))
        before = (ended_at or time.time()) - EARLIER_S
        new = [line for line in lines if _field(line, "boot_id") == boot_id() and _at(line) < before]
        new = [line for line in new if line not in self._reported]
        self._reported.update(new[:LASTING_MOST])
        return new[:LASTING_MOST]

    def _new(self, ended_at: Optional[float]) -> List[str]:
        found: List[str] = []
        for name in _INCIDENTS:
            for line in _lines(os.path.join(self._directory, name)):
                at = _at(line)
                if line not in self._reported and at >= self._since and self._may_report(at, ended_at):
                    self._reported.add(line)
                    found.append(line)
        return found

    def _may_report(self, at: float, ended_at: Optional[float]) -> bool:
        if len(self._reported) < FINDINGS_MOST:
            return True
        is_near = ended_at is not None and abs(at - ended_at) <= EARLIER_S
        return is_near and len(self._reported) < 2 * FINDINGS_MOST

    def _interval_s(self) -> float:
        """Return the interval that the program notes, in seconds; 0.0 if it does not run."""
        try:
            with open(os.path.join(self._directory, _LOOKED), encoding="ascii") as file:
                return float(file.read(32)) if self._directory else 0.0
        except (OSError, ValueError):
            return 0.0

    def _looked_at(self) -> float:
        """Return when the program last did all its checks."""
        try:
            return os.stat(os.path.join(self._directory, _LOOKED)).st_mtime
        except OSError:
            return 0.0


def _lines(path: str) -> List[str]:
    try:
        with open(path, "rb") as file:
            text = file.read(BYTES_MOST).decode("utf-8", "replace")
    except FileNotFoundError:
        return []
    return [line for line in text.split("\n")[:-1] if len(line) <= LINE_MOST]


def _at(line: str) -> float:
    """Return the time of a finding; 0.0 if the line is not a finding."""
    at = _field(line, "at")
    return float(at) if isinstance(at, (int, float)) else 0.0


def _field(line: str, name: str) -> object:
    """Return a field of a finding; None if the line is not a finding or has no such field."""
    try:
        body = json.loads(line)
    except ValueError:
        return None
    return body.get(name) if isinstance(body, dict) else None
