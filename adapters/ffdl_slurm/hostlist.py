"""Expand Slurm's node lists, such as ``n[01-16,20],m1``. Pure."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

MAX_NAMES = 65_536
_PART = re.compile(r"(?:[^,\[\]\s/{}*]|\[[0-9,-]+\])+", re.ASCII)
_RANGE = re.compile(r"(\d+)(?:-(\d+))?", re.ASCII)


def expand(names: str) -> frozenset[str] | None:
    """Return the names in a node list; None if that is not certain (a file, a step, too many)."""
    found: set[str] = set()
    for part in re.split(r",(?![^\[]*\])", names):
        if not _PART.fullmatch(part):
            return None
        pieces: list[list[str]] = []
        for text, ranges in re.findall(r"([^\[]+)|\[([^\]]*)\]", part):
            numbers = [text] if text else _numbers(ranges)
            if numbers is None:
                return None
            pieces.append(numbers)
        found.update(_joined(pieces, MAX_NAMES + 1 - len(found)))
        if len(found) > MAX_NAMES:
            return None
    return frozenset(found)


def _joined(pieces: list[list[str]], limit: int) -> Iterator[str]:
    return ("".join(names) for names in itertools.islice(itertools.product(*pieces), limit))


def _numbers(ranges: str) -> list[str] | None:
    """Expand ``01-03,7`` to 01 02 03 7. The width is that of a range's first number."""
    numbers: list[str] = []
    for text in ranges.split(","):
        match = _RANGE.fullmatch(text)
        if match is None:
            return None
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first or len(numbers) + last - first > MAX_NAMES:
            return None
        numbers += [f"{number:0{len(match[1])}d}" for number in range(first, last + 1)]
    return numbers
