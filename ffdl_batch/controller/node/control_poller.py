"""Poll the attempt's cells and write the heartbeat, in a second thread of the node controller.

If the shared file system hangs, it stops this thread and not the one that watches the learners. That one ends the
learners if nothing could be read for too long (`last_read`). It also ends them if the heartbeat could not be written
for too long: a dead disk may still be readable from the cache, and other nodes assume that a silent node is dead.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from typing import Any, BinaryIO, Dict, List, Optional, Tuple

from ffdl_batch.attempt.control_cell import CANCEL, Control, newer_attempt, newer_run, own_run, read_control
from ffdl_batch.attempt.event_journal import Journal
from ffdl_batch.attempt.file_writer import NO_SPACE, touch
from ffdl_batch.attempt.layout import AttemptDir
from ffdl_batch.attempt.phase_files import Ended, Fenced, PhaseFiles, note
from ffdl_batch.attempt.reader import NO_FILE, find_object, open_regular, size_of
from ffdl_batch.domain.file_format import FORMAT
from ffdl_batch.domain.launch.launch_file import LaunchFile
from ffdl_batch.domain.outcome.controller_events import HALT, IDLE_GPUS, LIMITS, TERM, WARNED
from ffdl_batch.host.descriptors import write_all
from ffdl_batch.host.nonblocking_stderr import ErrorReporter
from ffdl_batch.host.running_clock import RunningTime
from ffdl_batch.host.signals import next_signal

INTERVAL_S = 1.0
ECHO_S, ECHO_REST_S = 0.2, 5.0
FRESH_S = 1.5
"""Seconds that a signal waits until the cells are read again."""


class ControlPoller:
    """Polls the cells and writes the heartbeat. The other thread reads its attributes."""

    def __init__(
        self, launch: LaunchFile, node_rank: int, learner_ids: List[int], clock: Optional[RunningTime] = None
    ) -> None:
        self.launch, self.node_rank, self.clock = launch, node_rank, clock or RunningTime()
        self.attempt = AttemptDir(launch.attempt_dir)
        self.stop: Dict[str, Any] = {}
        self.control = Control()
        self.newer_run = self.newer_attempt = 0
        self.last_read = self.clock.now()
        self._began: Dict[int, Optional[str]] = dict.fromkeys(learner_ids)
        self._starts = dict.fromkeys(learner_ids, 0)
        self._noting = threading.Lock()
        self._looked_at = -1.0
        self._run_number = own_run(os.environ)
        self._echo = Echo([self.attempt.training_log(n) for n in learner_ids]) if launch.echo_output else None
        self._last_beat = 0.0
        self._refused: Optional[Tuple[float, str]] = None
        """Since when and why the heartbeat cannot be written; None while it can."""
        self._errors, self._reported_newer = ErrorReporter(), False
        self._done = False
        self._wake, self._changed = threading.Event(), threading.Condition()
        self._rounds_begun = self._rounds_done = 0
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)

    def begin(self) -> None:
        """Start the thread. Call :func:`signals.hold_signals` before."""
        self.clock.begin()
        self._thread.start()
        if self._echo:
            self._echo.begin()

    def finish(self) -> None:
        """Stop the thread. If it hangs in the file system, it is left behind."""
        self.clock.finish()
        if self._thread.ident is not None:
            self._done = True
            self._wake.set()
            self._thread.join(timeout=2 * INTERVAL_S)
            if self._echo:
                self._echo.finish()

    def read_now(self) -> Control:
        """Return the requests as of now; those last read if the file system does not answer in time."""
        if self._thread.ident is None:
            self.look()
            return self.control
        with self._changed:
            wanted = self._rounds_begun + 1
            self._wake.set()
            self._changed.wait_for(lambda: self._rounds_done >= wanted, FRESH_S)
        return self.control

    @property
    def superseded(self) -> str:
        """Return why this run is no longer valid: a newer attempt or run, or it was abandoned; "" if it is valid."""
        if (newest := max(self.control.attempt, self.newer_attempt)) > self.launch.attempt:
            return f"attempt {newest} of this job has been started"
        if self.control.abandon_mark is not None and self.control.abandon_mark.run >= self._run_number:
            return "the daemon abandoned this run, because one of its controllers gave no sign of life"
        if self.newer_run:
            return f"run {self.newer_run} of this attempt has been started"
        return ""

    @property
    def is_released(self) -> bool:
        """Return whether the learners of this node must leave the job, as last read."""
        learners = self.control.learners
        return learners is not None and all(number > learners for number in self._began)

    @property
    def fenced(self) -> str:
        """Return why the learners must end; "" if they may continue."""
        if self.superseded:
            return self.superseded
        silent_s = self.clock.now() - self.last_read
        if silent_s > self.launch.limits.fence_s:
            return f"the job's directory could not be read for {silent_s:.0f} s"
        refused = self._refused
        if refused is not None and self.clock.now() - refused[0] > self.launch.limits.fence_s:
            return f"the job's directory could not be written for {self.clock.now() - refused[0]:.0f} s: {refused[1]}"
        return ""

    def look(self) -> None:
        """Do one round. An error in one step does not stop the others."""
        for step in (self._note_began, self._read_cells, self._beat):
            try:
                step()
            except OSError as error:
                self._errors.report(error)

    def _run(self) -> None:
        while not self._done:
            self._wake.wait(INTERVAL_S)
            self._wake.clear()
            self._rounds_begun += 1
            self.look()
            with self._changed:
                self._rounds_done = self._rounds_begun
                self._changed.notify_all()
        self.look()

    def inner_pid(self, learner_id: int) -> str:
        """Return the process id, as seen inside, of the shell that reached the user's command; "" if unknown."""
        return self._began.get(learner_id) or ""

    def has_begun(self, learner_id: int) -> bool:
        """Return whether the user's command was reached. If the file system does not answer, assume that it was."""
        asked_at = self.clock.now()
        if self._began.get(learner_id) is None:
            self.read_now()
        return self._began.get(learner_id) is not None or self._looked_at < asked_at

    def forget(self, learner_id: int) -> None:
        """Forget what was read about the learner, because it is started again."""
        with self._noting:
            self._starts[learner_id] += 1
            self._began[learner_id] = None

    def _note_began(self) -> None:
        """Read which learners have begun. Before the thread starts, the files are those of an earlier run."""
        if self._thread.ident is None:
            return
        at = self.clock.now()
        os.stat(self.attempt.path)
        phases = PhaseFiles(self.attempt.state)
        for number in [number for number, pid in self._began.items() if not pid]:
            start = self._starts[number]
            pid = phases.began(number)
            with self._noting:
                if self._starts[number] == start:
                    self._began[number] = pid
        self._looked_at = at

    def _read_cells(self) -> None:
        os.stat(self.attempt.path)
        self.stop = find_object(self.attempt.stop, below=self.attempt.path)
        self.newer_run = newer_run(self.launch, self._run_number)
        self.newer_attempt = newer_attempt(self.launch)
        self.control = read_control(self.attempt)
        self.last_read = self.clock.now()
        if self.control.format > FORMAT and not self._reported_newer:
            self._reported_newer = True
            sys.stderr.write(
                f"ffdl-controller: {self.attempt.control} has format {self.control.format}, and this release reads "
                f"{FORMAT}: it obeys what it understands\n"
            )

    def _beat(self) -> None:
        now, at = time.monotonic(), self.clock.now()
        if self._last_beat and now - self._last_beat < self.launch.limits.heartbeat_s:
            return
        try:
            touch(self.attempt.heartbeat(self.node_rank))
        except OSError as error:
            # A file system without space still answers.
            since = self._refused[0] if self._refused else at
            self._refused = None if error.errno in NO_SPACE else (since, str(error))
            raise
        self._last_beat, self._refused = now, None


class Echo:
    """Copies new output of learners' logs to a file descriptor, in a thread, because its reader may be slow."""

    def __init__(self, logs: List[str], target: int = 1) -> None:
        self.target = target
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="echo", daemon=True)
        self._logs = {log: size_of(log) for log in logs}
        """The position in each log at which copying begins."""
        self._open: Dict[str, BinaryIO] = {}

    def begin(self) -> None:
        """Start copying."""
        self._thread.start()

    def finish(self) -> None:
        """Copy the rest, for at most :data:`ECHO_REST_S` seconds."""
        self._done.set()
        self._thread.join(timeout=ECHO_REST_S)

    def _run(self) -> None:
        while not self._done.wait(ECHO_S):
            self.copy()
        self.copy()

    def copy(self) -> None:
        """Copy new output. If the target is closed or full, copying ends and the job continues."""
        for log in self._logs:
            try:
                self._copy(log)
            except NO_FILE:
                continue
            except OSError as error:
                sys.stderr.write(f"ffdl-controller: the log is no longer copied to standard output: {error}\n")
                self._logs = {}
                return

    def _copy(self, log: str) -> None:
        """Copy the rest of the file that was read last, and of the one that has its name now."""
        file = self._open.get(log)
        if file is not None:
            self._copy_rest(file)
            if os.path.samestat(os.fstat(file.fileno()), os.lstat(log)):
                return
            self._copy_rest(file)
            self._open.pop(log).close()
        file = self._open[log] = open_regular(log)
        file.seek(self._logs[log])
        self._logs[log] = 0
        self._copy_rest(file)

    def _copy_rest(self, file: BinaryIO) -> None:
        while data := file.read(1 << 16):
            write_all(self.target, data)


class InterruptionCheck:
    """Checks, before the learners start, whether the attempt must end. Its methods raise Ended or Fenced then."""

    def __init__(self, journal: Journal, watch: ControlPoller, phases: PhaseFiles) -> None:
        self._journal, self._watch, self._phases = journal, watch, phases
        self._looked_at = 0.0

    def check(self) -> None:
        """Check signals and requests before the learners start."""
        self._take_signals(0.0)
        self._look()

    def rest(self) -> None:
        """Wait a moment for another node, which may wait for an event that this node could not write yet."""
        self._journal.flush()
        self._take_signals(0.2)
        self._look()

    def go_on(self) -> None:
        """Check between two steps of loading. The cells are read once a second."""
        self._take_signals(0.0)
        if time.monotonic() - self._looked_at >= 1.0:
            self._look()

    def _look(self) -> None:
        """Read the cells and obey them."""
        self._looked_at = time.monotonic()
        self._watch.look()
        if self._watch.fenced:
            raise Fenced(self._watch.fenced)
        self._obey_request()
        what, reason = self._watch.stop.get("what"), str(self._watch.stop.get("reason", "stop"))
        if what == "stop" or (what == "halt" and reason in (*LIMITS, IDLE_GPUS)):
            raise Ended(reason, f"ended before the learners started: {reason}")
        if what == "halt":
            self._halted()

    def _obey_request(self) -> None:
        if self._watch.control.requested_action == HALT:
            self._halted()
        if self._watch.control.requested_action == CANCEL:
            raise Ended(TERM, "cancelled before the learners started")

    def _halted(self) -> None:
        note(self._phases.request_halt)
        raise Ended(HALT, "halted before the learners started")

    def _take_signals(self, wait_s: float) -> None:
        number = next_signal(wait_s)
        while number is not None:
            if number in (signal.SIGTERM, signal.SIGINT, signal.SIGURG):
                self._watch.read_now()
                self._obey_request()
            if number in (signal.SIGTERM, signal.SIGINT):
                raise Ended(TERM, f"ended by {signal.Signals(number).name} before the learners started")
            if number == signal.SIGURG:
                raise Ended(WARNED, "the scheduler warned of the job's end before the learners started")
            number = next_signal(0.0)
