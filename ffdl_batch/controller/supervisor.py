"""Watches the learners of one node: signals, requests to end, limits, and the end of each learner."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import Dict, Optional, Tuple

from ffdl_batch.controller.environment import EnvironmentRefused
from ffdl_batch.controller.journal import Journal
from ffdl_batch.controller.learner import Ending, Learner
from ffdl_batch.controller.log_tail import tail
from ffdl_batch.controller.phases import PhaseFiles
from ffdl_batch.controller.processes import FORWARDED, adopt_orphans, end_strays, identity, next_signal
from ffdl_batch.controller.seats import Seats
from ffdl_batch.controller.siblings import tell_others
from ffdl_batch.controller.watch import Echo, Watch
from ffdl_batch.domain.events import EventKind, Scalar
from ffdl_batch.domain.launch import EnvDelivery, LaunchFile, LaunchFileError

TICK_S = 0.2
OUTSIDE_SHARE = 2 / 3
"""Of `kill_wait_s`, what learners get after a TERM from outside: the scheduler's KILL comes when all of it is over,
and results have to be stored and words written before."""
IMAGE_COMPLAINTS = (
    "could not open image",
    "image format",
    "squashfs",
    "executable file not found",
    ".sif",
    "container registry",
)
IMAGE_CODE, RUNTIME_CODE = "S103", "S105"


class Fenced(Exception):
    """The learners were killed because they might not go on; the argument says why."""


class Supervisor:
    """Owns the started learners until the last has ended."""

    def __init__(self, launch: LaunchFile, journal: Journal, phases: PhaseFiles, watch: Watch) -> None:
        self.launch, self.journal, self.phases, self.watch = launch, journal, phases, watch
        self.learners: Dict[int, Learner] = {}
        self.status = 0
        self.ending = ""
        self.halt_until: Optional[float] = None
        self.halt_reason = "halt"
        self._echo = Echo([log for log, _ in watch.logs]) if launch.echo_output else None

    def start(self, learner_id: int, seats: Seats) -> None:
        """Start one learner; one that cannot be started has ended at once, and the others are told."""
        if self.ending:
            return
        adopt_orphans()
        try:
            learner = Learner.spawn(seats.start(learner_id))
        except (OSError, subprocess.SubprocessError, LaunchFileError, EnvironmentRefused) as error:
            detail = f"learner {learner_id} cannot be started on {os.uname().nodename}: {error}"
            code = "C101" if isinstance(error, EnvironmentRefused) else RUNTIME_CODE
            self._ended(Ending(learner_id, None, began=False, detail=detail, code=code))
            return
        self.learners[learner_id] = learner
        self.journal.append(EventKind.LEARNER_STARTED, learner_id=learner_id, **identity(learner.pid))

    def run(self) -> int:
        """Until every learner has ended; the status of the first that failed, else 0. Raises Fenced."""
        self.watch.begin()
        try:
            while self.learners:
                self._take_signals()
                self._obey_cells()
                self._press_halt()
                for ending in [e for e in (learner.poll() for learner in self.learners.values()) if e]:
                    del self.learners[ending.learner_id]
                    self._ended(ending)
                self.journal.flush()
                if self._echo:
                    self._echo.copy()
        finally:
            end_strays()
            self.watch.finish()
            if self._echo:
                self._echo.copy()
        return self.status

    # ---------------------------------------------------------------------------------------- requests

    def _take_signals(self) -> None:
        closing = any(learner.rest_until or learner.kill_at for learner in self.learners.values())
        number = next_signal(0.05 if closing else TICK_S)
        while number is not None:
            if number in (signal.SIGTERM, signal.SIGINT):
                self._end_all("term", self.launch.limits.kill_wait_s * OUTSIDE_SHARE)
            elif number == signal.SIGURG:
                self._halt("halt")
            elif number in FORWARDED:
                for learner in self.learners.values():
                    learner.pass_on(number)
            number = next_signal(0.0)

    def _obey_cells(self) -> None:
        fenced = self.watch.fenced
        if fenced:
            for learner in self.learners.values():
                learner.kill("fence")
            while any(learner.poll() is None for learner in self.learners.values()):
                time.sleep(0.02)
            raise Fenced(fenced)
        what, reason = self.watch.stop.get("what"), str(self.watch.stop.get("reason", "stop"))
        if what == "halt":
            self._halt(reason)
        elif what == "stop":
            self._end_all(reason if reason in ("time", "halt") else "stop", self.launch.limits.kill_wait_s)

    def _halt(self, reason: str) -> None:
        """Ask the learners to checkpoint and end; those that do not are ended after the grace period."""
        if self.halt_until is not None:
            return
        self.halt_until = time.monotonic() + self.launch.limits.grace_s
        self.halt_reason = reason
        number = signal.Signals["SIG" + self.launch.checkpoint_signal.upper()]
        try:
            self.phases.request_halt()
        except OSError as error:  # the signal still goes out
            sys.stderr.write(f"ffdl-controller: {error}\n")
        for learner in self.learners.values():
            learner.request_checkpoint(number, reason)

    def _press_halt(self) -> None:
        if self.halt_until is not None and time.monotonic() >= self.halt_until:
            self._end_all(self.halt_reason, self.launch.limits.kill_wait_s)

    def _end_all(self, reason: str, wait_s: float) -> None:
        self.ending = self.ending or reason
        for learner in self.learners.values():
            learner.terminate(reason, wait_s)

    # ------------------------------------------------------------------------------------------ endings

    def _ended(self, ending: Ending) -> None:
        """Record it; one learner's failure ends the job for all."""
        fields: Dict[str, Scalar] = {"learner_id": ending.learner_id, "began": ending.began}
        code = ending.returncode
        if code is not None and code < 0:
            fields["signal"] = -code
        else:
            fields["exit_code"] = 127 if code is None else code
        fields["out_of_memory"] = ending.out_of_memory
        fields["ended_by"] = ending.ended_by
        detail, fault = ending.detail, ending.code
        if ending.failed and not ending.began and not fault:
            detail, fault = self._complaint(ending)
        fields.update({k: v for k, v in (("detail", detail), ("code", fault)) if v})
        self.journal.append(EventKind.LEARNER_ENDED, **fields)
        if ending.failed:
            self.status = self.status or (127 if code is None else code if code > 0 else 128 - code)
            tell_others(self.launch, learner_id=ending.learner_id)
            self._end_all("stop", self.launch.limits.kill_wait_s)

    def _complaint(self, ending: Ending) -> Tuple[str, str]:
        """The user's command was never reached: what the runtime said, and whether it was about the image."""
        lines = tail(self.watch.attempt.training_log(ending.learner_id))
        said = " ".join(line.strip() for line in lines[-3:]) or "it said nothing"
        contained = self.launch.learner.delivery is EnvDelivery.FILE
        image = contained and any(word in said.lower() for word in IMAGE_COMPLAINTS)
        what = "the image cannot be used" if image else "the container runtime failed"
        if not contained:
            what = "the learner's shell did not come up"
        return f"{what} on {os.uname().nodename}: {said}", IMAGE_CODE if image else RUNTIME_CODE
