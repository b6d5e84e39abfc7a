"""What the program asks of a collector, and what collectors have in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from ffdl_batch.domain.metrics.records import MetricRecord

Clock = Callable[[], float]
"""Seconds since the epoch."""
State = Mapping[str, Any]
"""JSON-ready; what a collector that was killed goes on with."""


class Harvest(NamedTuple):
    """Records in their order (`rindex` is not theirs to say), and whether there is more to read at once."""

    records: list[MetricRecord]
    more: bool


class Source(Protocol):
    """Reads what a learner writes, a bounded piece at a time."""

    def poll(self, final: bool) -> Harvest:
        """What is new. With `final` nothing grows any more: what would be waited for is over. Raises OSError."""

    def state(self) -> State:
        """Where the next one goes on, after all that :meth:`poll` has answered."""


class Notes:
    """Counts what could not be used; each kind is told once, also over restarts."""

    def __init__(self, tell: Callable[[str, str], None], counts: Mapping[str, int]) -> None:
        self.counts = dict(counts)
        self._tell = tell

    def note(self, kind: str, message: str) -> None:
        """Count it; the first of its kind is told."""
        self.counts[kind] = self.counts.get(kind, 0) + 1
        if self.counts[kind] == 1:
            self._tell(kind, message)

    def too_many(self, files: Sequence[object], most: int) -> None:
        """Tell where no more files than these are looked at."""
        if len(files) >= most:
            self.note("many_files", f"there are {most} files to collect from, or more; what is beyond them is not read")


def sub_run(names: tuple[str, ...]) -> str:
    """The sub-run of a file by its uppermost directory: a number or `learner-<n>`, else ""."""
    if len(names) < 2:
        return ""
    name = names[0]
    return name if name.removeprefix("learner-").isdecimal() else ""


def label_of(names: tuple[str, ...]) -> str:
    """FfDL's group label: the directory that holds the file. LOG_DIR itself is FfDL's `logs`."""
    return names[-2] if len(names) > 1 else "logs"
