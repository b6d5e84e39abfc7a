"""Results of an examination of a backend, for ``ffdl-admin doctor``."""

from __future__ import annotations

from enum import StrEnum

from ffdl_batch.host.fast_dataclass import dataclass


class Verdict(StrEnum):
    """The result of one check. A note is worth knowing, but nothing fails because of it."""

    OK = "ok"
    WRONG = "wrong"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Item:
    """One check."""

    about: str
    verdict: Verdict
    text: str = ""
    """For a wrong item: what to change, and where."""
    examined: bool = True
    """False for a note on something that could not be checked now, as a busy node."""
