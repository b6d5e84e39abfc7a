"""What a node controller heeds before its learners have started: signals, wishes, and the words of other nodes."""

from __future__ import annotations

import signal
import time

from ffdl_batch.attempt.control_cell import CANCEL
from ffdl_batch.attempt.event_journal import Journal
from ffdl_batch.attempt.phase_files import Ended, Fenced, PhaseFiles, note
from ffdl_batch.controller.node.control_poller import Watch
from ffdl_batch.domain.outcome.controller_events import HALT, LIMITS, TERM, WARNED
from ffdl_batch.host.signals import next_signal


class Attention:
    """Asked between two pieces of work and at every wait; each method raises Ended or Fenced where the work has no
    purpose any more."""

    def __init__(self, journal: Journal, watch: Watch, phases: PhaseFiles) -> None:
        self._journal, self._watch, self._phases = journal, watch, phases
        self._looked_at = 0.0

    def check(self) -> None:
        """Signals and wishes that came while this node was loading; the learners are not started then."""
        self._take_signals(0.0)
        self._look()

    def rest(self) -> None:
        """A moment of waiting for another node, which may wait for a word of this one that found no room on the disk.
        Raises Ended, Fenced."""
        self._journal.flush()
        self._take_signals(0.2)
        self._look()

    def go_on(self) -> None:
        """Between two pieces of what is loaded: whether it still has a purpose. Raises Ended, Fenced."""
        self._take_signals(0.0)
        if time.monotonic() - self._looked_at >= 1.0:
            self._look()

    def _look(self) -> None:
        """The cells, before the learners have started. Raises Ended, Fenced."""
        self._looked_at = time.monotonic()
        self._watch.look()
        if self._watch.fenced:
            raise Fenced(self._watch.fenced)
        self._obey_wish()
        what, reason = self._watch.stop.get("what"), str(self._watch.stop.get("reason", "stop"))
        if what == "stop" or (what == "halt" and reason in LIMITS):
            raise Ended(reason, f"told to end before the learners started: {reason}")
        if what == "halt":
            self._halted()

    def _obey_wish(self) -> None:
        if self._watch.control.wish == HALT:
            self._halted()
        if self._watch.control.wish == CANCEL:
            raise Ended(TERM, "cancelled before the learners started")

    def _halted(self) -> None:
        note(self._phases.request_halt)
        raise Ended(HALT, "halted before the learners started")

    def _take_signals(self, wait_s: float) -> None:
        number = next_signal(wait_s)
        while number is not None:
            if number in (signal.SIGTERM, signal.SIGINT, signal.SIGURG):
                self._watch.read_now()
                self._obey_wish()
            if number in (signal.SIGTERM, signal.SIGINT):
                raise Ended(TERM, f"ended by {signal.Signals(number).name} before the learners started")
            if number == signal.SIGURG:
                raise Ended(WARNED, "the scheduler warned of the job's end before the learners started")
            number = next_signal(0.0)
