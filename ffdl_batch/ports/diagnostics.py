"""What a backend finds when it is examined beforehand, for ``ffdl-admin doctor``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, runtime_checkable

from ffdl_batch.domain.data.mounts import Mounting


class Verdict(StrEnum):
    """What is said of one thing. A note is worth knowing, and nothing fails by it."""

    OK = "ok"
    WRONG = "wrong"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Item:
    """One thing that was looked at; the text of a wrong one says what to change, and where. `examined` is false for a
    note on what was named and could not be looked at now, as a busy node: nothing is known of it."""

    about: str
    verdict: Verdict
    text: str = ""
    examined: bool = True


@runtime_checkable
class Examines(Protocol):
    """A backend that can look for what would make its jobs fail."""

    def examine(self, nodes: str, mounting: Mounting = Mounting.AUTO) -> Sequence[Item]:
        """Look at the scheduler and at this machine; and at `nodes`, by a small job on each: a list as the scheduler
        writes them, "all", "" for none. `mounting` is the site's word about mounted stores. Raises InvalidRequest for
        what is no list, and where there is no such node; SchedulerMissing where this machine has no such scheduler."""
        ...
