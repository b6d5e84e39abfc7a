"""Detect learners that hang, from what they write and compute, and measure how long their steps take."""

from __future__ import annotations

import os
from collections import deque
from typing import Deque, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ffdl_batch.attempt.event_journal import Journal
from ffdl_batch.attempt.file_writer import write_text
from ffdl_batch.attempt.layout import AttemptDir
from ffdl_batch.attempt.log_tail import read_end
from ffdl_batch.attempt.reader import NO_FILE
from ffdl_batch.controller.learner.agents import dump, find_agents
from ffdl_batch.domain.launch.launch_file import LaunchFile
from ffdl_batch.domain.metrics.records import MetricRecord, RecordError, decode_record
from ffdl_batch.domain.metrics.usage import UsageSample
from ffdl_batch.domain.outcome.controller_events import EventKind
from ffdl_batch.domain.untrusted_json import MAX_DIGITS
from ffdl_batch.host.fast_dataclass import dataclass

IDLE_SHARE = 0.01
"""Share of one core below which a learner counts as idle. Waiting threads of libraries wake up now and then."""
RHYTHM_SIGNS, RHYTHM = 10, 10.0
"""A learner that computes counts as hung only after RHYTHM_SIGNS signs of life, and a silence RHYTHM times as long as
the longest one between them. A collective operation that never ends uses the CPU."""
REMEMBERED = 64
"""Number of CPU samples kept from the time in which a learner must be idle."""

Shown = Tuple[Optional[Tuple[int, int]], ...]
"""Size and modification time (ns) of each file that a healthy learner writes; None if it does not exist."""


@dataclass(frozen=True)
class Silence:
    """A learner wrote nothing for too long."""

    silent_s: float
    idle: bool
    """Whether it computed nothing either."""


class SilenceDetector:
    """Detects the silence of one learner. Times are of a monotonic clock, in seconds."""

    def __init__(self, hang_s: float) -> None:
        """`hang_s` is the shortest silence that counts."""
        self._hang_s = hang_s
        self._shown: Optional[Shown] = None
        self._since, self._longest, self._signs = 0.0, 0.0, 0
        self._reported = False
        self._work: Deque[Tuple[float, float]] = deque()

    def feel(self, now: float, shown: Shown, cpu_s: Optional[float]) -> Optional[Silence]:
        """Evaluate a sample. Return a silence that has become too long, once; None if there is none."""
        self._remember(now, cpu_s)
        if shown != self._shown:
            if self._shown is not None:
                self._longest, self._signs = max(self._longest, now - self._since), self._signs + 1
            self._shown, self._since, self._reported = shown, now, False
            return None
        silent_s = now - self._since
        if self._reported or silent_s < self._hang_s:
            return None
        idle = self._is_idle(now)
        if not idle and (self._signs < RHYTHM_SIGNS or silent_s < RHYTHM * self._longest):
            return None
        self._reported = True
        return Silence(silent_s, idle)

    def _remember(self, now: float, cpu_s: Optional[float]) -> None:
        """Keep a sample. It replaces the last one if that is recent. The oldest kept one is `hang_s` seconds old."""
        if cpu_s is None:
            self._work.clear()
            return
        if not self._work or now - self._work[-1][0] >= self._hang_s / REMEMBERED:
            self._work.append((now, cpu_s))
        else:
            self._work[-1] = (self._work[-1][0], cpu_s)
        while len(self._work) > 1 and self._work[1][0] <= now - self._hang_s:
            self._work.popleft()

    def _is_idle(self, now: float) -> bool:
        """Return whether it computed almost nothing in the last `hang_s` seconds; False if that is unknown."""
        if not self._work or self._work[0][0] > now - self._hang_s:
            return False
        return self._work[-1][1] - self._work[0][1] < IDLE_SHARE * self._hang_s


def shown_by(paths: Sequence[str]) -> Shown:
    """Return size and time of the files at `paths`. Raises OSError."""
    return tuple(_look(path) for path in paths)


def _look(path: str) -> Optional[Tuple[int, int]]:
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    return found.st_size, found.st_mtime_ns


AXES = ("iteration", "step", "global_step")
"""Names of time axes that count steps. The first existing one is used."""
TAIL_BYTES = 64 * 1024
LEAST_INTERVALS = 5
CHANGED = 0.2
"""A pace is reported again if it differs by this share from the last report."""
MAX_REPORTS = 50
"""Maximum number of reports: each is an event, and the daemon reads all events of a node each time."""


class Step(NamedTuple):
    """The pace of a learner."""

    step_s: float
    """Seconds per step; 0 if it changed too often to be reported again."""
    steady: bool
    """Whether it is the first one, or equals the one before. Only steady paces of learners are compared."""


class Pace:
    """Measures the pace of one learner from its records in the file `path`."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._reported, self._steady, self._left = 0.0, True, MAX_REPORTS

    def changed_pace(self) -> Optional[Step]:
        """Return the latest pace if it is known and differs from the last report. Raises OSError."""
        now = median(intervals(_tail(self._path))) if self._left else None
        if now is None:
            return None
        is_same = bool(self._reported) and abs(now - self._reported) <= CHANGED * self._reported
        if is_same and self._steady:
            return None
        self._steady = is_same or not self._reported
        self._reported = self._reported if is_same else now
        self._left -= 1
        return Step(now, self._steady) if self._left else Step(0.0, steady=False)


def intervals(records: List[MetricRecord]) -> List[float]:
    """Return the seconds per step between successive records of one group and axis.

    If the steps begin again, or the clock was set back, there is no value.
    """
    last: Dict[Tuple[str, str], Tuple[int, int]] = {}
    found = []
    for record in records:
        place = _step(record)
        if place is None:
            continue
        axis, step = place
        before = last.get((record.group, axis))
        last[(record.group, axis)] = (step, record.time_ms)
        if before is not None and step > before[0] and record.time_ms > before[1]:
            found.append((record.time_ms - before[1]) / 1000.0 / (step - before[0]))
    return found


def median(values: List[float]) -> Optional[float]:
    """Return the median; None for fewer than LEAST_INTERVALS values."""
    if len(values) < LEAST_INTERVALS:
        return None
    return sorted(values)[len(values) // 2]


def _step(record: MetricRecord) -> Optional[Tuple[str, int]]:
    for axis in AXES:
        measure = record.etimes.get(axis)
        if measure is not None:
            text = measure.value.strip()
            return (axis, int(text)) if text.isdecimal() and len(text) <= MAX_DIGITS else None
    return None


def _tail(path: str) -> List[MetricRecord]:
    """Return the records at the end of a file, without the first, which may be incomplete."""
    try:
        data, size = read_end(path, TAIL_BYTES)
    except NO_FILE:
        return []
    *lines, _torn = data.split(b"\n")
    found = []
    for line in lines[1 if size > TAIL_BYTES else 0 :]:
        try:
            found.append(decode_record(line.decode("utf-8", "replace")))
        except RecordError:  # the collector writes none, but users may change the file
            continue
    return found


PACE_FIRST_S, PACE_EVERY_S = 10.0, 60.0
"""Seconds before the records are read for the first time, and the maximum pause. The pause doubles."""
STACK_LINES, STACK_CHARS = 20, 4000
"""Maximum length of stacks in an event."""
HANGS_MOST = 10
"""Maximum number of hangs reported for a learner. One that is often silent may be intended to be."""


class HangDetection:
    """Detects hangs of one node's learners. Services are left out, because they wait for ever."""

    def __init__(self, launch: LaunchFile, learner_ids: List[int], journal: Journal) -> None:
        self._launch, self._attempt, self._journal = launch, AttemptDir(launch.attempt_dir), journal
        trains = [number for number in learner_ids if not launch.seat_of(number).service]
        hang_s = launch.limits.hang_s
        self._pulses: Dict[int, SilenceDetector] = (
            {number: SilenceDetector(hang_s) for number in trains} if hang_s else {}
        )
        self._hangs = dict.fromkeys(trains, 0)
        has_records = launch.metrics is not None and len(launch.seats) > 1
        paths = {number: self._attempt.learner_metrics(number) for number in trains}
        self._paces: Dict[int, Pace] = {number: Pace(path) for number, path in paths.items()} if has_records else {}
        self._next_pace, self._pause_s = 0.0, PACE_FIRST_S

    def look(self, now: float, roots: Mapping[int, int], sample: UsageSample) -> None:
        """Evaluate a sample of the living learners `roots`, and report hangs and paces. Raises OSError.

        `now` is of a monotonic clock that stands still while this process is stopped.
        """
        for learner, pulse in self._pulses.items():
            use = sample.learners.get(str(learner))
            if learner in roots and use is not None:
                silence = pulse.feel(now, shown_by(self._signs(learner)), use.cpu_s)
                if silence is not None and self._hangs[learner] < HANGS_MOST:
                    self._hangs[learner] += 1
                    self._report_hang(learner, silence)
        if now >= self._next_pace:
            self._next_pace, self._pause_s = now + self._pause_s, min(2 * self._pause_s, PACE_EVERY_S)
            for learner, pace in self._paces.items():
                step = pace.changed_pace()
                if step is not None:
                    self._journal.append(
                        EventKind.PACE,
                        learner_id=learner,
                        host=os.uname().nodename,
                        step_s=round(step.step_s, 6),
                        steady=step.steady,
                    )

    def _signs(self, learner: int) -> List[str]:
        attempt = self._attempt
        return [attempt.training_log(learner), attempt.learner_metrics(learner), attempt.sign_of_life(learner)]

    def _report_hang(self, learner: int, silence: Silence) -> None:
        stacks, place = self._stacks(learner), ""
        if stacks:
            name = f"stacks-{int(silence.silent_s)}s.txt"
            write_text(os.path.join(self._attempt.learner_logs(learner), name), stacks)
            place = name
        self._journal.append(
            EventKind.HANG,
            learner_id=learner,
            host=os.uname().nodename,
            silent_s=round(silence.silent_s, 1),
            idle=silence.idle,
            stack="\n".join(stacks.splitlines()[-STACK_LINES:])[-STACK_CHARS:],
            file=place,
        )

    def _stacks(self, learner: int) -> str:
        agents = find_agents(self._launch.job_id, self._launch.attempt, [learner])
        return dump(agents[learner])[0] if learner in agents else ""
