"""Draw curves in the terminal, into a PNG picture, or into an HTML page."""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from ffdl_batch.domain.metrics.series import Series

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_STEPS = (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3))


def short(number: float, unit: str = "") -> str:
    """Return a number with at most four digits, and a prefix if the unit is bytes: 1.5 GB, 0.0312, 1.2e-05."""
    if not math.isfinite(number):
        return "-" if math.isnan(number) else f"{number:g}"
    if unit.startswith("B"):
        for letter, size in _STEPS:
            if abs(number) >= size:
                return f"{number / size:.3g} {letter}{unit}"
        return f"{number:.3g} {unit}"
    text = f"{number:.4g}" if abs(number) < 10_000 or number != int(number) else f"{number:g}"
    return f"{text} {unit}".strip()


COLOURS = ("cyan", "yellow", "green", "magenta", "red", "blue")
MARKS = "ox+*#@%&abcdefghijklmnpqrstuvwyz"
"""Marks of curves if colours do not distinguish them."""
_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
_MARGIN = 10


class Canvas:
    """Dots in `width` by `height` characters. The curve that was drawn last in a character has its colour."""

    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        self._cells = [[0] * width for _ in range(height)]
        self._curves = [[-1] * width for _ in range(height)]

    def dot(self, x: int, y: int, curve: int) -> None:
        """Draw a dot, with the origin at the lower left. Dots outside of the canvas are ignored."""
        column, row = x // 2, self.height - 1 - y // 4
        if x >= 0 and y >= 0 and column < self.width and row >= 0:
            self._cells[row][column] |= _DOTS[3 - y % 4][x % 2]
            self._curves[row][column] = curve

    def line(self, start: tuple[int, int], end: tuple[int, int], curve: int) -> None:
        """Draw a line between two dots."""
        steps = max(abs(end[0] - start[0]), abs(end[1] - start[1]), 1)
        for i in range(steps + 1):
            x = round(start[0] + (end[0] - start[0]) * i / steps)
            self.dot(x, round(start[1] + (end[1] - start[1]) * i / steps), curve)

    def rows(self) -> list[list[tuple[str, int]]]:
        """Return the rows from the top: each character with the number of its curve, or -1."""
        return [
            [(chr(0x2800 + cell) if cell else " ", curve) for cell, curve in zip(cells, curves, strict=True)]
            for cells, curves in zip(self._cells, self._curves, strict=True)
        ]


def draw(series: Sequence[Series], width: int, height: int) -> list[list[tuple[str, int]]]:
    """Return the lines of a chart of curves with one unit: the y axis, the curves, and the x axis below them. Each
    piece of text has the index of its curve, or -1."""
    points = [one.points for one in series]
    every = [point for some in points for point in some]
    if not every:
        return []
    across, up = _span([x for x, _ in every]), _span([y for _, y in every])
    canvas = Canvas(max(10, width - _MARGIN), max(3, height - 1))
    wide, high = canvas.width * 2 - 1, canvas.height * 4 - 1
    for curve, some in enumerate(points):
        dots = [(round(across.share(x) * wide), round(up.share(y) * high)) for x, y in some]
        for start, end in zip(dots, dots[1:] or dots, strict=False):
            canvas.line(start, end, curve)
    lines = []
    for number, row in enumerate(canvas.rows()):
        share = 1 - number / max(1, canvas.height - 1)
        label = short(up.at(share)) if number in (0, canvas.height // 2, canvas.height - 1) else ""
        lines.append([(f"{label:>{_MARGIN - 2}} │", -1), *row])
    left, right = short(across.least), f"{series[0].name.axis} {short(across.most)}"
    lines.append([(" " * (_MARGIN - 1) + "└" + left + right.rjust(max(1, canvas.width - len(left))), -1)])
    return lines


class _Span(NamedTuple):
    """The range of an axis. The difference of its ends may be too large for a float; that of their halves never is."""

    least: float
    most: float

    def share(self, value: float) -> float:
        """Return the place of a value: 0 at `least`, 1 at `most`."""
        return (value / 2 - self.least / 2) / (self.most / 2 - self.least / 2)

    def at(self, share: float) -> float:
        """Return the value at a place."""
        return self.least * (1 - share) + self.most * share


def _span(values: Sequence[float]) -> _Span:
    least, most = min(values), max(values)
    if most / 2 > least / 2:
        return _Span(least, most)
    margin, largest = max(0.5, abs(least) * 1e-9), sys.float_info.max
    return _Span(max(least - margin, -largest), min(most + margin, largest))


_PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
"""Colours that people who see few colours can distinguish (Okabe and Ito)."""
_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP = 720, 300, 64, 28, 8
_STYLE = (
    "body{font:14px system-ui,sans-serif;margin:2em;color:#222;background:#fff}h2{font-size:15px;margin:1.5em 0 .3em}"
    "svg{border:1px solid #ddd;max-width:100%}.l{font-size:12px}.l i{display:inline-block;width:1.6em;height:3px;"
    "margin:0 .4em 0 1em;vertical-align:middle}text{font:11px system-ui,sans-serif;fill:#555}"
)
Titled = Mapping[str, Sequence[tuple[str, Series]]]
"""Charts by title: curves with their labels."""


def html(charts: Titled, title: str) -> str:
    """Return an HTML page with the charts. It has no script and loads no other file."""
    parts = [f"<!doctype html><html lang=en><meta charset=utf-8><title>{escape(title)}</title><style>{_STYLE}</style>"]
    parts.append(f"<h1>{escape(title)}</h1>")
    for name, curves in charts.items():
        parts.append(f"<h2>{escape(name)}</h2>{_svg([series for _, series in curves])}<div class=l>")
        for index, (label, series) in enumerate(curves):
            colour = _PALETTE[index % len(_PALETTE)]
            last = short(series.last, series.name.unit)
            parts.append(f'<i style="background:{colour}"></i>{escape(label)} ({escape(last)})')
        parts.append("</div>")
    return "".join(parts) + "</html>\n"


def _svg(curves: Sequence[Series]) -> str:
    every = [point for series in curves for point in series.points]
    if not every:
        return "<p>no points</p>"
    across, up = _span([x for x, _ in every]), _span([y for _, y in every])
    wide, high = _WIDTH - _LEFT - 8, _HEIGHT - _BOTTOM - _TOP
    parts = [f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" role="img">']
    for tick in range(5):
        y = _TOP + high * (1 - tick / 4)
        label = escape(short(up.at(tick / 4), curves[0].name.unit))
        parts.append(f'<path d="M{_LEFT} {y:.1f}h{wide}" stroke="#eee"/>')
        parts.append(f'<text x="{_LEFT - 4}" y="{y + 4:.1f}" text-anchor="end">{label}</text>')
    for tick in range(5):
        x, label = _LEFT + wide * tick / 4, escape(short(across.at(tick / 4)))
        parts.append(f'<text x="{x:.1f}" y="{_HEIGHT - 10}" text-anchor="middle">{label}</text>')
    axis = escape(curves[0].name.axis)
    parts.append(f'<text x="{_WIDTH - 8}" y="{_HEIGHT - _BOTTOM - 4}" text-anchor="end">{axis}</text>')
    for index, series in enumerate(curves):
        dots = [f"{_LEFT + across.share(x) * wide:.1f},{_TOP + high * (1 - up.share(y)):.1f}" for x, y in series.points]
        drawn = dots if len(dots) > 1 else dots * 2  # one point is a dot by its round end
        style = f'fill="none" stroke="{_PALETTE[index % len(_PALETTE)]}" stroke-width="1.8" stroke-linecap="round"'
        parts.append(f'<polyline points="{" ".join(drawn)}" {style}/>')
    return "".join(parts) + "</svg>"


def blank_figure(width: float, height: float, missing: str) -> Figure:
    """Return a figure of matplotlib, in inches. Raises UsageError with the text `missing` if it is not installed."""
    logging.getLogger("matplotlib.font_manager").setLevel(logging.ERROR)  # the first picture takes a moment longer
    try:
        from matplotlib import rcdefaults
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise click.UsageError(missing) from None
    rcdefaults()  # otherwise a matplotlibrc in the working directory applies, and it can run programs (text.usetex)
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def write_png(charts: Titled, title: str, path: Path) -> None:
    """Write one chart below the other. Raises UsageError if matplotlib is not installed."""
    missing = "--png needs matplotlib; install ffdl-batch[plots], or use --html, which does not need it"
    figure = blank_figure(9, 3.2 * max(1, len(charts)), missing)
    figure.suptitle(_plain(title))
    for number, (name, curves) in enumerate(charts.items(), 1):
        axes = figure.add_subplot(max(1, len(charts)), 1, number)
        axes.set_title(_plain(name), fontsize=10)
        for index, (label, series) in enumerate(curves):
            points = series.points
            mark = "o" if len(points) == 1 else None
            xs, ys = [_drawable(x) for x, _ in points], [_drawable(y) for _, y in points]
            line = axes.plot(xs, ys, marker=mark, linewidth=1.4)[0]
            line.set_color(_PALETTE[index % len(_PALETTE)])
            line.set_label(_plain(label) if not label.startswith("_") else f" {_plain(label)}")
        axes.set_xlabel(_plain(curves[0][1].name.axis))
        axes.grid(visible=True, alpha=0.3)
        axes.legend(fontsize=8)
    figure.savefig(path, dpi=110, format="png")


def _drawable(value: float) -> float:
    """Return the nearest value that matplotlib can place on an axis."""
    return max(-1e300, min(1e300, value))


def _plain(text: str) -> str:
    """Escape dollar signs: matplotlib reads text between them as a formula."""
    return text.replace("$", r"\$")
