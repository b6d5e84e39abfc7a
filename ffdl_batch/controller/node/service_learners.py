"""Decide when to end service learners, which never end by themselves: when no learner trains any more."""

from __future__ import annotations

from typing import List, Mapping, Optional, Sequence

from ffdl_batch.attempt.learner_endings import endings_of_run, last_endings, learner_status
from ffdl_batch.controller.rendezvous.node_barrier import OtherNodes
from ffdl_batch.domain.launch.launch_file import LaunchFile
from ffdl_batch.domain.outcome.controller_events import Event
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.host.nonblocking_stderr import ErrorReporter
from ffdl_batch.host.worker_thread import WorkerThread

SERVICE = "service"
"""Why a service was ended: no learner needed it any more."""
LOOK_S = 1.0
DOUBT_S = 10.0
"""If the training ends within this many seconds after a service failed, that explains the failure: the events of other
nodes arrive late."""


def is_training_over(launch: LaunchFile, events: Sequence[Event], *, asked: bool) -> bool:
    """Return whether every training learner has ended in this run, with success unless they were `asked` to end."""
    endings = endings_of_run(events)
    own = [endings.get(number) for number in launch.trainees]
    if asked:
        return None not in own
    return all(event is not None and learner_status(event) == 0 and not event.fields.get("ended_by") for event in own)


def has_trained(launch: LaunchFile, done: Mapping[int, int]) -> bool:
    """Return whether all training is done. `done` has the statuses of learners that ended by themselves."""
    return all(done.get(number) == 0 for number in launch.trainees)


def at_work(launch: LaunchFile, learner_ids: Sequence[int], done: Mapping[int, int]) -> List[int]:
    """Return which of these learners to start: none if one failed or all training is done.

    Services are started again while a learner trains, even if they ended with success in an earlier run.
    """
    if has_trained(launch, done) or any(done.values()):
        return []
    return [number for number in learner_ids if number not in done or launch.seat_of(number).service]


def left_behind(
    launch: LaunchFile, learner_ids: Sequence[int], events: Sequence[Event], done: Mapping[int, int]
) -> List[int]:
    """Return services whose end no earlier controller reported, if all training is done. None of them is alive."""
    if not has_trained(launch, done):
        return []
    ended = last_endings(list(events))
    reported = {number for number, event in ended.items() if event.fields.get("ended_by") == SERVICE}
    return [number for number in learner_ids if launch.seat_of(number).service and number not in {*done, *reported}]


@dataclass(frozen=True)
class Failed:
    """A service that ended by itself with an error."""

    learner_id: int
    status: int
    at: float
    """When that became known."""


class Services:
    """The services of one node."""

    def __init__(self, launch: LaunchFile, siblings: OtherNodes, worker: WorkerThread) -> None:
        """`worker` reads the other nodes' events, because the file system may hang."""
        self.launch, self.siblings, self._worker = launch, siblings, worker
        self._trained_on = {launch.seat_of(number).node for number in launch.trainees}
        self.failed: Optional[Failed] = None
        self._look_at = 0.0
        self._looking = self._over = False
        self._errors = ErrorReporter()

    def is_one(self, learner_id: int) -> bool:
        """Return whether the learner is a service."""
        return self.launch.seat_of(learner_id).service

    def are_free(self, now: float, *, asked: bool) -> bool:
        """Return whether no learner needs them any more, as last read. Reads again once a second, without waiting."""
        if not self._over and not self._looking and now >= self._look_at:
            self._looking, self._look_at = True, now + LOOK_S
            self._worker.ask(lambda: self._look(asked), None, 0.0)
        return self._over

    def _look(self, asked: bool) -> None:
        """Read the events, in the worker's thread."""
        try:
            self._over = is_training_over(self.launch, self.siblings.events(self._trained_on), asked=asked)
        except OSError as error:
            self._errors.report(error)
        finally:
            self._looking = False
