"""How long a learner takes for a step, by what its collector has recorded."""

from __future__ import annotations

import os
from typing import Dict, List, NamedTuple, Optional, Tuple

from ffdl_batch.attempt.reader import NO_FILE, open_regular
from ffdl_batch.domain.metrics.records import MetricRecord, RecordError, decode_record

AXES = ("iteration", "step", "global_step")
"""Names of the time axes that count steps, the first that is there."""
TAIL_BYTES = 64 * 1024
LEAST_INTERVALS = 5
CHANGED = 0.2
"""A pace is told again when it differs by this share from what was told."""
TOLD_MOST = 50
"""How often it is told: each time is an event, and the daemon reads all events of a node at each look."""


class Step(NamedTuple):
    """Seconds a step; 0 = it changes too often to be told any more. `steady`: it is the first that is known, or was the
    same at the look before, so that all others looked meanwhile. Who is not steady is compared with nobody."""

    step_s: float
    steady: bool


class Pace:
    """Of one learner, whose records are in the file `path`."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._told, self._steady, self._left = 0.0, True, TOLD_MOST

    def news(self) -> Optional[Step]:
        """The pace lately, where it is known and not what was told before. Raises OSError."""
        now = median(intervals(_tail(self._path))) if self._left else None
        if now is None:
            return None
        is_as_told = bool(self._told) and abs(now - self._told) <= CHANGED * self._told
        if is_as_told and self._steady:
            return None
        self._steady = is_as_told or not self._told
        self._told = self._told if is_as_told else now
        self._left -= 1
        return Step(now, self._steady) if self._left else Step(0.0, steady=False)


def intervals(records: List[MetricRecord]) -> List[float]:
    """Seconds a step between records that follow each other on one axis of one group. A training that begins anew, or
    whose clock was set back, gives none there."""
    last: Dict[Tuple[str, str], Tuple[int, int]] = {}
    found = []
    for record in records:
        place = _step(record)
        if place is None:
            continue
        axis, step = place
        before = last.get((record.group, axis))
        last[(record.group, axis)] = (step, record.time_ms)
        if before is not None and step > before[0] and record.time_ms > before[1]:
            found.append((record.time_ms - before[1]) / 1000.0 / (step - before[0]))
    return found


def median(values: List[float]) -> Optional[float]:
    """Of enough of them."""
    if len(values) < LEAST_INTERVALS:
        return None
    return sorted(values)[len(values) // 2]


def _step(record: MetricRecord) -> Optional[Tuple[str, int]]:
    for axis in AXES:
        measure = record.etimes.get(axis)
        if measure is not None:
            return (axis, int(measure.value)) if measure.value.strip().isdecimal() else None
    return None


def _tail(path: str) -> List[MetricRecord]:
    """The records at the end of a file, without the first, which may be cut."""
    try:
        with open_regular(path) as file:
            size = file.seek(0, os.SEEK_END)
            begins = max(0, size - TAIL_BYTES)
            file.seek(begins)
            *lines, _torn = file.read(TAIL_BYTES).split(b"\n")
    except NO_FILE:
        return []
    found = []
    for line in lines[1 if begins else 0 :]:
        try:
            found.append(decode_record(line.decode("utf-8", "replace")))
        except RecordError:  # its collector writes none, but the file is the user's
            continue
    return found
