"""Tables below each other on a screen that is not high enough for all of their rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Block:
    """A table: lines that are always shown with it, and rows."""

    head: int
    rows: int


def rows_that_fit(blocks: Sequence[Block], height: int) -> list[int]:
    """How many rows of each table are shown on `height` lines, the last of which is kept for what is said of the rest.

    Each table has one row before any has more, and no table has rows to spare while another lacks some. Where not even
    that fits, the last tables are left out: the list is shorter then, but has one, whatever the height.
    """
    if sum(block.head + block.rows for block in blocks) <= height:
        return [block.rows for block in blocks]
    left = height - 1
    shown: list[int] = []
    for block in blocks:
        first = min(block.rows, 1)
        if shown and block.head + first > left:
            break
        left -= block.head + first
        shown.append(first)
    wanting = [at for at, rows in enumerate(shown) if rows < blocks[at].rows]
    while left > 0 and wanting:
        for at in wanting[:left]:
            shown[at] += 1
        left -= len(wanting[:left])
        wanting = [at for at in wanting if shown[at] < blocks[at].rows]
    return shown
