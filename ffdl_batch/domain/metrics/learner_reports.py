"""Parse the reports of learners about their speed and size, and find them among metric records. Pure.

    ffdl-throughput: samples=12800 seconds=10.5
    ffdl-throughput: samples=12800 seconds=10.5 remaining=256000
    ffdl-scale: +2

A report ends its line, and may have a prefix, such as a time. The time to parse a line is linear in its length.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping

from ffdl_batch.domain.metrics.records import FLOAT, INT, Measure, MetricRecord, float_text

GROUP, THROUGHPUT, SCALE, REMAINING = "ffdl", "throughput", "scale", "remaining"
HOLD = 0
"""Value of SCALE for the hint `hold`."""
MOST_LEARNERS = 4096
SLOWEST, FASTEST = 1e-9, 1e15
"""Limits of a speed in samples per second. Other speeds are not realistic, and would overflow in calculations."""
MOST_SAMPLES = 1e18
"""Maximum number of remaining samples."""
_MOST_CHARS = 120
_NUMBER = r"(?:\d{1,18}(?:\.\d{0,18})?|\.\d{1,18})(?:[eE][-+]?\d{1,3})?"
_SPEED = re.compile(
    rf"ffdl-throughput:[ \t]{{0,8}}samples=({_NUMBER})[ \t]{{1,8}}seconds=({_NUMBER})"
    rf"(?:[ \t]{{1,8}}remaining=({_NUMBER}))?",
    re.ASCII,
)
_HINT = re.compile(r"ffdl-scale:[ \t]{0,8}([-+]\d{1,4}|hold)", re.ASCII)


def parse_report(line: str) -> Mapping[str, Measure] | None:
    """Return the values of a report; None for any other line.

    The values are THROUGHPUT in samples per second, with REMAINING samples if the line has them, or SCALE, the change
    of the number of learners that the job could use.
    """
    begin = line.rfind("ffdl-")
    if begin < 0:
        return None
    text = line[begin:].rstrip()
    if len(text) > _MOST_CHARS:
        return None
    if found := _SPEED.fullmatch(text):
        samples, seconds = float(found[1]), float(found[2])
        speed = samples / seconds if seconds else 0.0
        if not _is_speed(speed) or not math.isfinite(seconds):
            return None
        values = {THROUGHPUT: Measure(FLOAT, float_text(speed))}
        if found[3] and float(found[3]) <= MOST_SAMPLES:
            values[REMAINING] = Measure(FLOAT, float_text(float(found[3])))
        return values
    if found := _HINT.fullmatch(text):
        change = HOLD if found[1] == "hold" else int(found[1])
        return {SCALE: Measure(INT, str(change))} if change or found[1] == "hold" else None
    return None


def throughputs(records: Iterable[MetricRecord]) -> list[tuple[float, float]]:
    """Return time (seconds since the epoch) and samples per second of each measurement, in the order of the records.

    Every record with a value THROUGHPUT counts, even if the program wrote it itself.
    """
    found = []
    for record in records:
        speed = _number(record.values.get(THROUGHPUT))
        if speed is not None and _is_speed(speed):
            found.append((record.time_ms / 1000.0, speed))
    return found


def last_hint(records: Iterable[MetricRecord]) -> int | None:
    """Return the last hint: a change of the number of learners, or HOLD. None if there is no hint."""
    hint = None
    for record in records:
        change = _number(record.values.get(SCALE))
        if change is not None and change == int(change) and abs(change) <= MOST_LEARNERS:
            hint = int(change)
    return hint


def remaining_samples(records: Iterable[MetricRecord]) -> float | None:
    """Return the remaining samples of the last record that has them; None if there is none."""
    left = None
    for record in records:
        number = _number(record.values.get(REMAINING))
        if number is not None and 0 <= number <= MOST_SAMPLES:
            left = number
    return left


def _is_speed(speed: float) -> bool:
    return SLOWEST <= speed <= FASTEST


def _number(measure: Measure | None) -> float | None:
    """Return a finite number; None for anything else."""
    if measure is None or measure.type not in (INT, FLOAT):
        return None
    try:
        number = float(measure.value)
    except ValueError:
        return None
    return number if math.isfinite(number) else None
