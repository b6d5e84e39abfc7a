"""FfDL's `tensorboard`: the scalars of event files below LOG_DIR, one record per step, in the order of their wall time.

Events of a step follow each other in a file; where the next step begins, a tag comes again, or the file has not grown
for a while, the step's record is complete. What is kept for a successor is where each file's first step without a
record begins. Files are only read.
"""

from __future__ import annotations

import heapq
import os
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import islice
from typing import NamedTuple

from ffdl_batch.collectors.learner_files import Found, files_below, opened
from ffdl_batch.collectors.source import Clock, Harvest, Notes, State, label_of, sub_run
from ffdl_batch.collectors.tensorboard_events import Damaged, Event, EventReader, read_record
from ffdl_batch.collectors.timestamps import record_ms, rfc3339
from ffdl_batch.domain.metrics.records import FLOAT, INT, STRING, CollectorSpec, Measure, MetricRecord, float_text
from ffdl_batch.host.fast_dataclass import dataclass

SETTLED_S = 2.0
DEPTH, MOST_FILES, MOST_OPEN = 12, 4096, 128
MOST_RECORDS = 2000
MOST_VALUES = 500
MOST_BYTES = 64 * 1024 * 1024
"""Of each file, in one go."""


@dataclass(slots=True)
class Reading:
    """How far a file is read: `offset` is where its first step without a record begins."""

    inode: int
    offset: int = 0
    size: int = -1
    """When it was looked at last."""
    grown_at: float = 0.0
    done: int = -1
    """The size up to which there is nothing more to be had."""
    damaged: int = -1


class Step(NamedTuple):
    """A step's record, and where the next step begins in its file."""

    record: MetricRecord
    wall_time: float
    reading: Reading
    end: int


class TensorBoardSource:
    """The files with `tfevents` in their names, anywhere below the directories."""

    def __init__(self, spec: CollectorSpec, clock: Clock, notes: Notes, state: State) -> None:
        self._spec = spec
        self._clock = clock
        self._notes = notes
        self._reader = EventReader()
        self._readings = {path: Reading(*place) for path, place in state.get("files", {}).items()}

    def poll(self, final: bool) -> Harvest:
        """At most MOST_RECORDS steps, of at most MOST_OPEN files."""
        found = [file for file in self._listed() if self._has_more(file, final)]
        with ExitStack() as stack:
            streams = []
            for file in found[:MOST_OPEN]:
                descriptor = opened(file)
                if descriptor is None:
                    self._readings[file.path].done = file.size
                    continue
                stack.callback(os.close, descriptor)
                streams.append(self._steps(file, descriptor, final))
            merged = heapq.merge(*streams, key=lambda step: step.wall_time)
            records = []
            for step in islice(merged, MOST_RECORDS):
                step.reading.offset = step.end
                records.append(step.record)
        unread = any(self._readings[file.path].done < file.size for file in found)
        return Harvest(records, unread)

    def state(self) -> State:
        """Where each file's next step begins."""
        return {"files": {path: [reading.inode, reading.offset] for path, reading in self._readings.items()}}

    def _listed(self) -> list[Found]:
        files: list[Found] = []
        for root in (self._spec.log_dir, *self._spec.more_dirs):
            files += files_below(root, lambda name: "tfevents" in name, DEPTH, MOST_FILES)
        self._notes.too_many(files, MOST_FILES)
        if len(self._readings) > 2 * MOST_FILES:
            there = {file.path for file in files}
            self._readings = {path: reading for path, reading in self._readings.items() if path in there}
        return files

    def _has_more(self, file: Found, final: bool) -> bool:
        """Whether steps can be had of it now."""
        reading = self._readings.get(file.path)
        if reading is None:
            reading = self._readings[file.path] = Reading(file.inode)
        elif reading.inode != file.inode or file.size < reading.offset:
            self._notes.note("replaced", f"{file.path} is another file than before; it is read from its beginning")
            reading = self._readings[file.path] = Reading(file.inode)
        if file.size != reading.size:
            reading.size, reading.grown_at = file.size, self._clock()
            return file.size > reading.offset
        waiting = reading.done >= file.size
        return file.size > reading.offset and (not waiting or final or self._settled(reading))

    def _settled(self, reading: Reading) -> bool:
        return abs(self._clock() - reading.grown_at) >= SETTLED_S

    def _steps(self, file: Found, descriptor: int, final: bool) -> Iterator[Step]:
        """The complete steps from `offset` on. What is no scalar before a step is passed over."""
        reading = self._readings[file.path]
        settled = final or self._settled(reading)
        events: list[Event] = []
        tags: dict[str, Measure] = {}
        position = reading.offset
        last = position + MOST_BYTES
        while position < last:
            event, end = self._next(file, descriptor, position, final)
            if end == position:
                break
            if event is not None and event.scalars:
                same = events and event.step == events[0].step and tags.keys().isdisjoint(event.scalars)
                if events and not (same and len(tags) < MOST_VALUES):
                    yield self._step(file, events[0], tags, position)
                    events, tags = [], {}
                events = events or [event]
                tags.update((tag, Measure(FLOAT, text)) for tag, text in event.scalars.items())
            position = end
            if not events:
                reading.offset = position
        if events and (settled or position >= last):
            yield self._step(file, events[0], tags, position)
        if position < last:
            reading.done = file.size

    def _next(self, file: Found, descriptor: int, position: int, final: bool) -> tuple[Event | None, int]:
        """The event there, and where the next one begins: there, where there is no event yet."""
        reading = self._readings[file.path]
        try:
            raw = read_record(descriptor, position)
        except Damaged:
            if final or reading.damaged == position:  # else its bytes may still come
                self._notes.note("damaged_files", f"{file.path} is damaged at byte {position}; the rest is not read")
            reading.damaged = position
            return None, position
        if raw is None:
            return None, position
        event = None if raw.content is None else self._reader.read(raw.content)
        if event is None:
            self._notes.note("damaged_events", f"{file.path}: the event at byte {position} is damaged and left out")
        return event, raw.end

    def _step(self, file: Found, event: Event, values: dict[str, Measure], end: int) -> Step:
        etimes = {
            "iteration": Measure(INT, str(event.step)),
            "timestamp": Measure(STRING, rfc3339(event.wall_time)),
            "wall_time": Measure(FLOAT, float_text(event.wall_time)),
        }
        time_ms = record_ms(event.wall_time * 1000) or 0
        training_id, label = self._spec.training_id, label_of(file.names)
        record = MetricRecord(training_id, time_ms, 0, sub_run(file.names), label, etimes, values)
        return Step(record, event.wall_time, self._readings[file.path], end)
