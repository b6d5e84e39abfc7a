"""Find where the last matching lines of a log begin, by searching windows from its end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ffdl_batch.domain.job.log_text import Grep, LogText
from ffdl_batch.services.logs.line_search import Match, found_in
from ffdl_batch.services.logs.log_reader import LogReader

WINDOW, LARGEST_WINDOW = 1024**2, 8 * 1024**2
"""The first window is small, because the last lines may be near. Each window is twice as large as the one before."""

NEAR = 256 * 1024
Window = tuple[int, int]
"""A range of positions, without its end."""


class Since:
    """Leaves out lines before a time. A line without a time has that of the line before it."""

    def __init__(self, since: float | None) -> None:
        self._since, self._clock = since, 0.0

    @property
    def is_open(self) -> bool:
        """Return whether all following lines are shown."""
        return self._since is None or self._clock >= self._since

    def is_late(self, text: LogText) -> bool:
        """Return whether the text is shown. Call it in the order of the log."""
        self._clock = max(self._clock, text.at or 0.0)
        return self.is_open

    def cut(self, texts: Iterable[LogText]) -> Iterator[LogText]:
        """Yield the texts that are late enough."""
        return iter(texts) if self._since is None else (text for text in texts if self.is_late(text))


@dataclass(frozen=True, slots=True)
class Found:
    """Matching lines are shown from `begin` on. They and their neighbours are in `windows`, and after `last`. `end` is
    where the log ended during the search."""

    begin: int
    windows: Sequence[Window]
    last: int
    end: int

    def texts(self, reader: LogReader) -> Iterator[LogText]:
        """Yield the lines in the windows. The reader continues after them."""
        for window in self.windows:
            yield from _between(reader, window, numbered=True)
        reader.go_to(self.last)

    def texts_until_then(self, reader: LogReader) -> Iterator[LogText]:
        """Yield the lines up to the end at the time of the search. Lines that came later would exceed the requested
        number."""
        for window in (*self.windows, (self.last, self.end)):
            yield from _between(reader, window, numbered=True)


def find_tail(reader: LogReader, since: Since, grep: Grep, match: Match, tail: int, *, ended: bool) -> Found:
    """Find the last `tail` matching lines after the reader's position. A last line without a newline counts if the log
    has `ended`. Raises Refused.

    Only positions are kept. What is before the lines is not read, and what is between them is not read twice, unless
    neighbours are wanted.
    """
    low = _first_late(reader, since, ended=ended)
    end = reader.end()
    last = max(low, reader.line_start(end))
    begin = high = end = end if ended else last
    windows: list[Window] = []
    size = WINDOW
    while tail > 0 and low < high:
        window = (max(low, reader.line_start(max(low, high - size))), high)
        offsets, found = _matching(reader, window, grep, match)
        if offsets:
            begin = offsets[-tail:][0]
        windows = [*found, *windows]
        tail -= len(offsets)
        high, size = window[0], min(2 * size, LARGEST_WINDOW)
    start = max(low, reader.line_start(begin, grep.before + 1))
    if grep.before or grep.after:
        return Found(begin, (), start, end)
    while windows and windows[-1][1] >= last - NEAR:
        last = windows.pop()[0]
    windows = [(max(start, first), stop) for first, stop in windows if stop > start]
    return Found(begin, windows, max(start, last), end)


def _first_late(reader: LogReader, since: Since, *, ended: bool) -> int:
    """Return where the first shown line begins, from the reader's position on."""
    place = reader.next
    if since.is_open:
        return place
    for text in reader.texts(ended=ended):
        if since.is_late(text):
            return text.offset
        place = text.end
    return place


def _matching(reader: LogReader, window: Window, grep: Grep, match: Match) -> tuple[list[int], list[Window]]:
    """Return where matching lines begin, and the ranges that have them, joined if they are near."""
    offsets: list[int] = []
    found: list[Window] = []
    for text in _between(reader, window, numbered=False):
        places = found_in(text, grep, match)
        if places:
            begins = [line.offset for line in text.lines()]
            offsets += [begins[place] for place in places]
            start = found.pop()[0] if found and found[-1][1] >= text.offset - NEAR else text.offset
            found.append((start, text.end))
    return offsets, found


def _between(reader: LogReader, window: Window, *, numbered: bool) -> Iterator[LogText]:
    """Yield the lines that begin in the window."""
    start, end = window
    reader.go_to(start, numbered=numbered)
    for text in reader.texts(ended=True):
        if text.offset >= end:
            break
        if text.end > end and text.count > 1:
            yield from text.cuts([(0, sum(line.offset < end for line in text.lines()))])
        else:
            yield text
