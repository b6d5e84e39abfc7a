"""Counts and sizes as text for people, and whole numbers in other people's text. Runs on Python 3.9."""

from __future__ import annotations

from typing import Optional

_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def whole_number(text: str, most: int) -> Optional[int]:
    """Return the number that a text of ASCII digits is; None for another text, or for more than `most`.

    ``str.isdigit`` accepts digits that :class:`int` rejects (``²``), and :class:`int` rejects more than 4300 digits.
    """
    digits = text.lstrip("0") or text[:1]
    if not (text.isascii() and text.isdigit()) or len(digits) > len(str(most)):
        return None
    number = int(digits)
    return number if number <= most else None


def counted(number: int, one: str, many: str = "") -> str:
    """Return ``1 job``, ``2 jobs``; `many` is a plural that is not formed by an s."""
    return f"{number} {one if number == 1 else many or one + 's'}"


def size_text(size: float) -> str:
    """Return a size in bytes with three digits: ``12 B``, ``1.17 MiB``, ``151 GiB`` (IEC 80000-13). Negative sizes
    count as 0."""
    number, unit = float(max(size, 0)), 0
    while number >= 1023.5 and unit < len(_BINARY) - 1:
        number, unit = number / 1024, unit + 1
    return f"{number:.0f} {_BINARY[unit]}" if unit == 0 or number >= 99.95 else f"{number:.3g} {_BINARY[unit]}"
