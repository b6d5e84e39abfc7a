"""Select the lines of a log in which a pattern is found, and their neighbours, and find where the last ones begin."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from ffdl_batch.domain.job.log_text import Grep, LogText
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.services.logs.log_reader import LogReader
from ffdl_batch.services.logs.regex_process import HEAD, SIZE
from ffdl_batch.services.refusals import wrong_usage

MAX_PATTERN = 1000
MAX_CONTEXT = 1000
LIMIT_S = 2.0
"""Seconds of CPU time for the search of a text."""
_PROGRAM = Path(__file__).with_name("regex_process.py")

Match = Callable[[str], Sequence[int]]
"""Return the numbers of the matching lines of a text, from 0."""


def check(grep: Grep) -> None:
    """Refuse an invalid pattern. Raises Refused."""
    if len(grep.pattern) > MAX_PATTERN:
        raise wrong_usage(f"the pattern has {len(grep.pattern)} characters; {MAX_PATTERN} are possible")
    if not grep.is_text:
        try:
            re.compile(grep.pattern)
        except (re.error, RecursionError, OverflowError) as error:
            raise wrong_usage(f"{grep.pattern!r} is not a regular expression of Python's: {error}") from error


@contextlib.contextmanager
def matching(grep: Grep) -> Iterator[Match]:
    """Yield the function that finds matching lines."""
    if grep.is_text:
        yield _text_match(grep)
        return
    matcher = _Matcher(grep)
    try:
        yield matcher.match
    finally:
        matcher.close()


def _text_match(grep: Grep) -> Match:
    pattern = grep.pattern.lower() if grep.ignore_case else grep.pattern

    def match(text: str) -> Sequence[int]:
        searched = text.lower() if grep.ignore_case else text
        if pattern not in searched:
            return ()
        return [place for place, line in enumerate(searched.split("\n")) if pattern in line]

    return match


class _Matcher:
    """The child process that searches."""

    def __init__(self, grep: Grep) -> None:
        argv = [sys.executable, "-I", "-S", str(_PROGRAM), str(LIMIT_S)]
        self._process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        pattern = grep.pattern.encode("utf-8", "surrogatepass")
        self._first = HEAD.pack(len(pattern), grep.ignore_case) + pattern

    def match(self, text: str) -> Sequence[int]:
        """Raises Refused if the search takes too long."""
        encoded, count = text.encode("utf-8", "surrogatepass"), text.count("\n") + 1
        asked = b"".join([self._first, SIZE.pack(len(encoded)), encoded])
        self._first = b""
        assert self._process.stdin is not None and self._process.stdout is not None
        answer = b""
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(asked)
            self._process.stdin.flush()
            answer = self._process.stdout.read(count)
        if len(answer) < count:
            why = "takes too long" if self._process.wait() == -signal.SIGPROF else "could not be searched for"
            raise wrong_usage(f"the pattern {why}: write a simpler one, or search for a text (--fixed-strings)")
        return [place for place, byte in enumerate(answer) if byte] if any(answer) else ()

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()


class Search:
    """Selects lines of one learner, over several calls. Matching lines before position `begin` are not selected."""

    def __init__(self, grep: Grep, match: Match, begin: int = 0) -> None:
        self._grep, self._match, self._begin = grep, match, begin
        self._held: deque[LogText] = deque(maxlen=grep.before)
        """Lines, one each, that may turn out to be neighbours."""
        self._after = 0

    def select(self, texts: Iterable[LogText]) -> Iterator[LogText]:
        """Yield the selected lines of `texts`, with those that were held back before. Raises Refused."""
        for text in texts:
            places = found_in(text, self._grep, self._match)
            if places and text.offset < self._begin:
                offsets = [line.offset for line in text.lines()]
                places = [place for place in places if offsets[place] >= self._begin]
            yield from self._choose(text, places)

    def _choose(self, text: LogText, places: Sequence[int]) -> Iterator[LogText]:
        """Yield the lines at `places`, and their neighbours."""
        passed, ranges = 0, []
        for place in places:
            shown = min(place, passed + self._after)
            lacking = self._grep.before - (place - shown)
            if self._held and lacking > 0:
                yield from list(self._held)[-lacking:]
            self._held.clear()
            ranges += [(passed, shown), (max(shown, place - self._grep.before), place + 1)]
            passed, self._after = place + 1, self._grep.after
        count = text.count
        shown = min(count, passed + self._after)
        self._after -= shown - passed
        yield from text.cuts(_joined([*ranges, (passed, shown)]))
        if self._grep.before and shown < count:
            rest = text.last(min(count - shown, self._grep.before))
            self._held.extend(rest.cuts((place, place + 1) for place in range(rest.count)))


def _joined(ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the ranges without empty ones, adjacent ranges joined."""
    joined: list[tuple[int, int]] = []
    for start, stop in ranges:
        if joined and joined[-1][1] == start:
            joined[-1] = (joined[-1][0], stop)
        elif start < stop:
            joined.append((start, stop))
    return joined


def found_in(text: LogText, grep: Grep, match: Match) -> Sequence[int]:
    """Return the numbers of the requested lines in the text. Raises Refused."""
    places = match(text.text)
    if not grep.invert:
        return places
    others = set(places)
    return [place for place in range(text.count) if place not in others]


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
