"""What became of each directive and line of a script, for people and for programs."""

from __future__ import annotations

from collections import Counter

from ffdl_batch.domain.job.views import SCHEMA
from ffdl_batch.domain.terminal_text import json_text
from ffdl_batch.ports.conversion import Conversion, Fate, Judged, Origin

_LONGEST = 60


def as_text(conversion: Conversion, file: str) -> str:
    """A line for each, in the order of the script, and the sums."""
    lines = [_line(one, file) for one in conversion.judged]
    counts = Counter(one.fate for one in conversion.judged)
    lines.append(", ".join(f"{counts[fate]} {fate}" for fate in Fate))
    if conversion.wrapped:
        lines.append(f"the script runs whole, as it is: {conversion.wrapped}")
    return "\n".join(lines)


def as_json(conversion: Conversion, file: str) -> str:
    """One document."""
    counts = Counter(one.fate for one in conversion.judged)
    document = {
        "schema": SCHEMA,
        "file": file,
        "wrapped": conversion.wrapped or None,
        "counts": {str(fate): counts[fate] for fate in Fate},
        "judged": [
            {"origin": str(one.origin), "line": one.line or None, "text": one.text, "fate": str(one.fate),
             "to": one.to or None, "reason": one.reason or None}
            for one in conversion.judged
        ],
    }  # fmt: skip
    return json_text(document)


def _line(one: Judged, file: str) -> str:
    place = f"{file}:{one.line}" if one.line else str(one.origin)
    if one.line and one.origin in (Origin.COMMAND, Origin.ENVIRONMENT):
        place = str(one.origin)
    words = " ".join(one.text.split())
    shown = words if len(words) <= _LONGEST else f"{words[: _LONGEST - 3]}..."
    to = f" -> {one.to}" if one.to else ""
    reason = f" ({one.reason})" if one.reason else ""
    return f"{place}: {one.fate}: {shown}{to}{reason}"
