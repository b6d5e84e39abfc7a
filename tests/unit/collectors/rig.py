"""Collectors on files in a temporary directory, without a process of their own."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import field
from pathlib import Path

from ffdl_batch.collectors.source import Notes, Source, State
from ffdl_batch.domain.metrics.records import CollectorSpec, ExtractionGroup, MetricRecord
from ffdl_batch.host.fast_dataclass import dataclass

NOW_S = 1_790_000_000.5


@dataclass
class Time:
    """A clock that goes when it is told."""

    now_s: float = NOW_S

    def __call__(self) -> float:
        return self.now_s


@dataclass
class Told:
    """What is told to people."""

    said: list[tuple[str, str]] = field(default_factory=list)

    def notes(self) -> Notes:
        """Counts from nothing."""
        return Notes(lambda kind, message: self.said.append((kind, message)), {})

    @property
    def kinds(self) -> list[str]:
        """In the order in which they were told."""
        return [kind for kind, _ in self.said]


def spec_for(
    logs: Path, kind: str = "file", groups: Sequence[ExtractionGroup] = (), *, lookahead: int = 0,
    more: Sequence[Path] = (),
) -> CollectorSpec:  # fmt: skip
    """A spec whose output lies beside the logs."""
    out, stop, also = logs.parent / "metrics" / "learner-1.jsonl", logs.parent / "stop", tuple(map(str, more))
    return CollectorSpec(kind, "training-1", 1, str(logs), str(out), str(stop), tuple(groups), lookahead, also)


def drain(source: Source, *, final: bool = False) -> list[MetricRecord]:
    """All that can be had now."""
    records: list[MetricRecord] = []
    for _ in range(10_000):
        harvest = source.poll(final)
        records.extend(harvest.records)
        if not harvest.more:
            return records
    raise AssertionError("the source never comes to an end")


def kept(source: Source) -> State:
    """The state as it comes out of the position file."""
    state = json.loads(json.dumps(source.state()))
    assert isinstance(state, dict)
    return state


def texts(records: Sequence[MetricRecord], name: str) -> list[str]:
    """The texts of one value."""
    return [record.values[name].value for record in records if name in record.values]
