"""What an examination of a backend finds, for ``ffdl-admin doctor``."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


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
