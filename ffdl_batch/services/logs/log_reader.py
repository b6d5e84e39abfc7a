"""Read the log of one learner in one attempt as lines.

Bytes that are not UTF-8 become U+FFFD, a long line comes in pieces, and a carriage return does not end a line. If the
scheduler restarts the attempt, the new run appends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import accumulate

from ffdl_batch.attempt.layout import AttemptDir
from ffdl_batch.attempt.reader import size_of
from ffdl_batch.attempt.rotated_files import LogParts, Marks
from ffdl_batch.domain.job.log_text import LogText
from ffdl_batch.domain.job.views import LogLine
from ffdl_batch.services.refusals import stop_if

CHUNK = 256 * 1024
MAX_LINE = 64 * 1024
"""A longer line is split into pieces of this size. Shorter lines of the same time are joined up to it."""


class LogReader:
    """Reads one learner's log in one attempt, from where the last read ended."""

    def __init__(
        self, attempt: AttemptDir, number: int, learner: int, is_stopped: Callable[[], bool] = lambda: False
    ) -> None:
        """Methods that read raise :class:`StreamStopped` once `is_stopped`."""
        self._is_stopped = is_stopped
        self._parts = LogParts(attempt.training_log(learner), attempt.log_files(learner), partial(stop_if, is_stopped))
        self._marks = Marks(attempt.marks(learner))
        self._attempt, self.learner = number, learner
        self._offset = 0
        """Position up to which the output was read."""
        self._rest = b""
        """The end of what was read: the beginning of a line, or of its next piece."""
        self._lines = 0
        """Newlines before `_rest`."""
        self._begun = False
        """Pieces of the line in `_rest` were yielded."""

    def skip(self, *, since: float | None = None, tail: int | None = None, after: int = 0, ended: bool = True) -> None:
        """Skip everything before `since`, before the last `tail` lines, and before position `after`, as far as that is
        certain.

        A last line without a newline counts as a line if the log has `ended`.
        """
        start = after
        if since is not None:
            start = max(start, self.line_start(self._marks.before(since).position))
        if tail is not None:
            start = max(start, self._tail_start(tail, ended=ended))
        if start != self._offset:
            self.go_to(start)

    def go_to(self, position: int, *, numbered: bool = True) -> None:
        """Continue at a position where a line or a piece begins. If lines are not `numbered`, they need not be
        counted."""
        self._marks.restart()
        self._rest, self._begun = b"", False
        self._lines, self._offset = self._lines_before(position) if numbered else 0, position

    @property
    def next(self) -> int:
        """Return where the next line begins."""
        return self._offset - len(self._rest)

    def end(self) -> int:
        """Return where the log ends now."""
        return self._parts.end()

    def is_within_line(self) -> bool:
        """Return whether the last line has no newline yet."""
        _, last = next(self._parts.backwards(self._parts.end()), (0, b""))
        return bool(last) and not last.endswith(b"\n")

    def line_start(self, end: int, newlines: int = 1) -> int:
        """Return where the line begins that follows the last newline but `newlines` before `end`. Read backwards."""
        begin = 0
        for begin, block in self._parts.backwards(end):
            stop = len(block)
            while (found := block.rfind(b"\n", 0, stop)) >= 0:
                newlines -= 1
                if newlines <= 0:
                    return begin + found + 1
                stop = found
        return begin

    def lines(self, *, ended: bool, flush: bool = False) -> Iterator[LogLine]:
        """Yield the lines of :meth:`texts`, one record each."""
        for text in self.texts(ended=ended, flush=flush):
            yield from text.lines()

    def texts(self, *, ended: bool, flush: bool = False) -> Iterator[LogText]:
        """Yield new complete lines. If the log has `ended`, a last line without a newline is included; with `flush`,
        also the current state of a line with a carriage return, which is a progress bar.

        If that line grows, the next value is its next piece.
        """
        while (opened := self._parts.open_at(self._offset)) is not None:
            with opened.file as file:
                if self._offset < opened.part.base:  # the lines between were removed
                    self._rest, self._begun = b"", False
                    self._offset, self._lines = opened.part.base, opened.part.lines
                file.seek(self._offset - opened.part.base)
                is_at_end = False
                while not is_at_end and (chunk := file.read(CHUNK)):
                    is_at_end = len(chunk) < CHUNK
                    stop_if(self._is_stopped)
                    self._marks.renew()
                    yield from self._take(chunk)
            if opened.end is None:
                break
            if self._offset < opened.end:  # a process other than the controllers truncated it
                self._offset, self._rest = opened.end, b""
        if self._rest and (ended or (flush and b"\r" in self._rest)):
            rest = self._rest if ended else _whole(self._rest, len(self._rest))
            self._rest, self._begun = self._rest[len(rest) :], True
            start = self._offset - len(self._rest) - len(rest)
            yield self._piece(rest, start, start + len(rest), partial=not ended)

    def _take(self, chunk: bytes) -> Iterator[LogText]:
        start = self._offset - len(self._rest)
        self._offset += len(chunk)
        data = self._rest + chunk
        end = data.rfind(b"\n") + 1
        self._rest = data[end:]
        begin = 0
        while begin < end:
            stop = data.find(b"\n", begin, end) + 1
            if self._begun or stop - begin > MAX_LINE + 1:
                yield from self._long_line(data[begin : stop - 1], start + begin)
            else:
                at, until = self._marks.time_of(start + stop - 1)
                limit = min(end, begin + MAX_LINE + 1, end if until is None else until - start)
                stop = max(stop, data.rfind(b"\n", stop, limit) + 1)
                yield self._lines_at(data[begin:stop], start + begin, at)
            begin = stop
        if len(self._rest) > MAX_LINE:
            *pieces, self._rest = _pieces(self._rest)
            start += end
            for piece in pieces:
                self._begun = True
                yield self._piece(piece, start, start + len(piece), partial=True)
                start += len(piece)

    def _long_line(self, line: bytes, start: int) -> Iterator[LogText]:
        """Yield a complete line in pieces, or the last piece of a line that was begun."""
        end = start + len(line) + 1
        *pieces, last = _pieces(line)
        for piece in pieces:
            yield self._piece(piece, start, start + len(piece), partial=True)
            start += len(piece)
        if last or not self._begun:
            yield self._piece(last, start, end)
        self._lines, self._begun = self._lines + 1, False

    def _piece(self, raw: bytes, start: int, end: int, *, partial: bool = False) -> LogText:
        at, _ = self._marks.time_of(max(0, end - 1))
        text = raw.decode("utf-8", errors="replace")
        shown = text if partial else text.rstrip("\r")
        return LogText(self.learner, self._lines + 1, shown, at, self._attempt, start, end, partial)

    def _lines_at(self, raw: bytes, start: int, at: float | None) -> LogText:
        """Return complete lines that have one time."""
        index, end = self._lines + 1, start + len(raw)
        ends: tuple[int, ...] = ()
        text = raw[:-1].decode("utf-8", errors="replace")
        is_changed = "\ufffd" in text
        if "\r\n" in text or text.endswith("\r"):
            text, is_changed = "\n".join(line.rstrip("\r") for line in text.split("\n")), True
        if is_changed and "\n" in text:
            ends = tuple(accumulate((len(line) + 1 for line in raw[:-1].split(b"\n")), initial=start))[1:]
        self._lines += text.count("\n") + 1
        return LogText(self.learner, index, text, at, self._attempt, start, end, ends=ends)

    def _tail_start(self, tail: int, *, ended: bool) -> int:
        end = self._parts.end()
        _, last = next(self._parts.backwards(end), (0, b""))
        if last.endswith(b"\n"):
            return self.line_start(end - 1, tail) if tail else end
        return self.line_start(end, tail + (0 if ended else 1)) if tail or not ended else end

    def _lines_before(self, position: int) -> int:
        """Return the number of newlines before `position`, counted from the nearest position with a known number."""
        known = [(part.base, part.lines) for part in self._parts.all() if part.base <= position]
        mark = self._marks.until(position)
        start, lines = max([*known, (mark.position, mark.lines)])
        return lines + self._parts.count_lines(start, position)


def _pieces(line: bytes) -> list[bytes]:
    """Split a long line into pieces. No character is split."""
    pieces = []
    while len(line) > MAX_LINE:
        piece = _whole(line, MAX_LINE)
        pieces.append(piece)
        line = line[len(piece) :]
    return [*pieces, line]


def _whole(line: bytes, end: int) -> bytes:
    """Return the beginning of `line` up to `end`, or a little less if `end` is within a character."""
    for back in range(1, min(4, end)):
        byte = line[end - back]
        if byte & 0xC0 == 0xC0:
            length = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return line[: end - back] if length > back else line[:end]
        if byte < 0x80:
            break
    return line[:end]


def has_log(attempt: AttemptDir, learners: int) -> bool:
    """Return whether a learner of the attempt has written anything."""
    logs = [attempt.training_log(number) for number in range(1, learners + 1)]
    return any(size_of(log) > 0 or size_of(f"{log}.1") > 0 for log in logs)
