"""Curves in a terminal: Braille characters, two dots by four in each."""

from __future__ import annotations

from collections.abc import Sequence

from ffdl_batch.cli.render.number_text import short
from ffdl_batch.domain.metrics.series import Series

COLOURS = ("cyan", "yellow", "green", "magenta", "red", "blue")
MARKS = "ox+*#@%&abcdefghijklmnpqrstuvwyz"
"""What curves consist of where colours do not tell them apart."""
_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
_MARGIN = 10


class Canvas:
    """Dots in `width` by `height` characters; of each character the curve that was drawn last counts for its colour."""

    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        self._cells = [[0] * width for _ in range(height)]
        self._curves = [[-1] * width for _ in range(height)]

    def dot(self, x: int, y: int, curve: int) -> None:
        """Counted from the lower left; what lies outside is left out."""
        column, row = x // 2, self.height - 1 - y // 4
        if x >= 0 and y >= 0 and column < self.width and row >= 0:
            self._cells[row][column] |= _DOTS[3 - y % 4][x % 2]
            self._curves[row][column] = curve

    def line(self, start: tuple[int, int], end: tuple[int, int], curve: int) -> None:
        """From one dot to another."""
        steps = max(abs(end[0] - start[0]), abs(end[1] - start[1]), 1)
        for i in range(steps + 1):
            x = round(start[0] + (end[0] - start[0]) * i / steps)
            self.dot(x, round(start[1] + (end[1] - start[1]) * i / steps), curve)

    def rows(self) -> list[list[tuple[str, int]]]:
        """From the top: each character with its curve, -1 where there is none."""
        return [
            [(chr(0x2800 + cell) if cell else " ", curve) for cell, curve in zip(cells, curves, strict=True)]
            for cells, curves in zip(self._cells, self._curves, strict=True)
        ]


def draw(series: Sequence[Series], width: int, height: int) -> list[list[tuple[str, int]]]:
    """The lines of a chart of curves with one meaning: axis, curves, and below them the x axis' ends. Each piece of
    text goes with the index of its curve, -1 = none."""
    points = [one.points for one in series]
    every = [point for some in points for point in some]
    if not every:
        return []
    (x0, x1), (y0, y1) = _span([x for x, _ in every]), _span([y for _, y in every])
    canvas = Canvas(max(10, width - _MARGIN), max(3, height - 1))
    wide, high = canvas.width * 2 - 1, canvas.height * 4 - 1
    for curve, some in enumerate(points):
        dots = [(round((x - x0) / (x1 - x0) * wide), round((y - y0) / (y1 - y0) * high)) for x, y in some]
        for start, end in zip(dots, dots[1:] or dots, strict=False):
            canvas.line(start, end, curve)
    lines = []
    for number, row in enumerate(canvas.rows()):
        share = 1 - number / max(1, canvas.height - 1)
        label = short(y0 + (y1 - y0) * share) if number in (0, canvas.height // 2, canvas.height - 1) else ""
        lines.append([(f"{label:>{_MARGIN - 2}} │", -1), *row])
    left, right = short(x0), f"{series[0].name.axis} {short(x1)}"
    lines.append([(" " * (_MARGIN - 1) + "└" + left + right.rjust(max(1, canvas.width - len(left))), -1)])
    return lines


def _span(values: Sequence[float]) -> tuple[float, float]:
    least, most = min(values), max(values)
    return (least, most) if most > least else (least - 0.5, most + 0.5)
