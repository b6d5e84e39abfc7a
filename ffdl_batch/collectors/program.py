"""The collector's loop: poll, commit, pause. Only what is committed outlives a kill."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from ffdl_batch.collectors.record_file import Ledger
from ffdl_batch.collectors.source import Harvest, Notes, Source
from ffdl_batch.domain.metrics.records import CollectorSpec
from ffdl_batch.host.fast_dataclass import dataclass

EXIT_DONE, EXIT_CANNOT_WRITE, EXIT_CANNOT_READ, EXIT_ALONE = 0, 73, 74, 70
LEAST_PAUSE_S, MOST_PAUSE_S, SLICE_S = 1.0, 5.0, 0.5
GROWTH = 1.5
SHARE = 20.0
"""A pause is at least so many times as long as the poll before it, up to MOST_SLOW_S."""
MOST_SLOW_S = 60.0
BARE_S = 10.0
"""Minimum time between two writes of a position without a record: without records, nothing could come twice."""
LAST_TRIES = 5
"""Number of retries after the stop file exists."""


@dataclass(frozen=True)
class World:
    """Functions of the machine that the loop uses."""

    monotonic: Callable[[], float]
    sleep: Callable[[float], None]
    report: Callable[[Mapping[str, Any]], None]
    """Writes one event."""
    is_alone: Callable[[], bool] = lambda: False
    """Returns whether the process that started this one has ended."""


class Collector:
    """One run of a collector."""

    def __init__(self, spec: CollectorSpec, source: Source, ledger: Ledger, notes: Notes, world: World) -> None:
        self._out, self._stop_file, self._max_bytes = spec.out, spec.stop_file, spec.max_bytes
        self._source = source
        self._ledger = ledger
        self._notes = notes
        self._world = world
        self._committed_at = world.monotonic()

    def run(self) -> int:
        """Run until the stop file exists and everything is read, the records reach their maximum size, or the process
        that started this one has ended. Return the exit status."""
        pause_s, failures = LEAST_PAUSE_S, 0
        while not self._world.is_alone():
            if self._is_full():
                return self._done()
            stopping = self._stopping()
            begun = self._world.monotonic()
            try:
                harvest = self._source.poll(stopping)
                failures = 0
            except OSError as error:
                self._notes.note("unreadable", f"what the learner writes cannot be read: {error}")
                harvest, failures = Harvest([], False), failures + 1
                if stopping and failures > LAST_TRIES:
                    return EXIT_CANNOT_READ
            if not self._committed(harvest):
                return EXIT_CANNOT_WRITE
            if harvest.more:
                pause_s = LEAST_PAUSE_S
            elif stopping and not failures:
                return self._done()
            else:
                pause_s = LEAST_PAUSE_S if harvest.records else min(MOST_PAUSE_S, pause_s * GROWTH)
                took_s = self._world.monotonic() - begun
                self._pause(max(pause_s, min(MOST_SLOW_S, SHARE * took_s)), stopping)
        return EXIT_ALONE

    def _committed(self, harvest: Harvest) -> bool:
        """Return whether the batch is written. Retry as long as the learner runs."""
        tries = 0
        now = self._world.monotonic()
        if not harvest.records and now - self._committed_at < BARE_S:
            return True
        self._committed_at = now
        while True:
            try:
                if tries:
                    self._ledger.complete()
                else:
                    self._ledger.commit(harvest.records, self._state())
            except OSError as error:
                tries += 1
                self._notes.note("unwritable", f"{self._out}: records cannot be written: {error}; tried again")
                stopping = self._stopping()
                if stopping and tries > LAST_TRIES:
                    return False
                self._pause(min(MOST_PAUSE_S, LEAST_PAUSE_S * tries), stopping)
            else:
                return True

    def _is_full(self) -> bool:
        if not self._max_bytes or self._ledger.size() < self._max_bytes:
            return False
        self._notes.note("full", f"{self._out} has {self._max_bytes} bytes; what comes now is not collected")
        return True

    def _stopping(self) -> bool:
        try:
            return os.path.lexists(self._stop_file)  # a link to itself counts as a stop file
        except OSError:  # a file system that is gone says nothing
            return False

    def _state(self) -> dict[str, Any]:
        return {"source": self._source.state(), "counts": dict(self._notes.counts)}

    def _pause(self, seconds: float, stopping: bool) -> None:
        """Pause. The pause is short if the stop file exists or appears."""
        until = self._world.monotonic() + (min(seconds, LEAST_PAUSE_S) if stopping else seconds)
        while (left := until - self._world.monotonic()) > 0:
            self._world.sleep(min(left, SLICE_S))
            if self._world.is_alone() or (not stopping and self._stopping()):
                return

    def _done(self) -> int:
        self._world.report({"event": "done", "records": self._ledger.rindex, "notes": dict(self._notes.counts)})
        return EXIT_DONE
