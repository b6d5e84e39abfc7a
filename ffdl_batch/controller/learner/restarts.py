"""Restart learners that failed while the others continue (``restart: learner`` of the manifest)."""

from __future__ import annotations

import queue
import threading
from collections import Counter
from typing import Callable, Dict, List, Sequence, Tuple, Union

from ffdl_batch.controller.learner.learner import Learner
from ffdl_batch.domain.launch.launch_file import RESTART_LEARNER, LaunchFile
from ffdl_batch.domain.outcome.controller_events import Event, EventKind, Scalar
from ffdl_batch.host.backoff import growing_pause
from ffdl_batch.host.worker_thread import WorkerThread

MOST_PAUSE_S = 30.0
Fields = Dict[str, Scalar]
Spawned = Union[Learner, Exception]


def pause_s(count: int) -> float:
    """Return the seconds before restart number `count` (from 1) on the node."""
    return growing_pause(count, 1.0, MOST_PAUSE_S)


def count_restarts(events: Sequence[Event]) -> "Counter[int]":
    """Return how often each learner was restarted, from one node controller's events of all runs."""
    ends = (event for event in events if event.kind is EventKind.LEARNER_ENDED and event.fields.get("restarted"))
    return Counter(int(event.fields.get("learner_id") or 0) for event in ends)


def restarts_left(launch: LaunchFile, events: Sequence[Event]) -> int:
    """Return how many restarts this node has left."""
    return launch.restarts_max - sum(count_restarts(events).values()) if launch.restart == RESTART_LEARNER else 0


class Restarts:
    """The restarts of one node. `spawn` starts a learner, in the worker's thread, because the file system may hang."""

    def __init__(
        self, launch: LaunchFile, events: Sequence[Event], worker: WorkerThread, spawn: Callable[[int], Learner]
    ) -> None:
        self._counts, self._left = count_restarts(events), restarts_left(launch, events)
        self._worker, self._spawn = worker, spawn
        self._waiting: Dict[int, Tuple[float, Fields]] = {}
        self._starting: Dict[int, Fields] = {}
        self._spawned: "queue.SimpleQueue[Tuple[int, Spawned]]" = queue.SimpleQueue()
        self._closed = threading.Event()

    @property
    def pending(self) -> bool:
        """Return whether a learner waits for its restart or is being started."""
        return bool(self._waiting or self._starting)

    @property
    def possible(self) -> bool:
        """Return whether one more restart is allowed."""
        return self._left > 0 and not self._closed.is_set()

    def of(self, learner_id: int) -> int:
        """Return how often the learner was restarted in all runs of the attempt."""
        return self._counts[learner_id]

    def add(self, learner_id: int, fields: Fields, now: float) -> None:
        """Schedule a restart of a learner that has failed. `fields` are those of the event of its end."""
        self._counts[learner_id] += 1
        self._left -= 1
        self._waiting[learner_id] = (now + pause_s(sum(self._counts.values())), fields)

    def start_due(self, now: float) -> List[Tuple[int, Spawned]]:
        """Start learners whose pause is over, without waiting. Return those that started, or the errors."""
        for learner_id in [one for one, (due, _) in self._waiting.items() if now >= due]:
            self._starting[learner_id] = self._waiting.pop(learner_id)[1]
            self._worker.ask(lambda number=learner_id: self._start(number), None, 0.0)  # type: ignore[misc]
        arrived = []
        while not self._spawned.empty():
            learner_id, spawned = self._spawned.get_nowait()
            if self._starting.pop(learner_id, None) is not None:
                arrived.append((learner_id, spawned))
        return arrived

    def drop(self) -> List[Tuple[int, Fields]]:
        """Allow no more restarts. Return the learners that were waiting, with the fields of their ends."""
        self._closed.set()
        dropped = [(number, fields) for number, (_, fields) in self._waiting.items()]
        self._waiting.clear()
        dropped += self._starting.items()
        self._starting.clear()
        return dropped

    def _start(self, learner_id: int) -> None:
        """Start the learner, in the worker's thread."""
        if self._closed.is_set():
            return
        try:
            spawned: Spawned = self._spawn(learner_id)
        except Exception as error:  # noqa: BLE001 - the supervisor records it as the learner's end
            spawned = error
        if self._closed.is_set() and isinstance(spawned, Learner):  # no longer wanted
            spawned.kill("stop")
            spawned.poll()
        self._spawned.put((learner_id, spawned))
