"""Counts and sizes as text for people. Runs on Python 3.9."""

from __future__ import annotations

_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


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
