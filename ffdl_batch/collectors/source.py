"""The interface of collectors, and what they share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from ffdl_batch.domain.metrics.records import MetricRecord

Clock = Callable[[], float]
"""Seconds since the epoch."""
State = Mapping[str, Any]
"""JSON-ready. The next process continues from it."""


class Harvest(NamedTuple):
    """Records in order, without `rindex`, and whether more can be read at once."""

    records: list[MetricRecord]
    more: bool


class Source(Protocol):
    """Reads what a learner writes, one bounded piece at a time."""

    def poll(self, final: bool) -> Harvest:
        """Return what is new. With `final`, nothing grows any more, so nothing is awaited. Raises OSError."""

    def state(self) -> State:
        """Return where the next process continues after the last :meth:`poll`."""


class Notes:
    """Counts what could not be used. Each kind is reported once, also over restarts."""

    def __init__(self, report: Callable[[str, str], None], counts: Mapping[str, int]) -> None:
        self.counts = dict(counts)
        self._report = report

    def note(self, kind: str, message: str) -> None:
        """Count it. Report the first of its kind."""
        self.counts[kind] = self.counts.get(kind, 0) + 1
        if self.counts[kind] == 1:
            self._report(kind, message)

    def too_many(self, files: Sequence[object], most: int) -> None:
        """Report if there are too many files to read."""
        if len(files) >= most:
            self.note("many_files", f"there are {most} files to collect from, or more; what is beyond them is not read")


def sub_run(names: tuple[str, ...]) -> str:
    """Return the sub-run of a file by its uppermost directory: a number or `learner-<n>`, else ""."""
    if len(names) < 2:
        return ""
    name = names[0]
    return name if name.removeprefix("learner-").isdecimal() else ""


def label_of(names: tuple[str, ...]) -> str:
    """Return FfDL's group label: the directory that holds the file. It is `logs` for LOG_DIR itself."""
    return names[-2] if len(names) > 1 else "logs"
