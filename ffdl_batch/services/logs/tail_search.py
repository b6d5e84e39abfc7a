"""Where in a log the last lines begin that match a pattern: looked for from its end, a window after the other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ffdl_batch.domain.job.log_text import Grep, LogText
from ffdl_batch.services.logs.line_search import Match, found_in
from ffdl_batch.services.logs.log_reader import LogReader

WINDOW, LARGEST_WINDOW = 1024**2, 8 * 1024**2
"""The first one is small, for the last lines may be near; each is twice as large as the one before."""

NEAR = 256 * 1024
Window = tuple[int, int]
"""From a position to before another."""


class Since:
    """Leaves out lines of before a time. One without a time came after the one before it."""

    def __init__(self, since: float | None) -> None:
        self._since, self._clock = since, 0.0

    @property
    def is_open(self) -> bool:
        """Whether all is shown that comes."""
        return self._since is None or self._clock >= self._since

    def is_late(self, text: LogText) -> bool:
        """Whether it is shown; to be asked in the order of the log."""
        self._clock = max(self._clock, text.at or 0.0)
        return self.is_open

    def cut(self, texts: Iterable[LogText]) -> Iterator[LogText]:
        """Those that are late enough."""
        return iter(texts) if self._since is None else (text for text in texts if self.is_late(text))


@dataclass(frozen=True, slots=True)
class Found:
    """Lines that match are shown from `begin` on. They and their neighbours lie in `windows`, and from `last` on. `end`
    is where the log ended when they were looked for."""

    begin: int
    windows: Sequence[Window]
    last: int
    end: int

    def texts(self, reader: LogReader) -> Iterator[LogText]:
        """What lies in the windows; the reader goes on behind them."""
        for window in self.windows:
            yield from _between(reader, window, numbered=True)
        reader.go_to(self.last)

    def texts_until_then(self, reader: LogReader) -> Iterator[LogText]:
        """All of it, and nothing that came after the look: of a learner that prints that would be more lines than were
        asked for."""
        for window in (*self.windows, (self.last, self.end)):
            yield from _between(reader, window, numbered=True)


def find_tail(reader: LogReader, since: Since, grep: Grep, match: Match, tail: int, *, ended: bool) -> Found:
    """The last `tail` lines that match, of those from the reader's place on. A last line without a newline is one when
    the log `ended`. Raises Refused.

    Nothing is kept but places, and nothing is read that lies before the lines, nor a second time what lies between
    them; but it is where neighbours are wanted.
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
    """Where the first line begins that is shown, from the reader's place on."""
    place = reader.next
    if since.is_open:
        return place
    for text in reader.texts(ended=ended):
        if since.is_late(text):
            return text.offset
        place = text.end
    return place


def _matching(reader: LogReader, window: Window, grep: Grep, match: Match) -> tuple[list[int], list[Window]]:
    """Where lines begin that match; and what has them in it, with what lies between them where that is little."""
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
    """The lines that begin in the window."""
    start, end = window
    reader.go_to(start, numbered=numbered)
    for text in reader.texts(ended=True):
        if text.offset >= end:
            break
        if text.end > end and text.count > 1:
            yield from text.cuts([(0, sum(line.offset < end for line in text.lines()))])
        else:
            yield text
