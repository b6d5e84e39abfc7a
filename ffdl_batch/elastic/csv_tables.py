"""Read CSV tables of users: check each cell, and report errors with file, line, cause and cure."""

from __future__ import annotations

import csv
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path

from ffdl_batch.domain.terminal_text import quoted
from ffdl_batch.host.fast_dataclass import dataclass

MOST_BYTES = 256 * 2**20
MOST_ROWS = 200_000
LONGEST_CELL = 1024
MOST_COLUMNS = 256


class DamagedTable(ValueError):
    """A table cannot be used. The message names the file, the line, the cause and the cure."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a table."""

    path: Path
    line: int
    cells: Mapping[str, str]

    def text(self, column: str) -> str:
        """Return a cell that is not empty. Raises DamagedTable."""
        if not self.cells[column]:
            raise self.error(f"{column} is empty", "write a value")
        return self.cells[column]

    def number(self, column: str, least: float, most: float) -> float:
        """Return a number in the range, both ends included. Raises DamagedTable."""
        try:
            value = float(self.text(column))
        except ValueError:
            value = math.nan
        if not least <= value <= most:
            raise self._wrong(column, f"a number from {least:g} to {most:g}")
        return value

    def whole(self, column: str, least: int, most: int) -> int:
        """Return a whole number in the range, both ends included. Raises DamagedTable."""
        text = self.text(column)
        if not text.isascii() or not text.isdigit() or len(text) > 18 or not least <= int(text) <= most:
            raise self._wrong(column, f"a whole number from {least} to {most}")
        return int(text)

    def moment_s(self, column: str) -> float:
        """Return the seconds since the epoch of a time such as 2026-11-30 17:05:00; UTC without an offset."""
        try:
            moment = datetime.fromisoformat(self.text(column))
            if moment.tzinfo is None:
                moment = datetime.fromisoformat(f"{moment.isoformat()}+00:00")
            return moment.timestamp()
        except (ValueError, OverflowError):
            raise self._wrong(column, "a time such as 2026-11-30 17:05:00") from None

    def error(self, cause: str, cure: str) -> DamagedTable:
        """Return the error for this line."""
        return DamagedTable(f"{self.path}, line {self.line}: {cause}; {cure}")

    def _wrong(self, column: str, wanted: str) -> DamagedTable:
        return self.error(f"{column} is {quoted(self.cells[column])}", f"write {wanted}")


def read_header(path: Path) -> tuple[str, ...]:
    """Return the names of the columns. Raises DamagedTable and OSError."""
    header = next(_lines(path), (0, []))[1]
    if not any(header):
        raise DamagedTable(f"{path} has no header; the first line must name the columns")
    if len(header) > MOST_COLUMNS or any(len(name) > LONGEST_CELL for name in header):
        raise DamagedTable(f"{path}, line 1: not a CSV header; name at most {MOST_COLUMNS} columns")
    if twice := sorted({name for name in header if name and header.count(name) > 1}):
        raise DamagedTable(f"{path}, line 1: column {quoted(twice[0])} occurs twice; remove one of them")
    return tuple(header)


def read_rows(path: Path, columns: Collection[str]) -> Iterator[Row]:
    """Yield the lines of a table that must have these columns. Raises DamagedTable and OSError."""
    header = read_header(path)
    if missing := [name for name in columns if name not in header]:
        if separator := next((one for one in (";", "\t") if one in header[0]), ""):
            shown = "tabs" if separator == "\t" else quoted(separator)
            raise DamagedTable(f"{path}, line 1: the cells are separated by {shown}; separate them by commas")
        raise DamagedTable(
            f"{path}, line 1: column {quoted(missing[0])} is missing; the header must have {', '.join(columns)}"
        )
    lines = _lines(path)
    next(lines)
    count = 0
    for line, cells in lines:
        count += 1
        row = Row(path, line, dict(zip(header, cells, strict=False)))
        if len(cells) != len(header):
            raise row.error(f"{len(cells)} cells, but the header has {len(header)}", "complete or remove the line")
        if any(len(cell) > LONGEST_CELL for cell in cells):
            raise row.error(f"a cell has more than {LONGEST_CELL} characters", "close the quotation mark before it")
        if count > MOST_ROWS:
            raise row.error(f"more than {MOST_ROWS} lines", "split the table")
        yield row
    if not count:
        raise DamagedTable(f"{path} has a header and no lines below it; add at least one")


def _lines(path: Path) -> Iterator[tuple[int, Sequence[str]]]:
    """Yield the number and the cells of each line that is not empty. Cells have no spaces around them."""
    if path.exists() and not path.is_file():
        raise DamagedTable(f"{path} is a pipe or device, but tables are read twice; write it to a file first")
    if (size := path.stat().st_size) > MOST_BYTES:
        raise DamagedTable(f"{path} has {size} bytes (maximum: {MOST_BYTES}); split the table")
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader, done = csv.reader(file, strict=True), 0
        try:
            for cells in reader:
                if cells:
                    yield done + 1, [cell.strip() for cell in cells]
                done = reader.line_num
        except UnicodeDecodeError:
            raise DamagedTable(f"{path} is not UTF-8 text; save it as CSV in UTF-8") from None
        except csv.Error as error:
            if str(error) == "unexpected end of data":
                raise DamagedTable(f"{path}, line {done + 1}: a quotation mark is not closed; close it") from None
            raise DamagedTable(f"{path}, line {done + 1}: {error}; save the table as CSV again") from None
