"""Expands Slurm's compressed node lists, `n[1-3,07],login` and `r[0-1]n[01-16]`, like `scontrol show hostnames`.

So the prolog can expand the list in its environment without calling Slurm. Pure.
"""

from __future__ import annotations

import re

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_RANGE = re.compile(r"([0-9]+)(?:-([0-9]+))?")
NODES_MOST = 250


def expand(text: str) -> tuple[str, ...]:
    """Return the nodes in order. Raises ValueError for an invalid list, or if there are more nodes than addresses."""
    names: list[str] = []
    for part in _parts(text):
        names += _expand_part(part)
        if len(names) > NODES_MOST:
            raise ValueError(f"a job's network has at most {NODES_MOST} nodes")
    for name in names:
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name!r} is not the name of a node")
    if len(set(names)) != len(names):
        raise ValueError(f"a node stands twice in {text!r}")
    return tuple(names)


def _parts(text: str) -> list[str]:
    """Split at commas outside brackets."""
    parts, depth, current = [], 0, ""
    for character in text:
        if character == "," and depth == 0:
            parts.append(current)
            current = ""
            continue
        depth += (character == "[") - (character == "]")
        if depth not in (0, 1):
            raise ValueError(f"{text!r} is not a list of nodes")
        current += character
    if depth:
        raise ValueError(f"{text!r} is not a list of nodes")
    return [*parts, current]


def _expand_part(part: str) -> list[str]:
    """Expand one name with any number of brackets. The last bracket varies fastest."""
    head, bracket, rest = part.partition("[")
    if not bracket:
        return [part]
    inside, _, tail = rest.partition("]")
    tails = _expand_part(tail)
    return [f"{head}{number}{end}" for number in _numbers(inside) for end in tails]


def _numbers(text: str) -> list[str]:
    numbers: list[str] = []
    for piece in text.split(","):
        found = _RANGE.fullmatch(piece)
        if found is None:
            raise ValueError(f"[{text}] is not a list of numbers")
        first, last = found.group(1), found.group(2) or found.group(1)
        if int(last) - int(first) >= NODES_MOST or int(last) < int(first):
            raise ValueError(f"[{text}] has an empty range, or more than {NODES_MOST} nodes")
        numbers += [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]
    return numbers
