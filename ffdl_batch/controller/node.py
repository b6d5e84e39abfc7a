"""The node controller: owns the learners of one node from unpacking the model to storing their results."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from typing import Callable, Dict, Optional

from ffdl_batch.controller.files import create_empty, make_private
from ffdl_batch.controller.journal import Journal
from ffdl_batch.controller.model import ModelRefused, unpack
from ffdl_batch.controller.orphans import end_controller, end_learners, living_controller, mark
from ffdl_batch.controller.phases import PhaseFiles
from ffdl_batch.controller.processes import hold_signals, identity, next_signal
from ffdl_batch.controller.seats import Seats
from ffdl_batch.controller.siblings import Siblings, tell_others
from ffdl_batch.controller.storing import store_logs, store_results
from ffdl_batch.controller.supervisor import Fenced, Supervisor
from ffdl_batch.controller.trees import copy_tree
from ffdl_batch.controller.watch import Watch
from ffdl_batch.domain.events import EventKind, Phase, node_source
from ffdl_batch.domain.jobdir import AttemptDir
from ffdl_batch.domain.launch import LaunchFile, LaunchFileError

EXIT_PLATFORM = 74
"""Exit code of a controller that failed before or without its learners (sysexits.h EX_IOERR)."""
EXIT_FENCED = 75


class PhaseFailed(Exception):
    """A phase that cannot be finished: the fault's code and its sentence."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class Ended(Exception):
    """The job is to end before the learners have started."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def run_node(launch: LaunchFile, launch_path: str, node_rank: int) -> int:
    """Run the phases of one node; the exit code of its first failing learner, else 0."""
    hold_signals()
    attempt = AttemptDir(launch.attempt_dir)
    source = node_source(node_rank)
    journal = Journal(attempt.event_file(source), source, os.path.join(launch.doorbell, launch.job_id))
    before = living_controller(journal.earlier)
    if before:
        end_controller(before, launch.limits.kill_wait_s + 5.0)
        journal = Journal(journal.path, source, journal.bell)
    journal.append(EventKind.STARTED, **identity(os.getpid()))
    journal.load_ballast()
    try:
        end_learners(journal.earlier, mark(launch.token, node_rank))
        return Node(launch, launch_path, node_rank, journal).run()
    except Fenced as fence:
        journal.append(EventKind.FAULT, code="S106", message=f"the learners were killed: {fence}")
        return EXIT_FENCED
    except (OSError, LaunchFileError) as error:
        journal.append(EventKind.FAULT, code="S105", message=f"node {node_rank} on {os.uname().nodename}: {error}")
        return EXIT_PLATFORM
    finally:
        journal.close()


class Node:
    """One run of the node controller."""

    def __init__(self, launch: LaunchFile, launch_path: str, node_rank: int, journal: Journal) -> None:
        self.launch, self.node_rank, self.journal = launch, node_rank, journal
        self.attempt = AttemptDir(launch.attempt_dir)
        self.phases = PhaseFiles(self.attempt.state)
        self.seats = Seats(launch, launch_path, node_rank)
        self.siblings = Siblings(launch, node_rank)
        self.watch = Watch(launch, node_rank, self.seats.learner_ids)

    def run(self) -> int:
        """All phases in order."""
        make_private(self.seats.scratch)
        try:
            self._prepare()
            try:
                self._load(Phase.LOAD_MODEL, self._load_model, "S301")
                self._load(Phase.LOAD_DATA, self._load_data, "S302")
                self._find_data()  # the first node's word does not speak for this one's mounts
                self._take_signals_before_start()
            except PhaseFailed as failed:
                self.journal.append(EventKind.FAULT, code=failed.code, message=str(failed))
                tell_others(self.launch, node_rank=self.node_rank)
                return EXIT_PLATFORM
            except Ended as ended:
                self.journal.append(EventKind.FAULT, code="", message=str(ended), ended_by=ended.reason)
                return 128 + signal.SIGTERM
            status = self._learners()
            stored = self._store()
            return status or (0 if stored else EXIT_PLATFORM)
        finally:
            shutil.rmtree(self.seats.scratch, ignore_errors=True)

    def _prepare(self) -> None:
        for directory in (self.attempt.state, self.attempt.model, self.attempt.data, self.attempt.results):
            os.makedirs(directory, exist_ok=True)
        for number in self.seats.learner_ids:
            os.makedirs(self.attempt.learner_logs(number), exist_ok=True)
            create_empty(self.attempt.training_log(number))
        self.phases.announce(self.launch.job_id, 1)

    # ------------------------------------------------------------------------------------------ loading

    def _load(self, phase: Phase, work: Callable[[], None], code: str) -> None:
        """Rank 0 does it unless it is done; the others wait for rank 0's word."""
        if self.node_rank != 0:
            self._await(phase)
            return
        if self.phases.status(phase) == 0:
            return
        self._phase(phase, work, code)

    def _await(self, phase: Phase) -> None:
        while True:
            status = self.siblings.phase_status(0, phase)
            if status == 0:
                return
            if status is not None:
                raise Ended("stop", f"{phase.value} failed on the first node")
            self._take_signals(0.2)
            self.watch.look()
            if self.watch.fenced:
                raise Fenced(self.watch.fenced)
            if self.watch.stop.get("what") == "stop":
                reason = str(self.watch.stop.get("reason"))
                raise Ended(reason, f"told to end before the learners started: {reason}")

    def _take_signals(self, wait_s: float) -> None:
        number = next_signal(wait_s)
        while number is not None:
            if number in (signal.SIGTERM, signal.SIGINT):
                raise Ended("term", f"ended by {signal.Signals(number).name} before the learners started")
            if number == signal.SIGURG:
                self.phases.request_halt()
                raise Ended("halt", "halted before the learners started")
            number = next_signal(0.0)

    def _phase(self, phase: Phase, work: Callable[[], None], code: str, *, last: bool = True) -> None:
        """One phase with its files and events. `last`: this node is the one that ends the phase for the job."""
        status, reason = 1, ""
        self.journal.append(EventKind.PHASE, phase=phase.value, status="started")
        try:
            self.phases.begin(phase)
            work()
            status = 0
        except PhaseFailed as failed:
            code, reason = failed.code, str(failed)
        except (OSError, ModelRefused) as error:
            reason = f"{phase.value} on {os.uname().nodename}: {error}"
        if last or status:
            self._note_end(phase, status)
        self.journal.append(EventKind.PHASE, phase=phase.value, status="ended", exit=status)
        if status:
            raise PhaseFailed(code, reason)

    def _note_end(self, phase: Phase, status: int) -> None:
        try:
            self.phases.end(phase, status)
        except OSError as error:  # the event says the same, and it is what counts
            sys.stderr.write(f"ffdl-controller: {error}\n")

    def _load_model(self) -> None:
        if self.launch.model_archive:
            unpack(self.launch.model_archive, self.attempt.model)

    def _find_data(self) -> None:
        """Every mounted data directory, or PhaseFailed: a container runtime would complain about itself instead."""
        for path in self.launch.needs_dirs:
            try:
                os.scandir(path).close()
                continue
            except FileNotFoundError:
                what = "does not exist"
            except NotADirectoryError:
                what = "is not a directory"
            except OSError as error:
                what = f"cannot be read ({error.strerror})"
            raise PhaseFailed("S302", f"data directory {path} {what} on node {os.uname().nodename}")

    def _load_data(self) -> None:
        self._find_data()
        for copy in self.launch.copies:
            copy_tree(copy.source, copy.target)

    # ----------------------------------------------------------------------------------------- learners

    def _learners(self) -> int:
        """Start the learners that have not ended yet, and see them to their end."""
        self.journal.append(EventKind.PHASE, phase=Phase.LEARNER.value, status="started")
        self.phases.begin(Phase.LEARNER)
        supervisor = Supervisor(self.launch, self.journal, self.phases, self.watch)
        ended = self.siblings.ended_of_themselves()
        someone_failed = any(status != 0 for status in ended.values())
        for number in self.seats.learner_ids:
            if number not in ended and not someone_failed:
                supervisor.start(number, self.seats)
        own = [status for number, status in ended.items() if number in self.seats.learner_ids and status]
        status = supervisor.run() or next(iter(own), 0)
        if self.siblings.all_learners_ended() or status:
            self._note_end(Phase.LEARNER, status)
        self.journal.append(EventKind.PHASE, phase=Phase.LEARNER.value, status="ended", exit=status)
        return status

    def _take_signals_before_start(self) -> None:
        """Signals that came while this node was loading; the learners are not started then."""
        self.watch.look()
        self._take_signals(0.0)

    # ------------------------------------------------------------------------------------------ storing

    def _store(self) -> bool:
        """Results and logs of this node's learners; a STORED event for each of them when all is in place."""
        last = self.siblings.all_learners_ended()
        work: Dict[Phase, Callable[[], None]] = {
            Phase.STORE_RESULTS: lambda: store_results(self.launch),
            Phase.STORE_LOGS: lambda: store_logs(self.launch, self.seats.learner_ids),
        }
        failed: Optional[PhaseFailed] = None
        for phase, action in work.items():
            try:
                self._phase(phase, action, "S303", last=last)
            except PhaseFailed as error:
                failed = failed or error
        if failed is not None:
            self.journal.append(EventKind.FAULT, code=failed.code, message=str(failed))
            return False
        for number in self.seats.learner_ids:
            self.journal.append(EventKind.STORED, learner_id=number)
        return True
