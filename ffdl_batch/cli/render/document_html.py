"""Render a report as one HTML page, with a style for printing. It has no script and loads no other file."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import IO

from ffdl_batch.cli.render.document import Bars, Document, Table, cell_text, markdown_lines, text_lines
from ffdl_batch.domain.terminal_text import printable

_PALETTE = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#56b4e9")
"""Colours that people who see few colours can distinguish (Okabe and Ito)."""
_WIDTH, _LABELS, _VALUES = 720, 190, 70
_BAR, _GAP, _TITLE = 12, 8, 22
_LONGEST_LABEL = 30
_SHORT = 30
"""Maximum length of a cell that is broken only between words: a time, a job's id, the name of a kind, some nodes."""
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_STYLE = (
    "body{font:14px/1.45 system-ui,sans-serif;margin:2em auto;max-width:88em;padding:0 1em;color:#222;background:#fff}"
    "h1{font-size:22px}h2{font-size:17px;margin:1.8em 0 .4em;border-bottom:1px solid #ccc}h3{font-size:14px;"
    "margin:1.2em 0 .3em}p{margin:.3em 0;max-width:60em}table{border-collapse:collapse;margin:.4em 0 1em}"
    "th,td{padding:.15em .8em;border-bottom:1px solid #ddd;text-align:left;vertical-align:top;overflow-wrap:anywhere}"
    "th{border-bottom:2px solid #888}th,td.n,.s{white-space:nowrap}"
    "td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}.note{color:#555;font-size:12px}"
    "svg{max-width:100%;height:auto}svg text{font:11px system-ui,sans-serif;fill:#333}"
    "@media print{body{font-size:10pt;margin:0;max-width:none}.s{white-space:normal}h2{break-after:avoid}"
    "table,svg,figure{break-inside:avoid}thead{display:table-header-group}"
    "*{print-color-adjust:exact;-webkit-print-color-adjust:exact}@page{margin:15mm}}"
)


def html_page(document: Document, drawing: str = "") -> str:
    """Return the page, with an SVG drawing at its end if there is one."""
    figure = [f"<figure>{drawing}</figure>"] if drawing else []
    return "\n".join([*_head(document.title), *_body(document), *figure, "</body>", "</html>", ""])


def _head(title: str) -> Iterator[str]:
    yield "<!doctype html>"
    yield '<html lang="en">'
    yield f'<head><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{escape(_POLICY)}">'
    yield '<meta name="viewport" content="width=device-width">'
    yield f"<title>{_shown(title)}</title><style>{_STYLE}</style></head>"


def _body(document: Document) -> Iterator[str]:
    yield "<body>"
    yield f"<h1>{_shown(document.title)}</h1>"
    yield from (f"<p>{_shown(sentence)}</p>" for sentence in document.about)
    for section in document.shown:
        yield f"<section><h2>{_shown(section.title)}</h2>"
        yield from (f"<p>{_shown(sentence)}</p>" for sentence in section.sentences)
        for chart in section.charts:
            if chart.labels:
                yield f"<figure>{svg(chart)}</figure>"
        for table in section.tables:
            if table.rows:
                yield from _table(table)
        yield "</section>"


def _table(table: Table) -> Iterator[str]:
    if table.title:
        yield f"<h3>{_shown(table.title)}</h3>"
    kinds = ["" if column.digits is None else ' class="n"' for column in table.columns]
    cells = (f"<th{kind}>{_shown(column.title)}</th>" for kind, column in zip(kinds, table.columns, strict=True))
    yield f"<table><thead><tr>{''.join(cells)}</tr></thead><tbody>"
    for row in table.rows:
        texts = map(cell_text, table.columns, row)
        cells = (
            f"<td{kind}>{_shown(text)}</td>" if kind else _text_cell(text)
            for kind, text in zip(kinds, texts, strict=True)
        )
        yield f"<tr>{''.join(cells)}</tr>"
    yield "</tbody></table>"
    if table.note:
        yield f'<p class="note">{_shown(table.note)}</p>'


def _text_cell(text: str) -> str:
    if len(text) > _SHORT:
        return f"<td>{_shown(text)}</td>"
    words = [_shown(word) for word in text.split(" ")]
    if len(words) == 1:
        return f'<td class="s">{words[0]}</td>'
    return "<td>" + " ".join(f'<span class="s">{word}</span>' for word in words) + "</td>"


def svg(chart: Bars) -> str:
    """Return a chart with horizontal bars: for each label one of each series."""
    top = _TITLE * (2 if len(chart.series) > 1 else 1)
    step = _BAR * len(chart.series) + _GAP
    height = top + step * len(chart.labels) + 4
    most = max((value for one in chart.series for value in one.values if value is not None), default=0.0)
    room = _WIDTH - _LABELS - _VALUES
    parts = [
        f'<svg viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}" role="img" '
        f'aria-label="{_shown(chart.title)}">',
        f'<text x="0" y="14" font-weight="bold">{_shown(_with_unit(chart))}</text>',
        *_legend(chart),
    ]
    for row, label in enumerate(chart.labels):
        y = top + row * step
        cut = label if len(label) <= _LONGEST_LABEL else f"{label[: _LONGEST_LABEL - 1]}…"
        middle = y + _BAR * len(chart.series) / 2 + 4
        parts.append(f'<text x="{_LABELS - 6}" y="{middle:.0f}" text-anchor="end">{_shown(cut)}</text>')
        for at, series in enumerate(chart.series):
            value = series.values[row]
            if value is None:
                continue
            wide = room * value / most if most > 0 else 0.0
            bar = f'x="{_LABELS}" y="{y + at * _BAR}" width="{wide:.1f}" height="{_BAR - 2}"'
            parts.append(f'<rect {bar} fill="{_PALETTE[at % len(_PALETTE)]}"/>')
            parts.append(f'<text x="{_LABELS + wide + 4:.1f}" y="{y + at * _BAR + 9}">{value:.4g}</text>')
    return "".join([*parts, "</svg>"])


def _legend(chart: Bars) -> Iterator[str]:
    if len(chart.series) < 2:
        return
    for at, series in enumerate(chart.series):
        x = _LABELS + at * 190
        yield f'<rect x="{x}" y="{_TITLE + 2}" width="10" height="10" fill="{_PALETTE[at % len(_PALETTE)]}"/>'
        yield f'<text x="{x + 14}" y="{_TITLE + 11}">{_shown(series.name)}</text>'


def _with_unit(chart: Bars) -> str:
    return f"{chart.title} ({chart.unit})" if chart.unit else chart.title


def _shown(text: str) -> str:
    """Escape text for HTML, including control characters."""
    return escape(printable(text))


def write_document(document: Document, form: str, file: IO[str]) -> None:
    """Write the report. `form` is text, markdown or html."""
    if form == "html":
        file.write(html_page(document))
        return
    for line in markdown_lines(document) if form == "markdown" else text_lines(document):
        file.write(f"{line}\n")
