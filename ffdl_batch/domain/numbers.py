"""Numbers of things, for a person. Runs on Python 3.9."""

from __future__ import annotations


def counted(number: int, one: str, many: str = "") -> str:
    """``1 job``, ``2 jobs``; `many` is the plural that is not made by an s."""
    return f"{number} {one if number == 1 else many or one + 's'}"
