"""Sums the GPU use of attempts from the samples of node controllers, beginning with those that held the most.

A sample covers the time since the one before. Reading takes a bounded time; the report says how much was not read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeGuard

from ffdl_batch.attempt.layout import Root
from ffdl_batch.attempt.reader import DamagedFile, open_regular
from ffdl_batch.domain.metrics.usage_report import HOUR_S, IDLE_BELOW, Efficiency
from ffdl_batch.domain.metrics.usage_timeline import overlap
from ffdl_batch.services.job_storage import JobStorage

PATIENCE_S = 20.0
MOST_BYTES = 32 * 1024**2
"""Maximum bytes read from one file. Samplers write 16 MiB at most. A longer file was made by a learner or a user."""
MAX_LINE = 1 << 20
EVERY_S, THINNING = 10.0, 2000.0
"""The sampler's pause: this long, or this part of the time since the start."""
_PAUSES = 3.0
"""Maximum number of pauses that a sample covers. Earlier time counts as not measured."""


class HeldAttempt(NamedTuple):
    """An attempt and the GPU-seconds that it held in the period."""

    gpu_seconds: float
    job: str
    number: int


class _Seen(NamedTuple):
    """GPU-seconds that samples cover, that were used, and that were idle."""

    sampled: float = 0.0
    used: float = 0.0
    idle: float = 0.0


def read_efficiency(storage: JobStorage, held: Sequence[HeldAttempt], period: tuple[float, float]) -> Efficiency:
    """Return the GPU efficiency of these attempts in the period."""
    whole, seen, unread = sum(one.gpu_seconds for one in held), _Seen(), 0
    ends_at = storage.clock.monotonic() + PATIENCE_S
    for at, one in enumerate(sorted(held, reverse=True)):
        if storage.clock.monotonic() > ends_at:
            unread += len(held) - at
            break
        try:
            found = _of_attempt(storage.root, one, period)
        except OSError:
            unread += 1
            continue
        # A file may contain GPUs that other jobs share: an attempt cannot use more than it held.
        part = min(1.0, one.gpu_seconds / found.sampled) if found.sampled else 0.0
        seen = _Seen(*(a + b * part for a, b in zip(seen, found, strict=True)))
    return Efficiency(whole / HOUR_S, seen.sampled / HOUR_S, seen.used / HOUR_S, seen.idle / HOUR_S, unread)


def _of_attempt(root: Root, one: HeldAttempt, period: tuple[float, float]) -> _Seen:
    directory = Path(root.job(one.job).attempt(one.number).metrics)
    seen = _Seen()
    for path in sorted(directory.glob("usage-*.jsonl")):
        try:
            file = open_regular(str(path))
        except (FileNotFoundError, DamagedFile):
            continue
        with file:
            for found in _weigh(file, period):
                seen = _Seen(*(a + b for a, b in zip(seen, found, strict=True)))
    return seen


def _weigh(file: BinaryIO, period: tuple[float, float]) -> Iterator[_Seen]:
    first = last = None
    while file.tell() < MOST_BYTES and (line := file.readline(MAX_LINE)):
        sample = _read(line)
        if sample is None:
            continue
        at, uses = sample
        first = at if first is None else first
        if last is not None and at > last:
            pause = max(EVERY_S, (at - first) / THINNING) * _PAUSES
            seconds = overlap(max(last, at - pause), at, *period)
            used = sum(uses)
            yield _Seen(seconds * len(uses), seconds * used, seconds * sum(use < IDLE_BELOW for use in uses))
        last = at


def _read(line: bytes) -> tuple[float, list[float]] | None:
    """Return the time and the GPUs' use in a line of :class:`ffdl_batch.domain.metrics.usage.UsageSample`; None if it
    is invalid, because the job's owner can write the file. Decoding the whole sample takes three times as long."""
    try:
        plain: Any = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(plain, dict) or not _is_number(at := plain.get("at")):
        return None
    gpus = plain.get("gpus")
    shares = [gpu.get("used") for gpu in gpus if isinstance(gpu, dict)] if isinstance(gpus, list) else []
    return float(at), [min(1.0, max(0.0, float(share))) for share in shares if _is_number(share)]


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e12
