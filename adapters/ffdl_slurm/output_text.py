"""Shorten the output of commands to one line for messages, without control sequences. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

SHORT, LONG = 120, 1000
"""Maximum characters of a message. A refusal may be long: sites explain their rules in it (job_submit plugins)."""
_NAMED_MOST = 10
_ENOUGH = 16
"""How many times the kept length is read, so that the output of a large file costs little."""
_SEQUENCE = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
_CAUSES = tuple(re.compile(word, re.IGNORECASE) for word in (r"\bfatal\b", r"\b(?:error|fail(?:ed|ure))\b"))
"""Patterns of lines that have the reason of a failure, the most certain first."""


def clean(text: str) -> str:
    """Return the text on one line, without control sequences, control characters and bytes that are not text."""
    plain = _SEQUENCE.sub(" ", text)
    kept = (c if c.isprintable() and c != "\N{REPLACEMENT CHARACTER}" else " " for c in plain)
    return " ".join("".join(kept).split())


def shorten(text: str, characters: int = SHORT) -> str:
    """Return the text on one clean line. Of a long text return the last line about a failure, and as many whole lines
    before it as fit, because commands print warnings and greetings first."""
    text = text.strip()
    tail = text[-_ENOUGH * characters :]
    line = clean(tail)
    if len(line) <= characters and tail == text:
        return line
    lines = [cleaned for one in tail.split("\n") if (cleaned := clean(one))]
    last = _find_cause(lines)
    first, kept = last, lines[last] if lines else ""
    while first > 0 and len(lines[first - 1]) + 1 + len(kept) <= characters:
        first -= 1
        kept = f"{lines[first]} {kept}"
    if len(kept) > characters:
        return f"... {_end_of(kept, characters)}"
    return kept if first == 0 and tail == text else f"... {kept}"


def _find_cause(lines: Sequence[str]) -> int:
    """Return the index of the line with the most likely reason of the failure; that of the last line if there is
    none."""
    for cause in _CAUSES:
        for index in reversed(range(len(lines))):
            if cause.search(lines[index]):
                return index
    return max(0, len(lines) - 1)


def _end_of(line: str, characters: int) -> str:
    """Return the end of the line, from the beginning of a word."""
    end = line[-characters:]
    cut, space, rest = end.partition(" ")
    return rest if space and len(cut) < characters // 2 and line[-characters - 1] != " " else end


def begin(text: str, characters: int = SHORT) -> str:
    """Return the text on one clean line; of a long text, the beginning. It is for output that is not an answer."""
    text = text.strip()
    line = clean(text[: _ENOUGH * characters])
    return line if len(line) <= characters and len(text) <= _ENOUGH * characters else f"{line[:characters]} ..."


def few(names: Sequence[str]) -> str:
    """Return the first names, and how many more there are."""
    more = len(names) - _NAMED_MOST
    return ", ".join(names[:_NAMED_MOST]) + (f" and {more} more" if more > 0 else "")
