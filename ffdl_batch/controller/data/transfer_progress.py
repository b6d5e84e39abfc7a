"""Turn the staging program's lines into text for users, and write it into logs, cells and events."""

from __future__ import annotations

import os
import sys
import time
from typing import Callable, Optional, Set

from ffdl_batch.attempt.event_journal import Journal
from ffdl_batch.attempt.file_writer import open_own, write_cell
from ffdl_batch.attempt.reader import size_of
from ffdl_batch.domain.data.staging_protocol import Cached, Done, Failed, Line, Note, Progress, Retry
from ffdl_batch.domain.number_text import counted, size_text
from ffdl_batch.domain.outcome.controller_events import EventKind

MOST_NOTES = 1000
MOST_EVENTS = 9


def text_of(line: Line) -> str:
    """Return a line as text for users.

    Return "" for a failure, which is reported elsewhere, and for progress when everything is complete.
    """
    if isinstance(line, Progress):
        return _progress(line) if line.files < line.files_total or line.bytes < line.bytes_total else ""
    if isinstance(line, Retry):
        return f"{line.why}; tried again" + (f" in {line.in_s:.0f} s" if line.in_s >= 1 else "")
    if isinstance(line, Note):
        return line.why
    if isinstance(line, Done):
        there = f", {line.kept} of them {'was' if line.kept == 1 else 'were'} there" if line.kept else ""
        out = f", {line.skipped} left out" if line.skipped else ""
        later = f", {line.later} written still" if line.later else ""
        rate = f", {size_text(line.bytes / line.seconds)}/s" if line.seconds > 0 and line.bytes else ""
        return (
            f"{counted(line.files, 'file')}{there}{out}{later}, {size_text(line.bytes)} in {line.seconds:.0f} s{rate}"
        )
    if isinstance(line, Cached):
        return f"{size_text(line.bytes)} {'are kept in' if line.filled else 'come from'} the cache of this node"
    assert isinstance(line, Failed)
    return ""


def _progress(line: Progress) -> str:
    left = "" if line.left_s is None else f", {_time_text(line.left_s)} left"
    return (
        f"{line.files} of {counted(line.files_total, 'file')}, "
        f"{size_text(line.bytes)} of {size_text(line.bytes_total)}, {size_text(line.rate)}/s{left}"
    )


def _time_text(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


def into_log(log: str, marks: str, what: str) -> Callable[[Line], None]:
    """Return a function that appends lines to a learner's log before the learner runs, also a failure, which ends it.

    An error of the log is reported and ignored.
    """

    def report(line: Line) -> None:
        text = f"{line.code}: {line.message}" if isinstance(line, Failed) else text_of(line)
        if text:
            _append(log, marks, f"ffdl: {what}: {text}\n")

    return report


def _append(log: str, marks: str, text: str) -> None:
    try:
        descriptor = open_own(log, os.O_WRONLY | os.O_APPEND, 0o640)
        try:
            os.write(descriptor, text.encode("utf-8", "replace"))
        finally:
            os.close(descriptor)
        with os.fdopen(open_own(marks, os.O_WRONLY | os.O_APPEND), "a", encoding="ascii") as file:
            file.write(f"{time.time():.3f} {size_of(log)}\n")
    except OSError as error:
        sys.stderr.write(f"ffdl-controller: {error}\n")


def onto_errors(what: str) -> Callable[[Line], None]:
    """Return a function that writes lines to standard error, which is the log of the allocation."""
    last: "list[Optional[str]]" = [None]

    def report(line: Line) -> None:
        text = text_of(line)
        if text and text != last[0]:
            last[0] = text
            sys.stderr.write(f"ffdl-controller: {what}: {text}\n")

    return report


def into_journal(journal: Journal, report: Callable[[Line], None]) -> Callable[[str], None]:
    """Return a function that reports things that are not stored unchanged: an event, and `report`, once for each."""
    reported: "Set[str]" = set()

    def note(what: str) -> None:
        if what in reported or len(reported) > MOST_EVENTS:
            return
        reported.add(what)
        what = (
            what if len(reported) <= MOST_EVENTS else "more is not stored unchanged; the log of the allocation names it"
        )
        journal.append(EventKind.NOT_KEPT, message=what)
        report(Note(what))

    return note


def notes_once(report: Callable[[Line], None]) -> Callable[[Line], None]:
    """Return `report` without repeated notes: uploads while learners run have the same notes each time."""
    seen: "Set[str]" = set()

    def first(line: Line) -> None:
        if isinstance(line, Note):
            if line.why in seen:
                return
            if len(seen) < MOST_NOTES:
                seen.add(line.why)
        report(line)

    return first


def also_beside(cell: str, what: str, report: Callable[[Line], None]) -> Callable[[Line], None]:
    """Return `report` that also writes the progress into a cell, which is removed at the end.

    While nothing is transferred, the cell keeps the reason of the last retry. Nothing is written before the cell's
    directory exists.
    """
    trouble: "list[str]" = []

    def both(line: Line) -> None:
        report(line)
        text = text_of(line)
        if isinstance(line, Retry):
            trouble[:] = [text]
        elif not isinstance(line, Progress) or line.rate > 0:
            trouble.clear()
        try:
            if not isinstance(line, (Done, Failed)):
                shown = "; ".join(part for part in (text, *trouble) if part) if isinstance(line, Progress) else text
                show_moving(cell, what, shown)
            elif os.path.lexists(cell):
                os.unlink(cell)
        except OSError as error:
            sys.stderr.write(f"ffdl-controller: {error}\n")

    return both


def show_moving(cell: str, what: str, text: str) -> None:
    """Write the progress into the cell. An error is reported and ignored."""
    try:
        if text and os.path.isdir(os.path.dirname(cell)):
            write_cell(cell, {"what": what, "said": text, "at": time.time()})
    except OSError as error:
        sys.stderr.write(f"ffdl-controller: {error}\n")
