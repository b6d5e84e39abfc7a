"""Forward requests to checkpoint or to end, from signals, the owner or the head, to the learners of one node."""

from __future__ import annotations

import signal
import sys
import time
from typing import Callable, Dict, Optional

from ffdl_batch.attempt.control_cell import CANCEL
from ffdl_batch.attempt.event_journal import Journal
from ffdl_batch.attempt.phase_files import Fenced, PhaseFiles
from ffdl_batch.controller.checkpoints import (
    FROM_OUTSIDE,
    OUTSIDE_SHARE,
    PATIENCE_S,
    CheckpointRecord,
    Request,
    ask_others,
    join,
    new_request,
)
from ffdl_batch.controller.learner.learner import FENCE, Learner
from ffdl_batch.controller.node.control_poller import ControlPoller
from ffdl_batch.domain.outcome.controller_events import (
    HALT,
    IDLE_GPUS,
    LIMITS,
    RELEASED,
    TERM,
    TIME,
    WARNED,
    EventKind,
)
from ffdl_batch.host.signals import FORWARDED, next_signal
from ffdl_batch.host.worker_thread import WorkerThread

ASK_AGAIN_S = 1.0
FILES_S = 1.0
"""Seconds to wait until the shared file system has a file that others read. It is written even if that takes longer."""
HURRY_S = 1.0
"""Seconds that an inventory may take after a TERM from outside."""


class LearnerRequests:
    """Sends requests to the living ones of `learners`, whose number may change. Times are of the poller's clock."""

    def __init__(
        self,
        learners: Dict[int, Learner],
        watch: ControlPoller,
        record: CheckpointRecord,
        journal: Journal,
        files: WorkerThread,
        drop_restarts: Callable[[str], None],
    ) -> None:
        """`drop_restarts` is called with the reason, perhaps repeatedly, when no learner may be started any more."""
        self.learners = learners
        self.request: Optional[Request] = None
        """The request to checkpoint and end, with its times."""
        self.ending = ""
        """Why all learners are being ended, "" if they are not."""
        self.terminated_at: Optional[float] = None
        """When TERM arrived from outside."""
        self._launch, self._watch, self._clock = watch.launch, watch, watch.clock
        self._record, self._journal, self._files = record, journal, files
        self._phases, self._drop_restarts = PhaseFiles(watch.attempt.state), drop_restarts
        self._ask_again_at = 0.0

    @property
    def is_quiet(self) -> bool:
        """Return whether no request is pending and no learner is being ended."""
        return self.request is None and not self.ending

    def take_signals(self, wait_s: float) -> None:
        """Handle the signals that arrived. Wait up to `wait_s` seconds for the first."""
        number = next_signal(wait_s)
        while number is not None:
            if number in (signal.SIGTERM, signal.SIGINT):
                self._terminated()
            elif number == signal.SIGURG:
                self._warned()
            elif number in FORWARDED:
                self._watch.read_now()  # finds learners that have started, too
                for learner in self.learners.values():
                    learner.pass_on(number)
            number = next_signal(0.0)

    def _terminated(self) -> None:
        """Handle TERM from outside. If the owner cancelled, end the learners at once, else request a checkpoint."""
        if self.terminated_at is None:
            self.terminated_at = self._clock.now()
        request = self._watch.read_now().requested_action
        if request == CANCEL:
            self.end_all(TERM, self._launch.limits.kill_wait_s * OUTSIDE_SHARE)
            return
        if request == HALT:
            self._ask(HALT)
        self._ask(TERM)

    def _warned(self) -> None:
        """Handle the platform's signal: the owner's cancel or halt if requested, else the scheduler's warning."""
        request = self._watch.read_now().requested_action
        if request == CANCEL:
            self.end_all(TERM)
        else:
            self._ask(HALT if request == HALT else WARNED)

    def obey_cells(self) -> None:
        """Carry out requests of owner and head. Kill the learners and raise Fenced if the attempt is another's."""
        fenced = self._watch.fenced
        if fenced:
            for learner in self.learners.values():
                learner.kill(FENCE)
            while any(learner.poll() is None for learner in self.learners.values()):
                time.sleep(0.02)
            raise Fenced(fenced)
        request = self._watch.control.requested_action
        if request == CANCEL:
            self.end_all(TERM)
        elif request == HALT:
            self._ask(HALT)
        what, reason = self._watch.stop.get("what"), str(self._watch.stop.get("reason", "stop"))
        if what == "halt":
            self._ask(reason if reason in (*LIMITS, IDLE_GPUS) else HALT)
        elif what == "stop":
            self.end_all(reason if reason in (TIME, HALT) else "stop")
        if self._watch.is_released and self.is_quiet:
            # No checkpoint request: programs combine the requests of all learners, so all of them would stop.
            self.end_all(RELEASED)

    def ask_idle(self, why: str) -> None:
        """Request that the learners of all nodes checkpoint and end, because GPUs were idle for too long."""
        if self.is_quiet:
            self._ask(IDLE_GPUS, why)

    def press(self) -> None:
        """Repeat the request, or end the learners when its time is over."""
        if self.request is None:
            return
        now = self._clock.now()
        if now >= self.request.term_at:
            self._end_at(self.request.reason, self.request.kill_at)
        elif now >= self._ask_again_at:
            self._deliver()

    def end_all(self, reason: str, wait_s: Optional[float] = None) -> None:
        """Send TERM to all learners now, and KILL after `wait_s` or the time in the launch file."""
        self._end_at(reason, self._clock.now() + (self._launch.limits.kill_wait_s if wait_s is None else wait_s))

    def _ask(self, reason: str, why: str = "") -> None:
        """Request that the learners checkpoint and end. If requested again, the shorter times apply. `why` is a text
        for the final record."""
        now, before = self._clock.now(), self.request
        new = new_request(reason, self._launch.limits, now)
        if self.ending and before is None:  # already being ended; a TERM from outside leaves less time
            if reason == TERM:
                self._end_at(self.ending, new.kill_at)
            return
        self.request = join(before, new)
        if self.request == before:
            return
        if before is None:
            self._record.asked(now, HURRY_S if reason == TERM else PATIENCE_S)
        self._deliver()
        self._drop_restarts(self.request.reason)
        if before is None:
            try:
                self._files.ask(self._phases.request_halt, None, FILES_S)
            except OSError as error:  # the signal was sent all the same
                sys.stderr.write(f"ffdl-controller: {error}\n")
            if reason in FROM_OUTSIDE or why:
                others = IDLE_GPUS if why else WARNED
                self._files.ask(lambda: ask_others(self._launch, others), None, FILES_S)
        if before is None or before.reason != self.request.reason:
            self._journal.append(EventKind.ASKED, reason=self.request.reason, **({"message": why} if why else {}))

    def _deliver(self) -> None:
        """Send the checkpoint signal to learners that catch it and have not had it. After a TERM from outside, send
        TERM to the others. This is repeated, since a program that is still starting catches no signal yet."""
        request = self.request
        if request is None:
            return
        number = signal.Signals["SIG" + self._launch.checkpoint_signal.upper()]
        for learner in self.learners.values():
            if learner.kill_at is not None:
                continue
            signalled = learner.request_checkpoint(number, request.reason)
            if self.terminated_at is not None and not signalled:
                learner.request_by_term(request.reason, request.kill_at)
        self._ask_again_at = self._clock.now() + ASK_AGAIN_S

    def _end_at(self, reason: str, kill_at: float) -> None:
        self.ending = self.ending or reason
        for learner in self.learners.values():
            learner.terminate(reason, kill_at)
        self._drop_restarts(reason)
