"""What a backend finds when it is examined beforehand, for ``ffdl-admin doctor``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, runtime_checkable


class Verdict(StrEnum):
    """What is said of one thing. A note is worth knowing, and nothing fails by it."""

    OK = "ok"
    WRONG = "wrong"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Item:
    """One thing that was looked at; the text of a wrong one says what to change, and where."""

    about: str
    verdict: Verdict
    text: str = ""


@runtime_checkable
class Examines(Protocol):
    """A backend that can look for what would make its jobs fail."""

    def examine(self, nodes: str) -> Sequence[Item]:
        """Look at the scheduler and at this machine; and at `nodes`, by a small job on each: names with commas between,
        "all", "" for none. Raises InvalidRequest where there is no such node."""
        ...
