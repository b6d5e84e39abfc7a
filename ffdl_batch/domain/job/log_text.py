"""Log lines in bulk, their only encoding, and how they are selected. Neighbouring lines with one time are one value."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import accumulate
from typing import Any

from ffdl_batch.domain.job.views import LogLine
from ffdl_batch.host.fast_dataclass import dataclass

_ENCODE = json.JSONEncoder(ensure_ascii=True, separators=(",", ":")).encode


@dataclass(frozen=True, slots=True)
class Grep:
    """Selects the lines in which a pattern is found."""

    pattern: str
    """A regular expression of Python's, or a text if it is `fixed`."""
    ignore_case: bool = False
    invert: bool = False
    """Select the other lines."""
    fixed: bool = False
    before: int = 0
    """Number of lines of the same learner to show before each selected line."""
    after: int = 0

    @property
    def is_text(self) -> bool:
        """Return whether the pattern has no special characters."""
        return self.fixed or not re.search(r"[\\.^$*+?{}\[\]|()]", self.pattern)


@dataclass(frozen=True, slots=True)
class LogText:
    """Neighbouring lines of one learner in one attempt that were printed at the same time; or a piece of one line."""

    learner: int
    index: int
    """Number of the first line, from 1."""
    text: str
    """The lines, with a newline between two of them."""
    at: float | None = None
    """When they were printed, in seconds since the epoch; None if unknown."""
    attempt: int = 0
    offset: int = 0
    """Position of the first line in the whole output of the learner, in bytes."""
    end: int = 0
    """Position after the newline of the last line."""
    partial: bool = False
    """The line continues with another piece."""
    ends: tuple[int, ...] = ()
    """`end` of each line, if it cannot be computed from the text (bytes that are not UTF-8, carriage returns before a
    newline); else empty."""

    @property
    def count(self) -> int:
        """Return the number of lines. A piece is one."""
        return self.text.count("\n") + 1

    def lines(self) -> Iterator[LogLine]:
        """Yield one record for each line."""
        if "\n" not in self.text:
            yield LogLine(
                self.learner, self.index, self.text, self.at, self.attempt, self.offset, self.end, self.partial
            )
            return
        for index, (line, offset, end) in enumerate(self.spans(), self.index):
            yield LogLine(self.learner, index, line, self.at, self.attempt, offset, end)

    def spans(self) -> Iterator[tuple[str, int, int]]:
        """Yield the text of each line, and the positions where it begins and ends."""
        if "\n" not in self.text:
            return iter(((self.text, self.offset, self.end),))
        lines = self.text.split("\n")
        ends = list(self.ends or self._ends(lines))
        return zip(lines, (self.offset, *ends[:-1]), ends, strict=True)

    def cuts(self, ranges: Iterable[tuple[int, int]]) -> Iterator[LogText]:
        """Yield the lines of each range that is not empty. A range counts lines from 0, without its end."""
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
        """Return the last `count` lines."""
        lines = self.text.rsplit("\n", count)
        if len(lines) <= count:
            return self
        offset = self.ends[-count - 1] if self.ends else self.end - sum(len(line.encode()) + 1 for line in lines[1:])
        index, text = self.index + self.count - count, "\n".join(lines[1:])
        return replace(self, index=index, text=text, offset=offset, ends=self.ends[-count:])

    def place(self) -> tuple[int, int]:
        """Return number and offset of the last line. Later lines have larger ones."""
        last = self.last(1)
        return last.index, last.offset

    def after(self, place: tuple[int, int]) -> LogText | None:
        """Return the lines after the line with that number and offset; None if there are none."""
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


def encode_text(text: LogText) -> bytes:
    """Return the JSON object of a log stream, in ASCII and with its line feed."""
    plain: dict[str, object] = {"learner": text.learner, "index": text.index, "text": text.text, "at": text.at}
    plain |= {"attempt": text.attempt, "offset": text.offset, "end": text.end}
    if text.partial:
        plain["partial"] = True
    if text.ends:
        plain["ends"] = text.ends
    return _ENCODE(plain).encode("ascii") + b"\n"


def decode_text(plain: Mapping[str, Any]) -> LogText:
    """Return the lines in a JSON object of a log stream. Raises ValueError."""
    try:
        text, number, index, ends = plain["text"], plain["learner"], plain["index"], plain.get("ends", ())
        more = (plain.get("attempt", 0), plain.get("offset", 0), plain.get("end", 0), plain.get("partial", False))
        is_right = isinstance(text, str) and all(isinstance(each, int) for each in (number, index, *more, *ends))
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"a field is missing or wrong: {error}") from error
    if not is_right:
        raise ValueError("its fields are of other kinds")
    found = LogText(number, index, text, plain.get("at"), *more, tuple(ends))
    if ends and len(found.ends) != found.count:
        raise ValueError("its lines end elsewhere")
    return found
