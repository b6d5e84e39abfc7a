"""What commands printed, made fit for a message: one line, short, and without what would steer a terminal. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

SHORT, LONG = 120, 1000
"""Characters. A refusal may be long: sites explain their rules in it (job_submit plugins)."""
_NAMED_MOST = 10
_ENOUGH = 16
"""So many times what is kept is looked at: a command that prints a whole file costs little."""
_SEQUENCE = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
_CAUSES = tuple(re.compile(word, re.IGNORECASE) for word in (r"\bfatal\b", r"\b(?:error|fail(?:ed|ure))\b"))
"""What a line says that tells why a command failed, the surest first."""


def clean(text: str) -> str:
    """`text` on one line, without terminals' control sequences, control characters, and bytes that were no text."""
    plain = _SEQUENCE.sub(" ", text)
    kept = (c if c.isprintable() and c != "\N{REPLACEMENT CHARACTER}" else " " for c in plain)
    return " ".join("".join(kept).split())


def shorten(text: str, characters: int = SHORT) -> str:
    """`text` on one clean line. Of a long one the last line that tells of a failure, and as many whole lines before it
    as there is room for: commands complain and greet first, and fail last."""
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
    """The index of the line that tells best why it failed; the last one where none does."""
    for cause in _CAUSES:
        for index in reversed(range(len(lines))):
            if cause.search(lines[index]):
                return index
    return max(0, len(lines) - 1)


def _end_of(line: str, characters: int) -> str:
    """So much of the end of `line`, from the beginning of a word on."""
    end = line[-characters:]
    cut, space, rest = end.partition(" ")
    return rest if space and len(cut) < characters // 2 and line[-characters - 1] != " " else end


def begin(text: str, characters: int = SHORT) -> str:
    """The same, of a long one the beginning: it says what was printed in the place of an answer."""
    text = text.strip()
    line = clean(text[: _ENOUGH * characters])
    return line if len(line) <= characters and len(text) <= _ENOUGH * characters else f"{line[:characters]} ..."


def few(names: Sequence[str]) -> str:
    """The first of them, and how many more there are."""
    more = len(names) - _NAMED_MOST
    return ", ".join(names[:_NAMED_MOST]) + (f" and {more} more" if more > 0 else "")
