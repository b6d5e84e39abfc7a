"""Show the progress of a transfer: a bar on a terminal, otherwise a line from time to time."""

from __future__ import annotations

import re
import shutil
import sys

from ffdl_batch.domain.data.staging_protocol import Done, Line, Note, Progress, Retry
from ffdl_batch.domain.number_text import counted, size_text
from ffdl_batch.exit_handling import complain
from ffdl_batch.output import echo_styled

BAR_EACH_S, LINE_EACH_S = 0.25, 10.0
_BAR = 24
_FIGURE = re.compile(r"\b[0-9]{4,}\b")
"""Matches what differs between failures with one cause: a number of bytes, or an address."""


class Meter:
    """Shows the lines of a transfer, unless `quiet`. Use it as a context manager: the bar is removed at the end."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._quiet = quiet
        self._bar = sys.stderr.isatty() and not quiet
        self._drawn = False
        self._again: dict[str, int] = {}

    @property
    def each_s(self) -> float:
        """Return the interval of progress reports."""
        return BAR_EACH_S if self._bar else LINE_EACH_S

    def __enter__(self) -> Meter:
        return self

    def __exit__(self, *_: object) -> None:
        self._wipe()
        self._print_again()

    def show(self, line: Line) -> None:
        """Show one line."""
        if self._quiet:
            return
        if isinstance(line, Progress):
            self._show(line)
        elif isinstance(line, Note):
            self._print(line.why)
        elif isinstance(line, Retry):
            self._retry(line)

    def _retry(self, line: Retry) -> None:
        """Print each cause once. Its repetitions are counted and printed with the progress: if the store fails, all
        parallel requests fail."""
        cause = _FIGURE.sub("…", line.cause)
        if cause in self._again:
            self._again[cause] += 1
            return
        if cause:
            self._again[cause] = 0
        self._print(f"{line.why}; again in {line.in_s:.0f} s" if line.in_s >= 1 else line.why)

    def _print_again(self) -> None:
        for cause, times in self._again.items():
            if times:
                self._print(f"{cause}: {counted(times, 'more time')}")
                self._again[cause] = 0

    def _show(self, line: Progress) -> None:
        if self._bar:
            width = shutil.get_terminal_size().columns
            echo_styled(f"\r{draw_bar(line)[: width - 1]:<{max(0, width - 1)}}", nl=False, err=True)
            self._drawn = True
        elif line.files < line.files_total or line.bytes < line.bytes_total:
            complain(rate_line(line))
            self._print_again()

    def _print(self, text: str) -> None:
        self._wipe()
        complain(text)

    def _wipe(self) -> None:
        if self._drawn:
            echo_styled("\r\x1b[K", nl=False, err=True)
            self._drawn = False


def draw_bar(line: Progress) -> str:
    """Return ``[######......]  52% 1.2 GiB of 2.3 GiB, 12 of 30 files, 110 MiB/s, 10 s left``."""
    share = _share(line)
    filled = round(_BAR * share)
    return f"[{'#' * filled}{'.' * (_BAR - filled)}] {int(100 * share):3d}% {rate_line(line)}"


def rate_line(line: Progress) -> str:
    """Return ``1.2 GiB of 2.3 GiB, 12 of 30 files, 110 MiB/s, 10 s left``."""
    size = f"{size_text(line.bytes)} of {size_text(line.bytes_total)}"
    text = f"{size}, {line.files} of {counted(line.files_total, 'file')}, {size_text(line.rate)}/s"
    return text if line.left_s is None else f"{text}, {format_span(line.left_s)} left"


def describe_done(done: Done, verb: str) -> str:
    """Return ``30 files stored in 21 s (2.3 GiB moved, 12 existed)``."""
    moved = f"{size_text(done.bytes)} moved" + (f", {done.kept} existed" if done.kept else "")
    skipped = f", {done.skipped} left out" if done.skipped else ""
    return f"{counted(done.files, 'file')} {verb} in {format_span(done.seconds)} ({moved}{skipped})"


def format_span(seconds: float) -> str:
    """Return ``9.5 s``, ``70 s``, ``12 min``, ``3 h 20 min``."""
    if seconds < 120:
        return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


def _share(line: Progress) -> float:
    if line.bytes_total > 0:
        return min(1.0, max(0.0, line.bytes / line.bytes_total))
    return min(1.0, line.files / line.files_total) if line.files_total else 0.0
