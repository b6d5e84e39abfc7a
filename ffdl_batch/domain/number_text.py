"""Numbers of things and bytes, for a person. Runs on Python 3.9."""

from __future__ import annotations

_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def counted(number: int, one: str, many: str = "") -> str:
    """``1 job``, ``2 jobs``; `many` is the plural that is not made by an s."""
    return f"{number} {one if number == 1 else many or one + 's'}"


def size_text(size: float) -> str:
    """What lies or moves somewhere, in bytes, to three digits: ``12 B``, ``1.17 MiB``, ``151 GiB`` (IEC 80000-13). Less
    than nothing is nothing."""
    number, unit = float(max(size, 0)), 0
    while number >= 1023.5 and unit < len(_BINARY) - 1:
        number, unit = number / 1024, unit + 1
    return f"{number:.0f} {_BINARY[unit]}" if unit == 0 or number >= 99.95 else f"{number:.3g} {_BINARY[unit]}"
