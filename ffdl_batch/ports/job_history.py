"""What the core asks of those who know what ran before us, and where jobs could run. Found by entry point."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Protocol, runtime_checkable

from ffdl_batch.domain.job.past_job import PastJobs, Place

GROUP = "ffdl_batch.histories"


@dataclass(frozen=True, slots=True)
class Period:
    """Whose jobs, since which day (YYYY-MM-DD). Both "" = those of whoever asks."""

    since: str
    user: str = ""
    account: str = ""


class HistoryUnknown(Exception):
    """It cannot be asked, or what it says cannot be read; the message says what was tried and what to do."""


class HistoryMissing(HistoryUnknown):
    """What would have to be asked is not there at all, so that trying again does not help."""


@runtime_checkable
class KnowsJobs(Protocol):
    """A scheduler with an accounting."""

    def past_jobs(self, period: Period) -> PastJobs:
        """Jobs that have run, and rows that cannot be read: one odd row hides no other. Raises HistoryUnknown."""
        ...


@runtime_checkable
class KnowsPlaces(Protocol):
    """Somewhere that jobs could run."""

    def places(self) -> Sequence[Place]:
        """Partitions or profiles, the default one first. Raises HistoryUnknown."""
        ...


def history_names() -> tuple[str, ...]:
    """The backends that know something, sorted."""
    return tuple(sorted({point.name for point in entry_points(group=GROUP)}))


def open_history(name: str, settings: Mapping[str, object]) -> object:
    """What the backend `name` knows, under its own table of the configuration; what that is is asked for with
    isinstance. Raises HistoryUnknown, HistoryMissing where no backend of that name knows anything, and InvalidRequest
    for settings that cannot be used."""
    for point in entry_points(group=GROUP):
        if point.name == name:
            found: object = point.load()(settings)
            return found
    known = ", ".join(history_names()) or "none is installed"
    raise HistoryMissing(f"the backend {name!r} keeps no history; known: {known}")
