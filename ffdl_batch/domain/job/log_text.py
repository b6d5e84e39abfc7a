"""Lines of logs in bulk: what travels and is printed at once, where nobody asks for a record of each line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import accumulate

from ffdl_batch.domain.job.views import LogLine

TEXTS = "application/x-ffdl-log-texts"
"""The media type of a stream of them: one JSON object a line."""


@dataclass(frozen=True, slots=True)
class LogText:
    """Lines of one learner in one attempt that lie side by side and were printed at the same time; or a piece of one.

    `text` are the lines with a newline between each two, `index` is the number of the first one (from 1). `offset` is
    where it begins in all that the learner printed, `end` where the last one ends with its newline, in bytes. `ends`
    says so of each line where the text does not (bytes that are not UTF-8, carriage returns before a newline); else it
    is empty. `at`, `attempt` and `partial` are as in :class:`~ffdl_batch.domain.job.views.LogLine`; what is partial is
    one piece.
    """

    learner: int
    index: int
    text: str
    at: float | None = None
    attempt: int = 0
    offset: int = 0
    end: int = 0
    partial: bool = False
    ends: tuple[int, ...] = ()

    @property
    def count(self) -> int:
        """How many lines; a piece is one."""
        return self.text.count("\n") + 1

    def lines(self) -> Iterator[LogLine]:
        """One record each."""
        if "\n" not in self.text:
            yield LogLine(
                self.learner, self.index, self.text, self.at, self.attempt, self.offset, self.end, self.partial
            )
            return
        for index, (line, offset, end) in enumerate(self.spans(), self.index):
            yield LogLine(self.learner, index, line, self.at, self.attempt, offset, end)

    def spans(self) -> Iterator[tuple[str, int, int]]:
        """Of each line its text, and where it begins and ends in all that the learner printed, in bytes."""
        if "\n" not in self.text:
            return iter(((self.text, self.offset, self.end),))
        lines = self.text.split("\n")
        ends = list(self.ends or self._ends(lines))
        return zip(lines, (self.offset, *ends[:-1]), ends, strict=True)

    def cuts(self, ranges: Iterable[tuple[int, int]]) -> Iterator[LogText]:
        """The lines from one place (from 0) to before another, for each of the ranges; of empty ones nothing."""
        if "\n" not in self.text:
            yield from (self for start, stop in ranges if start < stop)
            return
        lines = self.text.split("\n")
        ends = [self.offset, *(self.ends or self._ends(lines))]
        for start, stop in ranges:
            if start < stop:
                text, own_ends = "\n".join(lines[start:stop]), tuple(ends[start + 1 : stop + 1]) if self.ends else ()
                yield replace(
                    self, index=self.index + start, text=text, offset=ends[start], end=ends[stop], ends=own_ends
                )

    def last(self, count: int) -> LogText:
        """The last lines, so many at most and one at least."""
        lines = self.text.rsplit("\n", count)
        if len(lines) <= count:
            return self
        offset = self.ends[-count - 1] if self.ends else self.end - sum(len(line.encode()) + 1 for line in lines[1:])
        index, text = self.index + self.count - count, "\n".join(lines[1:])
        return replace(self, index=index, text=text, offset=offset, ends=self.ends[-count:])

    def place(self) -> tuple[int, int]:
        """Number and offset of the last line: what follows has a larger one."""
        last = self.last(1)
        return last.index, last.offset

    def after(self, place: tuple[int, int]) -> LogText | None:
        """What of it lies behind the line of that number and offset; None where that is nothing."""
        if (self.index, self.offset) > place:
            return self
        left = self.count - (place[0] + 1 - self.index)
        return self.last(left) if left > 0 else None

    def _ends(self, lines: list[str]) -> Iterator[int]:
        is_ascii = self.text.isascii()
        sizes = (len(line if is_ascii else line.encode()) + 1 for line in lines)
        ends = accumulate(sizes, initial=self.offset)
        next(ends)
        return ends


def text_of(line: LogLine) -> LogText:
    """The same of one line."""
    return LogText(line.learner, line.index, line.line, line.at, line.attempt, line.offset, line.end, line.partial)
