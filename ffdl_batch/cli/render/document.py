"""A report as a value: sections with sentences, tables and bars. What renders it knows no report, and the other way."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import IO

from ffdl_batch.domain.terminal_text import printable

Cell = str | float | None
"""Text, a number, or None: nothing is known."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column. `digits` None: it is text; else numbers with so many digits behind the point."""

    title: str
    digits: int | None = None


@dataclass(frozen=True, slots=True)
class Table:
    """Rows below a title ("" = none); `note` stands below them."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str = ""


@dataclass(frozen=True, slots=True)
class Series:
    """One set of bars: a value for each label, None where there is none."""

    name: str
    values: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class Bars:
    """A chart: for each label one bar of each series. Only what can draw shows it; tables say the same in numbers."""

    title: str
    labels: tuple[str, ...]
    series: tuple[Series, ...]
    unit: str = ""


@dataclass(frozen=True, slots=True)
class Section:
    """A part of a report; a section without any of these is left out."""

    title: str
    sentences: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()
    charts: tuple[Bars, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to be shown."""
        return not (self.sentences or any(table.rows for table in self.tables) or any(c.labels for c in self.charts))


@dataclass(frozen=True, slots=True)
class Document:
    """A report. `about` are the sentences below its title: subject, period and author."""

    title: str
    about: tuple[str, ...]
    sections: tuple[Section, ...]

    @property
    def shown(self) -> tuple[Section, ...]:
        """The sections that have something."""
        return tuple(section for section in self.sections if not section.is_empty)


def cell_text(column: Column, cell: Cell) -> str:
    """The cell for a person."""
    if cell is None:
        return "-"
    return cell if isinstance(cell, str) else f"{cell:.{column.digits or 0}f}"


_MARKED = re.compile(r"([\\`*_\[\]<>|#~&])")
_FORMULA = tuple("=+-@\t\r")


def text_lines(document: Document) -> Iterator[str]:
    """The report for a terminal or a mail. Numbers stand right, below each other."""
    yield document.title
    yield "=" * len(document.title)
    yield from (printable(sentence) for sentence in document.about)
    for section in document.shown:
        yield ""
        yield section.title
        yield "-" * len(section.title)
        yield from (printable(sentence) for sentence in section.sentences)
        said = bool(section.sentences)
        for table in section.tables:
            if table.rows:
                if said:
                    yield ""
                yield from _text_table(table)
                said = True


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
    """The report as GitHub-flavoured Markdown."""
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
    """Text that Markdown shows as it is, on one line."""
    return _MARKED.sub(r"\\\1", _in_line(text))


def write_csv(file: IO[str], columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A header, then the rows (RFC 4180, lines end with LF). Numbers as they are, nothing for None. Text that a
    spreadsheet would take for a formula gets an apostrophe before it."""
    out = csv.writer(file, lineterminator="\n")
    out.writerow(columns)
    out.writerows([csv_cell(cell) for cell in row] for row in rows)


def csv_cell(cell: object) -> object:
    """Return the cell as it is written."""
    if not isinstance(cell, str) or not cell.startswith(_FORMULA):
        return cell
    try:
        float(cell)
    except ValueError:
        return f"'{cell}"
    return cell  # a number in letters is no formula


def text_column(title: str) -> Column:
    """A column of text."""
    return Column(title)


def number_column(title: str, digits: int = 0) -> Column:
    """A column of numbers."""
    return Column(title, digits)


def table_of(title: str, columns: Sequence[Column], rows: Iterable[Sequence[Cell]], note: str = "") -> Table:
    """A table of whatever sequences."""
    return Table(title, tuple(columns), tuple(tuple(row) for row in rows), note)
