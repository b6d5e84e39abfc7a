"""Format times, tables and JSON for all commands, and read moments and time spans."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import IO

import click

from ffdl_batch.domain.codec import to_plain
from ffdl_batch.domain.job.views import SCHEMA
from ffdl_batch.domain.terminal_text import json_text, printable, quoted
from ffdl_batch.output import echo_styled

_COLOURS = {
    "COMPLETED": "green",
    "FAILED": "red",
    "CANCELLED": "yellow",
    "HALTED": "yellow",
    "PROCESSING": "cyan",
    "DOWNLOADING": "cyan",
    "STORING": "cyan",
}
_AGO = re.compile(
    r"(?:(\d{1,9})w)?(?:(\d{1,9})d)?(?:(\d{1,9})h)?(?:(\d{1,9})m(?:in)?)?(?:(\d{1,9})s)?(?:\s*ago)?", re.ASCII
)
_UNITS_S = (604800, 86400, 3600, 60, 1)
_MILLISECONDS_FROM = 10**11
_LABEL = 20


def print_json(fields: Mapping[str, object], file: IO[str] | None = None) -> None:
    """Print a JSON document on one line, beginning with the version of the schema. `file` None: standard output."""
    plain = {"schema": SCHEMA, **{key: to_plain(value) for key, value in fields.items()}}
    click.echo(json_text(plain), file=file)


def is_colourful() -> bool:
    """Return whether output has colours: on a terminal, unless NO_COLOR is set (no-color.org)."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def terminal_width() -> int | None:
    """Return the number of columns of the terminal; None if output goes to no terminal."""
    if not sys.stdout.isatty():
        return None
    import shutil

    return shutil.get_terminal_size().columns


def paint_state(state: str, text: str | None = None) -> str:
    """Return the state, or `text`, in the colour of the state."""
    shown = state if text is None else text
    return click.style(shown, fg=_COLOURS.get(state)) if is_colourful() and state in _COLOURS else shown


def format_time(at: float | None) -> str:
    """Return the local time as squeue prints it; N/A for None."""
    return "N/A" if at is None else time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(at))


def format_elapsed(seconds: float) -> str:
    """Return a duration as squeue prints it: [[days-]hours:]minutes:seconds."""
    whole = max(0, int(seconds))
    days, hours, rest = whole // 86400, whole // 3600 % 24, f"{whole % 60:02d}"
    minutes = whole // 60 % 60
    if days:
        return f"{days}-{hours:02d}:{minutes:02d}:{rest}"
    return f"{hours}:{minutes:02d}:{rest}" if hours else f"{minutes}:{rest}"


def format_number(number: float) -> str:
    """Return 4 for 4.0, 0.5 for 0.5."""
    return f"{number:g}"


def print_line(label: str, value: str, source: str = "", *, state: str = "") -> None:
    """Print a labelled value, in the colour of `state` if one is given. Print nothing if there is no value. Further
    lines of a value are indented, so that they do not look like labels."""
    if value:
        shown = printable(value).replace("\n", "\n" + " " * (_LABEL + 1))
        shown = paint_state(state, shown) if state else shown
        where = f"  [{printable(source, one_line=True)}]" if source else ""
        echo_styled(f"{label + ':' if label else '':<{_LABEL}} {shown}{where}")


def print_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    header: bool = True,
    width: int | None = None,
    widest: int | None = None,
) -> None:
    """Print left-aligned columns, two blanks apart. The last column is cut at `width`. A cell that is longer than
    `widest` is printed in full, without making its column wider."""
    cells = [[printable(cell, one_line=True) for cell in row] for row in rows]
    lines = ([list(columns)] if header else []) + cells
    widths = [max((len(line[i]) for line in lines), default=0) for i in range(len(columns))]
    if widest is not None:
        widths = [min(size, widest) for size in widths]
    if width is not None:
        widths[-1] = max(len(columns[-1]), width - sum(size + 2 for size in widths[:-1]))
        lines = [[*line[:-1], line[-1][: widths[-1]]] for line in lines]
    state_column = columns.index("STATE") if "STATE" in columns else -1
    for number, line in enumerate(lines):
        padded = [cell.ljust(width) for cell, width in zip(line, widths, strict=True)]
        if state_column >= 0 and (number or not header):
            padded[state_column] = paint_state(line[state_column], padded[state_column])
        echo_styled("  ".join(padded).rstrip())


def parse_moment(text: str, now: float) -> float:
    """Return a moment in the past, in seconds since the epoch.

    `text` is ``2h30m`` or ``5m ago`` (time before now), ``2027-01-20`` or ``2027-01-20T12:34[:56]`` (local time unless
    it has a zone), ``now``, ``today``, ``yesterday``, or seconds or milliseconds since the epoch. Raises ValueError.
    """
    word = text.strip().lower()
    midnight = datetime.fromtimestamp(now).replace(hour=0, minute=0, second=0, microsecond=0).timestamp()
    named = {"now": now, "today": midnight, "yesterday": midnight - 86400}
    if word in named:
        return named[word]
    if re.fullmatch(r"\d{9,15}(\.\d+)?", word):
        number = float(word)
        return number / 1000 if number >= _MILLISECONDS_FROM else number
    ago = _AGO.fullmatch(word)
    if ago and any(ago.groups()):
        return now - _seconds(ago)
    try:
        return datetime.fromisoformat(text.strip()).timestamp()
    except ValueError:
        raise ValueError(f"{quoted(text)} is not a time; use for example 30m, 2027-01-20T12:34 or yesterday") from None


def _seconds(span: re.Match[str]) -> int:
    return sum(int(n or 0) * unit for n, unit in zip(span.groups(), _UNITS_S, strict=True))


def read_span(ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
    """Read a time span: seconds, or 90s, 10m, 2h30m. Callback of an option."""
    if value is None:
        return None
    word = value.strip().lower()
    if re.fullmatch(r"\d{1,9}(\.\d{1,9})?", word, re.ASCII):
        return float(word)
    span = _AGO.fullmatch(word)
    if span is None or not any(span.groups()) or word.endswith("ago"):
        raise click.BadParameter(f"{quoted(value)} is not a time span; use for example 90s, 10m or 2h30m", ctx, param)
    return float(_seconds(span))


def read_moment(ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
    """Read a moment. Callback of an option."""
    if value is None:
        return None
    try:
        return parse_moment(value, time.time())
    except ValueError as error:
        raise click.BadParameter(str(error), ctx, param) from None
