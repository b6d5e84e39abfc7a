"""Expands the text of one shell word (POSIX 2.2, 2.6). Anything that is not certain has no value."""

from __future__ import annotations

import re
from collections.abc import Callable

_SPLITS = re.compile(r"[\s*?\[]")
_NAME = re.compile(r"\$(\w+|.)?", re.ASCII | re.DOTALL)
_BRACES = re.compile(r"\\.|\$\{|\}", re.DOTALL)


def expand(text: str, variable: Callable[[str], str | None]) -> str | None:
    """Return what the word becomes; None if that is not certain, or if it may become several words. `variable` returns
    the value of ``$NAME`` or ``${…}``."""
    found: list[str] = []
    position, quoted = 0, False
    while position < len(text):
        letter = text[position]
        if letter == '"':
            quoted = not quoted
            position += 1
        elif letter == "$":
            end = _end_of_variable(text, position)
            value = variable(text[position:end]) if end else None
            if value is None or (not quoted and _SPLITS.search(value)):
                return None
            found.append(value)
            position = end
        elif letter == "'" and not quoted:
            end = text.find("'", position + 1)
            if end < 0:
                return None
            found.append(text[position + 1 : end])
            position = end + 1
        elif letter == "\\":
            following = text[position + 1 : position + 2]
            found.append(following if not quoted or following in ("$", "`", '"', "\\") else letter + following)
            position += 2
        elif letter == "`" or (letter in "*?[{~" and not quoted):
            return None
        else:
            found.append(letter)
            position += 1
    return None if quoted else "".join(found)


def _end_of_variable(text: str, position: int) -> int:
    """Return the end of ``$NAME`` or ``${…}``; 0 for any other expansion."""
    if not text.startswith("${", position):
        match = _NAME.match(text, position)
        return match.end() if match and match[1] and match[1] not in "('\"" else 0
    depth = 0
    for brace in _BRACES.finditer(text, position):
        depth += {"${": 1, "}": -1}.get(brace[0], 0)
        if not depth:
            return brace.end()
    return 0


def literal_text(text: str) -> str | None:
    """Return what a word without expansions becomes; None for any other."""
    return expand(text, lambda _: None)
