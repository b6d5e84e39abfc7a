"""A report as a value: sections with sentences, tables and bars. What renders it knows no report, and the other way."""

from __future__ import annotations

from dataclasses import dataclass

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
    """A report. `about` are the sentences below its title: of what, of when, by whom."""

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
