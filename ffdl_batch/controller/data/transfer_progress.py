"""What a person is told of data that move: lines of text, and where they go."""

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
    """One line for a person; "" for what is told elsewhere, for progress before anything is known, and where all is in
    place, which the end says, or what has come from the cache."""
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
    """Into a learner's log, before the learner runs: why it failed, too, for the log ends with that. A log that takes
    nothing stops nobody."""

    def tell(line: Line) -> None:
        text = f"{line.code}: {line.message}" if isinstance(line, Failed) else text_of(line)
        if text:
            _append(log, marks, f"ffdl: {what}: {text}\n")

    return tell


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
    """Onto standard error, which is the log of the allocation: retries and notes, and progress as it comes."""
    told: "list[Optional[str]]" = [None]

    def tell(line: Line) -> None:
        text = text_of(line)
        if text and text != told[0]:
            told[0] = text
            sys.stderr.write(f"ffdl-controller: {what}: {text}\n")

    return tell


def into_journal(journal: Journal, report: Callable[[Line], None]) -> Callable[[str], None]:
    """Return what reports something that is not stored as it is: as an event, and to `tell`, once for each sentence."""
    said: "Set[str]" = set()

    def note(what: str) -> None:
        if what in said or len(said) > MOST_EVENTS:
            return
        said.add(what)
        what = what if len(said) <= MOST_EVENTS else "more is not stored unchanged; the log of the allocation names it"
        journal.append(EventKind.NOT_KEPT, message=what)
        report(Note(what))

    return note


def notes_once(report: Callable[[Line], None]) -> Callable[[Line], None]:
    """As `tell`, but a note that came before is not told again: what is done each half minute has the same notes."""
    said: "Set[str]" = set()

    def first(line: Line) -> None:
        if isinstance(line, Note):
            if line.why in said:
                return
            if len(said) < MOST_NOTES:
                said.add(line.why)
        report(line)

    return first


def also_beside(cell: str, what: str, report: Callable[[Line], None]) -> Callable[[Line], None]:
    """As `tell`, and for whoever asks how far it is: into a cell, which is gone when it is over. While nothing moves
    the last retry stays in it, for it says why.

    Before the cell's directory is there nobody asks, and nothing is written."""
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
                said = "; ".join(part for part in (text, *trouble) if part) if isinstance(line, Progress) else text
                show_moving(cell, what, said)
            elif os.path.lexists(cell):
                os.unlink(cell)
        except OSError as error:
            sys.stderr.write(f"ffdl-controller: {error}\n")

    return both


def show_moving(cell: str, what: str, said: str) -> None:
    """Something for whoever asks. A cell that cannot be written stops nobody."""
    try:
        if said and os.path.isdir(os.path.dirname(cell)):
            write_cell(cell, {"what": what, "said": said, "at": time.time()})
    except OSError as error:
        sys.stderr.write(f"ffdl-controller: {error}\n")
