"""Charts as files: HTML with SVG in it, which needs nothing else, and PNG by matplotlib."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

import click

from ffdl_batch.cli.render.number_text import short
from ffdl_batch.domain.metrics.series import Series

_PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
"""Colours that people who see few colours can tell apart (Okabe and Ito)."""
_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP = 720, 300, 64, 28, 8
_STYLE = (
    "body{font:14px system-ui,sans-serif;margin:2em;color:#222;background:#fff}h2{font-size:15px;margin:1.5em 0 .3em}"
    "svg{border:1px solid #ddd;max-width:100%}.l{font-size:12px}.l i{display:inline-block;width:1.6em;height:3px;"
    "margin:0 .4em 0 1em;vertical-align:middle}text{font:11px system-ui,sans-serif;fill:#555}"
)
Titled = Mapping[str, Sequence[tuple[str, Series]]]
"""Charts by their title: curves with what each is called."""


def html(charts: Titled, title: str) -> str:
    """A page of its own: no script, nothing that is loaded from elsewhere."""
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
    x0, x1 = _span([x for x, _ in every])
    y0, y1 = _span([y for _, y in every])
    wide, high = _WIDTH - _LEFT - 8, _HEIGHT - _BOTTOM - _TOP
    parts = [f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" role="img">']
    for tick in range(5):
        y = _TOP + high * (1 - tick / 4)
        label = escape(short(y0 + (y1 - y0) * tick / 4, curves[0].name.unit))
        parts.append(f'<path d="M{_LEFT} {y:.1f}h{wide}" stroke="#eee"/>')
        parts.append(f'<text x="{_LEFT - 4}" y="{y + 4:.1f}" text-anchor="end">{label}</text>')
    for tick in range(5):
        x, label = _LEFT + wide * tick / 4, escape(short(x0 + (x1 - x0) * tick / 4))
        parts.append(f'<text x="{x:.1f}" y="{_HEIGHT - 10}" text-anchor="middle">{label}</text>')
    axis = escape(curves[0].name.axis)
    parts.append(f'<text x="{_WIDTH - 8}" y="{_HEIGHT - _BOTTOM - 4}" text-anchor="end">{axis}</text>')
    for index, series in enumerate(curves):
        dots = [
            f"{_LEFT + (x - x0) / (x1 - x0) * wide:.1f},{_TOP + high * (1 - (y - y0) / (y1 - y0)):.1f}"
            for x, y in series.points
        ]
        drawn = dots if len(dots) > 1 else dots * 2  # one point is a dot by its round end
        style = f'fill="none" stroke="{_PALETTE[index % len(_PALETTE)]}" stroke-width="1.8" stroke-linecap="round"'
        parts.append(f'<polyline points="{" ".join(drawn)}" {style}/>')
    return "".join(parts) + "</svg>"


def _span(values: Sequence[float]) -> tuple[float, float]:
    least, most = min(values), max(values)
    return (least, most) if most > least else (least - 0.5, most + 0.5)


def write_png(charts: Titled, title: str, path: Path) -> None:
    """One chart below the other. Raises UsageError where matplotlib is not installed."""
    logging.getLogger("matplotlib.font_manager").setLevel(logging.ERROR)  # the first picture takes a moment longer
    try:
        from matplotlib import rcdefaults
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise click.UsageError(
            "--png needs matplotlib; install ffdl-batch[plots], or write --html, which needs nothing"
        ) from None
    rcdefaults()  # otherwise a matplotlibrc in the working directory applies, and it can run programs (text.usetex)
    figure = Figure(figsize=(9, 3.2 * max(1, len(charts))), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(_plain(title))
    for number, (name, curves) in enumerate(charts.items(), 1):
        axes = figure.add_subplot(max(1, len(charts)), 1, number)
        axes.set_title(_plain(name), fontsize=10)
        for index, (label, series) in enumerate(curves):
            points = series.points
            mark = "o" if len(points) == 1 else None
            line = axes.plot([x for x, _ in points], [y for _, y in points], marker=mark, linewidth=1.4)[0]
            line.set_color(_PALETTE[index % len(_PALETTE)])
            line.set_label(_plain(label) if not label.startswith("_") else f" {_plain(label)}")
        axes.set_xlabel(_plain(curves[0][1].name.axis))
        axes.grid(visible=True, alpha=0.3)
        axes.legend(fontsize=8)
    figure.savefig(path, dpi=110, format="png")


def _plain(text: str) -> str:
    """No formula: matplotlib reads what stands between dollar signs as one."""
    return text.replace("$", r"\$")
