"""A report as a value: sections with sentences, tables and bars. Renders it as text, Markdown or CSV."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import IO

from ffdl_batch.domain.terminal_text import printable
from ffdl_batch.host.fast_dataclass import dataclass

Cell = str | float | None
"""Text, a number, or None for an unknown value."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column."""

    title: str
    digits: int | None = None
    """The decimal places of its numbers; None for text."""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows with a title ("" = none)."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str = ""
    """A sentence below the rows."""


@dataclass(frozen=True, slots=True)
class Series:
    """One set of bars: a value for each label, or None."""

    name: str
    values: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class Bars:
    """A chart: for each label one bar of each series. Only HTML shows it; tables have the same numbers."""

    title: str
    labels: tuple[str, ...]
    series: tuple[Series, ...]
    unit: str = ""


@dataclass(frozen=True, slots=True)
class Section:
    """A part of a report. An empty section is not shown."""

    title: str
    sentences: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()
    charts: tuple[Bars, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Return whether it has no sentences, rows and bars."""
        return not (self.sentences or any(table.rows for table in self.tables) or any(c.labels for c in self.charts))


@dataclass(frozen=True, slots=True)
class Document:
    """A report."""

    title: str
    about: tuple[str, ...]
    """The sentences below the title: subject, period and author."""
    sections: tuple[Section, ...]

    @property
    def shown(self) -> tuple[Section, ...]:
        """Return the sections that are not empty."""
        return tuple(section for section in self.sections if not section.is_empty)


def cell_text(column: Column, cell: Cell) -> str:
    """Return the text of a cell."""
    if cell is None:
        return "-"
    return cell if isinstance(cell, str) else f"{cell:.{column.digits or 0}f}"


_MARKED = re.compile(r"([\\`*_\[\]<>|#~&])")
_FORMULA = tuple("=+-@\t\r")


def text_lines(document: Document) -> Iterator[str]:
    """Yield the lines of the report for a terminal or a mail. Numbers are right-aligned."""
    yield document.title
    yield "=" * len(document.title)
    yield from (printable(sentence) for sentence in document.about)
    for section in document.shown:
        yield ""
        yield section.title
        yield "-" * len(section.title)
        yield from (printable(sentence) for sentence in section.sentences)
        needs_blank = bool(section.sentences)
        for table in section.tables:
            if table.rows:
                if needs_blank:
                    yield ""
                yield from _text_table(table)
                needs_blank = True


def _text_table(table: Table) -> Iterator[str]:
    if table.title:
        yield table.title
    rows = [[_in_line(cell_text(column, cell)) for column, cell in zip(table.columns, row, strict=True)]
            for row in table.rows]  # fmt: skip
    titles = [column.title for column in table.columns]
    widths = [max(len(line[at]) for line in [titles, *rows]) for at in range(len(titles))]
    for line in [titles, *rows]:
        cells = [
            cell.ljust(width) if column.digits is None else cell.rjust(width)
            for cell, width, column in zip(line, widths, table.columns, strict=True)
        ]
        yield "  ".join(cells).rstrip()
    if table.note:
        yield printable(table.note)


def _in_line(text: str) -> str:
    return printable(text).replace("\n", " ").replace("\t", " ")


def markdown_lines(document: Document) -> Iterator[str]:
    """Yield the lines of the report as GitHub-flavoured Markdown."""
    yield f"# {marked(document.title)}"
    yield ""
    yield from _paragraphs(document.about)
    for section in document.shown:
        yield f"## {marked(section.title)}"
        yield ""
        yield from _paragraphs(section.sentences)
        for table in section.tables:
            if table.rows:
                yield from _markdown_table(table)


def _paragraphs(sentences: Iterable[str]) -> Iterator[str]:
    for sentence in sentences:
        yield marked(sentence)
        yield ""


def _markdown_table(table: Table) -> Iterator[str]:
    if table.title:
        yield f"### {marked(table.title)}"
        yield ""
    yield _bar(marked(column.title) for column in table.columns)
    yield _bar("---" if column.digits is None else "---:" for column in table.columns)
    for row in table.rows:
        yield _bar(marked(cell_text(column, cell)) for column, cell in zip(table.columns, row, strict=True))
    yield ""
    if table.note:
        yield marked(table.note)
        yield ""


def _bar(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def marked(text: str) -> str:
    """Escape text for Markdown, on one line."""
    return _MARKED.sub(r"\\\1", _in_line(text))


def write_csv(file: IO[str], columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Write a header and the rows (RFC 4180, lines end with LF). None is an empty cell. Text that a spreadsheet would
    read as a formula gets an apostrophe before it."""
    out = csv.writer(file, lineterminator="\n")
    out.writerow(columns)
    out.writerows([csv_cell(cell) for cell in row] for row in rows)


def csv_cell(cell: object) -> object:
    """Return the value to write for a cell."""
    if not isinstance(cell, str) or not cell.startswith(_FORMULA):
        return cell
    try:
        float(cell)
    except ValueError:
        return f"'{cell}"
    return cell  # the text of a number is no formula


def text_column(title: str) -> Column:
    """Return a column of text."""
    return Column(title)


def number_column(title: str, digits: int = 0) -> Column:
    """Return a column of numbers."""
    return Column(title, digits)


def table_of(title: str, columns: Sequence[Column], rows: Iterable[Sequence[Cell]], note: str = "") -> Table:
    """Return a table of any sequences."""
    return Table(title, tuple(columns), tuple(tuple(row) for row in rows), note)
