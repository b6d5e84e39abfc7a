"""End service learners, which wait for the others for ever, when no learner trains any more."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import List, Mapping, Optional, Sequence

from ffdl_batch.attempt.learner_endings import endings_of_run, last_endings, learner_status
from ffdl_batch.controller.rendezvous.node_barrier import OtherNodes
from ffdl_batch.domain.launch.launch_file import LaunchFile
from ffdl_batch.domain.outcome.controller_events import Event
from ffdl_batch.host.worker_thread import WorkerThread

SERVICE = "service"
"""Why a service was ended: no learner needed it any more."""
LOOK_S = 1.0
DOUBT_S = 10.0
"""How long a service that failed may have done so because the training was over: its peers' last words come later."""


def is_training_over(launch: LaunchFile, events: Sequence[Event], *, asked: bool) -> bool:
    """Whether every training learner has ended in this run, and well unless they were `asked` to end."""
    endings = endings_of_run(events)
    own = [endings.get(number) for number in launch.trainees]
    if asked:
        return None not in own
    return all(event is not None and learner_status(event) == 0 and not event.fields.get("ended_by") for event in own)


def has_trained(launch: LaunchFile, done: Mapping[int, int]) -> bool:
    """Whether no learner is left to train. `done` has the statuses of learners that ended of themselves."""
    return all(done.get(number) == 0 for number in launch.trainees)


def at_work(launch: LaunchFile, learner_ids: Sequence[int], done: Mapping[int, int]) -> List[int]:
    """Which of these are to be started: none where somebody failed or all have trained. A service is needed by whoever
    still trains, also where it ended well in an earlier run."""
    if has_trained(launch, done) or any(done.values()):
        return []
    return [number for number in learner_ids if number not in done or launch.seat_of(number).service]


def left_behind(
    launch: LaunchFile, learner_ids: Sequence[int], events: Sequence[Event], done: Mapping[int, int]
) -> List[int]:
    """Services that earlier controllers left without a last word, when all have trained. None of them lives."""
    if not has_trained(launch, done):
        return []
    ended = last_endings(list(events))
    told = {number for number, event in ended.items() if event.fields.get("ended_by") == SERVICE}
    return [number for number in learner_ids if launch.seat_of(number).service and number not in {*done, *told}]


@dataclass(frozen=True)
class Failed:
    """A service that ended of itself with `status`, and when that became known."""

    learner_id: int
    status: int
    at: float


class Services:
    """What the services of one node wait for. `worker` reads the other nodes' events, which may hang."""

    def __init__(self, launch: LaunchFile, siblings: OtherNodes, worker: WorkerThread) -> None:
        self.launch, self.siblings, self._worker = launch, siblings, worker
        self._trained_on = {launch.seat_of(number).node for number in launch.trainees}
        self.failed: Optional[Failed] = None
        self._look_at = 0.0
        self._looking = self._over = False
        self._complained = ""

    def is_one(self, learner_id: int) -> bool:
        """Whether the learner is a service."""
        return self.launch.seat_of(learner_id).service

    def are_free(self, now: float, *, asked: bool) -> bool:
        """Whether no learner needs them any more, by the last look. Looks again once a second and waits for nothing."""
        if not self._over and not self._looking and now >= self._look_at:
            self._looking, self._look_at = True, now + LOOK_S
            self._worker.ask(lambda: self._look(asked), None, 0.0)
        return self._over

    def _look(self, asked: bool) -> None:
        """In the worker's thread."""
        try:
            self._over = is_training_over(self.launch, self.siblings.events(self._trained_on), asked=asked)
        except OSError as error:
            if str(error) != self._complained:
                self._complained = str(error)
                sys.stderr.write(f"ffdl-controller: {error}; will be tried again\n")
        finally:
            self._looking = False
