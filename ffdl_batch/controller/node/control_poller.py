"""A node controller's second thread: everything that touches the shared file system again and again.

A file system that hangs stops this thread, not the one that watches the learners; the other one sees by
`last_read` that nothing was readable for too long, and ends them. It ends them too where the heartbeat was refused
for as long: a dead disk can still be read from its cache, and others take a node that is not heard of for dead.
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
from ffdl_batch.domain.outcome.controller_events import HALT, LIMITS, TERM, WARNED
from ffdl_batch.host.running_clock import RunningTime
from ffdl_batch.host.signals import next_signal

INTERVAL_S = 1.0
ECHO_S, ECHO_REST_S = 0.2, 5.0
FRESH_S = 1.5
"""How long a signal waits for the cells to be read again."""


class ControlPoller:
    """Polls the cells, beats the heart. Attributes are read by the other thread."""

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
        """Since when the heartbeat cannot be written, and why; None while it can."""
        self._complained, self._reported_newer = "", False
        self._done = False
        self._wake, self._changed = threading.Event(), threading.Condition()
        self._rounds_begun = self._rounds_done = 0
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)

    def begin(self) -> None:
        """Start the thread; call :func:`signals.hold_signals` before."""
        self.clock.begin()
        self._thread.start()
        if self._echo:
            self._echo.begin()

    def finish(self) -> None:
        """Stop it; a thread that hangs in the file system is left behind."""
        self.clock.finish()
        if self._thread.ident is not None:
            self._done = True
            self._wake.set()
            self._thread.join(timeout=2 * INTERVAL_S)
            if self._echo:
                self._echo.finish()

    def read_now(self) -> Control:
        """What the platform wants as of now; as of the last round where the file system does not answer in time."""
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
        """What came after this run, be it that it was given up; "" where nothing did, by all that was read."""
        if (newest := max(self.control.attempt, self.newer_attempt)) > self.launch.attempt:
            return f"attempt {newest} of this job has been started"
        if self.control.given_up >= self._run_number:
            return "this run was given up, because nothing was heard of a controller of it"
        if self.newer_run:
            return f"run {self.newer_run} of this attempt has been started"
        return ""

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
        """One round."""
        for step in (self._note_began, self._read_cells, self._beat):
            try:
                step()
            except OSError as error:
                if str(error) != self._complained:
                    self._complained = str(error)
                    sys.stderr.write(f"ffdl-controller: {error}; will be tried again\n")

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
        """The process id, as seen inside, of the shell that reached the user's command; "" where that is not known."""
        return self._began.get(learner_id) or ""

    def has_begun(self, learner_id: int) -> bool:
        """Whether the user's command was reached. Where the file system does not say so now, it was: most were."""
        asked_at = self.clock.now()
        if self._began.get(learner_id) is None:
            self.read_now()
        return self._began.get(learner_id) is not None or self._looked_at < asked_at

    def forget(self, learner_id: int) -> None:
        """The learner is started: what a look that is under way has read is about the one before."""
        with self._noting:
            self._starts[learner_id] += 1
            self._began[learner_id] = None

    def _note_began(self) -> None:
        """Of the learners of this run: before the thread begins, the files are an earlier run's."""
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
                f"{FORMAT}: what it understands of it is obeyed\n"
            )

    def _beat(self) -> None:
        now, at = time.monotonic(), self.clock.now()
        if self._last_beat and now - self._last_beat < self.launch.limits.heartbeat_s:
            return
        try:
            touch(self.attempt.heartbeat(self.node_rank))
        except OSError as error:
            # Want of room is the word of a file system that answers.
            since = self._refused[0] if self._refused else at
            self._refused = None if error.errno in NO_SPACE else (since, str(error))
            raise
        self._last_beat, self._refused = now, None


class Echo:
    """Copies what learners' logs get to a file descriptor, in order, whole reads at a time; in a thread of its own, for
    whoever reads at the other end may be slow."""

    def __init__(self, logs: List[str], target: int = 1) -> None:
        self.target = target
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="echo", daemon=True)
        self._logs = {log: size_of(log) for log in logs}
        """Where to begin."""
        self._open: Dict[str, BinaryIO] = {}

    def begin(self) -> None:
        """Start copying."""
        self._thread.start()

    def finish(self) -> None:
        """Copy the rest, as far as it is taken in time."""
        self._done.set()
        self._thread.join(timeout=ECHO_REST_S)

    def _run(self) -> None:
        while not self._done.wait(ECHO_S):
            self.copy()
        self.copy()

    def copy(self) -> None:
        """Copy what is new; a target that refuses it (closed, full) ends the copying, not the job."""
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
        """The rest of the file that was read last, and the one that has its name now."""
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
        data = file.read(1 << 16)
        while data:
            written = os.write(self.target, data)
            data = data[written:] or file.read(1 << 16)


class InterruptionCheck:
    """Asked between two pieces of work and at every wait; each method raises Ended or Fenced where the work has no
    purpose any more."""

    def __init__(self, journal: Journal, watch: ControlPoller, phases: PhaseFiles) -> None:
        self._journal, self._watch, self._phases = journal, watch, phases
        self._looked_at = 0.0

    def check(self) -> None:
        """Signals and requests that came while this node was loading; the learners are not started then."""
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
        self._obey_request()
        what, reason = self._watch.stop.get("what"), str(self._watch.stop.get("reason", "stop"))
        if what == "stop" or (what == "halt" and reason in LIMITS):
            raise Ended(reason, f"told to end before the learners started: {reason}")
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
