"""FfDL's `regex_extractor`: regular expressions over a window of the log's last lines.

The window has at most `line_lookahead` lines and the one before them. After each line, the expressions are tried in
order at the beginning of the window. The first match makes a record and empties the window, except for lines after the
match, which are tried again. At the end, the remaining lines are tried one after the other. The state is where the
window begins: the next process finds the same.

A report of the learner (:mod:`ffdl_batch.domain.metrics.learner_reports`) is a record as well. The lines before it are
treated as at the end.
"""

from __future__ import annotations

import re
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType

from ffdl_batch.attempt.log_paths import TRAINING_LOG
from ffdl_batch.attempt.rotated_files import PrintTimes
from ffdl_batch.collectors.followed_file import MOST_RECORDS, FollowedFile, Line, Place, in_turn
from ffdl_batch.collectors.learner_files import Found, files_below
from ffdl_batch.collectors.source import Clock, Harvest, Notes, State
from ffdl_batch.collectors.timestamps import time_ms
from ffdl_batch.domain.metrics.learner_reports import GROUP, parse_report
from ffdl_batch.domain.metrics.patterns import compile_regex, reference
from ffdl_batch.domain.metrics.records import CollectorSpec, ExtractionGroup, Measure, MetricRecord, typed

LINE_BYTES = 16 * 1024
MOST_FILES = 256
NAMED = 5
SLOW_COST, FAST_GAIN, SLOW_TOO_OFTEN = 1000, 1, 5000
"""A slow match costs points, a fast one gains some. An expression that is slow too often is not tried any more."""
When = Callable[[], float | None]
_LOG = re.compile(r"((?:training-log|user_log)\.txt)(?:\.(\d{1,4}))?\Z")


class Extractor:
    """The groups of a manifest, for all logs."""

    def __init__(
        self, spec: CollectorSpec, clock: Clock, notes: Notes, slowness: Mapping[str, int], matched: Iterable[str]
    ) -> None:
        self._training_id = spec.training_id
        self._groups = [(group, compile_regex(group.regex)) for group in spec.groups]
        self._clock = clock
        self._notes = notes
        self.slowness = dict(slowness)
        self.matched = set(matched)
        """Labels of the groups that have made a record."""

    @property
    def unmatched(self) -> list[str]:
        """Return the labels of the other groups, without those that were reported as slow."""
        labels = (group.label for group, _ in self._groups)
        return [label for label in labels if label not in self.matched and label not in self.slowness]

    def record(self, text: str, subid: str, when: When) -> tuple[MetricRecord, int] | None:
        """Return the record of the first group that matches at the beginning of `text`, and where the match ends.
        `when` returns when the text was printed, in seconds since the epoch."""
        for group, pattern in self._groups:
            found = self._match(group.label, pattern, text)
            if found is not None:
                self.matched.add(group.label)
                return self._made(group, found, subid, when), found.end()
        return None

    def of_report(self, report: Mapping[str, Measure], subid: str, printed_s: float | None) -> MetricRecord:
        """Return the record of a learner's report."""
        at_ms = int((self._clock() if printed_s is None else printed_s) * 1000)
        return MetricRecord(self._training_id, at_ms, 0, subid, GROUP, values=report)

    def _match(self, label: str, pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
        slowness = self.slowness.get(label, 0)
        if slowness >= SLOW_TOO_OFTEN:
            return None
        try:
            found = match_in_time(pattern, text)
        except TooSlow:
            words = f"group {label}: its regex took longer than {LIMIT_S} s with one piece of the log"
            self._notes.note(f"slow:{label}", f"{words}, which is left out")
            self.slowness[label] = slowness + SLOW_COST
            if self.slowness[label] >= SLOW_TOO_OFTEN:
                self._notes.note(f"off:{label}", f"{words} again and again; nothing more is extracted with it")
            return None
        if slowness:
            self.slowness[label] = slowness - FAST_GAIN
        return found

    def _made(self, group: ExtractionGroup, found: re.Match[str], subid: str, when: When) -> MetricRecord:
        now_s = self._clock()
        printed_s = when()
        at_ms = int((now_s if printed_s is None else printed_s) * 1000)
        stamp = _resolved(group.time, found)
        if stamp:
            known = time_ms(stamp, now_s)
            if known is None:
                self._notes.note(
                    f"time:{group.label}", f"group {group.label}: {stamp[:80]!r} is not a time in a known format"
                )
            at_ms = at_ms if known is None else known
        return MetricRecord(
            self._training_id,
            at_ms,
            0,
            _resolved(group.subid, found) or subid,
            group.label,
            self._measures(group.label, group.etimes, found),
            self._measures(group.label, group.scalars, found),
        )

    def _measures(self, label: str, wanted: Mapping[str, Measure], found: re.Match[str]) -> dict[str, Measure]:
        measures: dict[str, Measure] = {}
        for name, measure in wanted.items():
            text = _resolved(measure.value, found)
            if text is None:
                continue  # a part of the expression that is optional
            value = typed(measure.type, text)
            if value is None:
                words = f"group {label}: {text[:80]!r} is not of type {measure.type}; {name} is left out there"
                self._notes.note(f"type:{label}:{name}", words)
            else:
                measures[name] = value
        return measures


def _resolved(text: str, found: re.Match[str]) -> str | None:
    name = reference(text)
    return text if name is None else found[name]


class LogWindow:
    """One log and the window over it. `times` is for the log that the controller writes."""

    def __init__(self, file: FollowedFile, subid: str, lines: int, times: PrintTimes | None = None) -> None:
        self.file = file
        self.subid = subid
        self._times = times
        self.window: deque[Line] = deque(maxlen=lines)

    @property
    def place(self) -> Place | None:
        """Return where the next process begins to read."""
        return self.window[0].place if self.window else self.file.place

    def records(self, lines: Sequence[Line], extractor: Extractor) -> Iterator[MetricRecord]:
        """Yield the records that these lines make."""
        for line in lines:
            report = parse_report(line.text)
            if report is not None:
                yield from self.rest(extractor)
                yield extractor.of_report(report, self.subid, self._printed(line))
                continue
            self.window.append(line)
            yield from self._tried(extractor)

    def rest(self, extractor: Extractor) -> Iterator[MetricRecord]:
        """Yield the records of the remaining lines, when no line follows."""
        while self.window:
            self.window.popleft()
            if self.window:
                yield from self._tried(extractor)

    def _tried(self, extractor: Extractor) -> Iterator[MetricRecord]:
        hit = extractor.record("".join([f"{line.text}\n" for line in self.window]), self.subid, self._when)
        if hit is None:
            return
        record, end = hit
        yield record
        end -= len(self.window.popleft().text) + 1
        while end > 0:
            end -= len(self.window.popleft().text) + 1
        left = tuple(self.window)
        self.window.clear()
        yield from self.records(left, extractor)

    def _when(self) -> float | None:
        """Return when the first line of the window was printed; None if unknown."""
        return self._printed(self.window[0])

    def _printed(self, line: Line) -> float | None:
        return None if self._times is None else self._times.time_of(*line.place)


class RegexSource:
    """Reads the logs in LOG_DIR and its direct subdirectories."""

    def __init__(self, spec: CollectorSpec, clock: Clock, notes: Notes, state: State) -> None:
        self._spec = spec
        self._notes = notes
        self._extractor = Extractor(spec, clock, notes, state.get("slowness", {}), state.get("matched", ()))
        self._lines: int = state.get("lines", 0)
        self._resume: dict[str, Place] = {path: Place(*place) for path, place in state.get("files", {}).items()}
        self._logs: dict[str, LogWindow] = {}
        self._last = ""

    def poll(self, final: bool) -> Harvest:
        """Read at most one chunk of each log."""
        with watched():
            return self._polled(final)

    def _polled(self, final: bool) -> Harvest:
        records: list[MetricRecord] = []
        more = False
        listed = self._listed()
        for path in in_turn({*listed, *self._logs}, self._last):
            if len(records) > MOST_RECORDS:
                return Harvest(records, True)
            generations = listed.get(path, {})
            log = self._logs.get(path) or self._new(path, generations)
            truncations = log.file.truncations
            over = final or (not generations and log.file.deleted)
            lines, again = log.file.lines(generations, over)
            self._lines += len(lines)
            records.extend(log.records(lines, self._extractor))
            if log.file.truncations != truncations or (over and not again):
                records.extend(log.rest(self._extractor))
            if over and not again and not final:
                self._forget(path)
            self._last = path
            more |= again
        if final and not more:
            self._report_unmatched()
        return Harvest(records, more)

    def _report_unmatched(self) -> None:
        """Report groups without a match, for the first learner only: in many trainings, other learners print nothing
        that is measured."""
        labels = self._extractor.unmatched
        if labels and self._lines and self._spec.learner_id == 1:
            named = ", ".join(labels[:NAMED]) + (f" and {len(labels) - NAMED} more" if len(labels) > NAMED else "")
            whose = f"group {named}: its regex" if len(labels) == 1 else f"groups {named}: their regexes"
            read = "the only line" if self._lines == 1 else f"any of {self._lines} lines"
            self._notes.note("unmatched", f"{whose} did not match {read} of the log")

    def _forget(self, path: str) -> None:
        self._logs.pop(path).file.close()
        self._resume.pop(path, None)

    def state(self) -> State:
        """Return where the window of each log begins."""
        places = dict(self._resume)
        for path, log in self._logs.items():
            if log.place is not None:
                places[path] = log.place
        again = sum(len(log.window) for log in self._logs.values())
        """Lines that the next process reads again."""
        return {
            "files": {path: list(place) for path, place in places.items()},
            "slowness": self._extractor.slowness,
            "matched": sorted(self._extractor.matched),
            "lines": self._lines - again,
        }

    def _listed(self) -> dict[str, dict[int, Found]]:
        """Return the generations of each log, by the path of the log."""
        logs: dict[str, dict[int, Found]] = {}
        files = files_below(self._spec.log_dir, lambda name: _LOG.match(name) is not None, 1, MOST_FILES)
        self._notes.too_many(files, MOST_FILES)
        for file in files:
            found = _LOG.match(file.names[-1])
            assert found is not None
            path = "/".join((*file.names[:-1], found[1]))
            logs.setdefault(path, {})[int(found[2] or 0)] = file
        return logs

    def _new(self, path: str, generations: Mapping[int, Found]) -> LogWindow:
        names = next(iter(generations.values())).names
        file = FollowedFile(LINE_BYTES, self._resume.get(path), self._notes.note)
        spec, times = self._spec, None
        if path == TRAINING_LOG and spec.marks and spec.log_files:
            times = PrintTimes(spec.marks, spec.log_files)
        log = LogWindow(file, names[0] if len(names) > 1 else "", spec.line_lookahead + 1, times)
        self._logs[path] = log
        return log


LIMIT_S = 0.2
"""CPU time of one match. A match that takes longer ends before it has taken twice as long."""


class TooSlow(Exception):
    """A match took longer than LIMIT_S."""


class _Watch:
    matching = False
    ticks = 0


@contextmanager
def watched() -> Iterator[None]:
    """Limit each :func:`match_in_time` in the body by one timer. A timer per match would cost more than most matches.

    Python's matching engine handles signals while it backtracks, so a signal handler that raises ends the match. The
    timer counts CPU time, so a busy node makes no expression slow. Only the main thread can use it.
    """
    before = signal.signal(signal.SIGVTALRM, _tick)
    signal.setitimer(signal.ITIMER_VIRTUAL, LIMIT_S, LIMIT_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def match_in_time(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    """Return `pattern.match(text)`. Raises TooSlow."""
    _Watch.ticks = 0
    _Watch.matching = True
    try:
        return pattern.match(text)
    finally:
        _Watch.matching = False


def _tick(_signal: int, _frame: FrameType | None) -> None:
    _Watch.ticks += 1
    if _Watch.matching and _Watch.ticks > 1:
        _Watch.matching = False
        raise TooSlow
