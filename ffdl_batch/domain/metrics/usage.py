"""Samples of what learners use on one node, one a line of `metrics/usage-<n>.jsonl`. Runs on Python 3.9.

Numbers that end in `_s` and `_bytes` grow from sample to sample, except those of memory. None = not known.
"""

from __future__ import annotations

import json
from dataclasses import field
from typing import Any, Dict, Mapping, Optional, Tuple

from ffdl_batch.domain.codec import from_plain, to_plain
from ffdl_batch.domain.outcome.controller_events import is_time
from ffdl_batch.domain.untrusted_json import parse_json
from ffdl_batch.host.fast_dataclass import dataclass


@dataclass(frozen=True)
class Use:
    """Processor seconds, memory, and bytes read from and written to storage."""

    cpu_s: Optional[float] = None
    memory_bytes: Optional[int] = None
    memory_peak_bytes: Optional[int] = None
    read_bytes: Optional[int] = None
    written_bytes: Optional[int] = None


@dataclass(frozen=True)
class GpuUse:
    """One GPU."""

    name: str
    """The scheduler's name."""
    learner_id: int
    """The learner that has it."""
    used: Optional[float] = None
    """Share of the last moments in which it was busy, from 0 to 1."""
    memory_bytes: Optional[int] = None
    memory_total_bytes: Optional[int] = None


@dataclass(frozen=True)
class UsageSample:
    """One sample of a node."""

    at: float
    """Seconds since the epoch by the node's clock."""
    host: str
    node: Optional[Use] = None
    """Use of the job's own control group there; None = it has none."""
    learners: Mapping[str, Use] = field(default_factory=dict)
    """Sums over the processes of each learner, by its id; memory that they share counts once for each."""
    gpus: Tuple[GpuUse, ...] = ()
    network: str = ""
    """Whose bytes were counted: `job` (a network namespace of its own) or `node`; "" = not measured."""
    received_bytes: Optional[int] = None
    sent_bytes: Optional[int] = None


def encode_sample(sample: UsageSample) -> str:
    """Return the line with its line end; what is not known is left out."""
    return json.dumps(_without_none(to_plain(sample)), separators=(",", ":"), ensure_ascii=True) + "\n"


def _without_none(plain: Any) -> Any:
    if isinstance(plain, dict):
        kept: Dict[str, Any] = {key: _without_none(value) for key, value in plain.items()}
        return {key: value for key, value in kept.items() if value not in (None, "", [], {})}
    return [_without_none(one) for one in plain] if isinstance(plain, (list, tuple)) else plain


def decode_sample(line: str) -> Optional[UsageSample]:
    """Return the sample of a line; None if it is no sample."""
    try:
        return read_sample(parse_json(line))
    except ValueError:
        return None


def read_sample(plain: Any) -> UsageSample:
    """Return the sample in a JSON value. Raises ValueError for a wrong type or a time out of range."""
    sample = from_plain(UsageSample, plain)
    if not is_time(sample.at):
        raise ValueError(f"{sample.at} is not a valid time")
    return sample
