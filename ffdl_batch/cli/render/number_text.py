"""Numbers of curves as people read them."""

from __future__ import annotations

import math

_STEPS = (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3))


def short(number: float, unit: str = "") -> str:
    """At most four digits; large ones with a letter where there is a unit of bytes: 1.5 GB, 0.0312, 1.2e-05."""
    if not math.isfinite(number):
        return "-" if math.isnan(number) else f"{number:g}"
    if unit.startswith("B"):
        for letter, size in _STEPS:
            if abs(number) >= size:
                return f"{number / size:.3g} {letter}{unit}"
        return f"{number:.3g} {unit}"
    text = f"{number:.4g}" if abs(number) < 10_000 or number != int(number) else f"{number:g}"
    return f"{text} {unit}".strip()
