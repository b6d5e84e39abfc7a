"""The head controller, the batch script's process: claims the attempt, starts the nodes', has the last word."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import Dict, List, Optional, Tuple

from ffdl_batch.controller.claim import Claim, claim_attempt
from ffdl_batch.controller.files import create_empty, read_cell, write_cell, write_text
from ffdl_batch.controller.journal import Journal
from ffdl_batch.controller.location import controller_path, own_argv
from ffdl_batch.controller.log_tail import tail
from ffdl_batch.controller.orphans import end_learners, living_controller, mark
from ffdl_batch.controller.outcome import Conclusion, conclude, exit_status, may_run_again
from ffdl_batch.controller.processes import (
    FORWARDED,
    hold_signals,
    identity,
    next_signal,
    read_process,
    release_signals,
    send,
)
from ffdl_batch.controller.siblings import read_events
from ffdl_batch.domain.codec import CodecError, from_plain, to_plain
from ffdl_batch.domain.events import HEAD, Event, EventKind, FinalRecord, Outcome, Phase, merge, node_source
from ffdl_batch.domain.jobdir import AttemptDir
from ffdl_batch.domain.launch import LaunchFile, fill

EXIT_CLAIMED_BY_ANOTHER = 73
"""The attempt is another head's; nothing was written and nothing started (sysexits.h EX_CANTCREAT)."""
FINAL_RETRY_S = 20.0
TICK_S = 0.5


def run_head(launch: LaunchFile, launch_path: str) -> int:
    """Execute the attempt if it is ours; see :mod:`ffdl_batch.controller.outcome` for the exit code."""
    hold_signals()
    attempt = AttemptDir(launch.attempt_dir)
    native_id = os.environ.get(launch.host.native_id, "") or f"{os.uname().nodename}-{os.getpid()}"
    claim = claim_attempt(attempt, native_id)
    if not claim.run:
        who = f"{claim.owner.get('native_id')} (pid {claim.owner.get('pid')} on {claim.owner.get('host')})"
        sys.stderr.write(f"ffdl-controller: attempt {launch.token} is executed by {who}; nothing is started here\n")
        return EXIT_CLAIMED_BY_ANOTHER
    earlier = read_final(attempt)
    if earlier is not None and not may_run_again(earlier):
        return exit_status(earlier)
    return Head(launch, launch_path, native_id, claim).run()


def read_final(attempt: AttemptDir) -> Optional[FinalRecord]:
    """The final record of an earlier run, if one was written."""
    body = read_cell(attempt.final)
    try:
        return from_plain(FinalRecord, body) if body else None
    except CodecError:
        return None


class DirectoryRefused(Exception):
    """A directory that the learners need and that cannot be made: the fault's code and its sentence."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class Head:
    """One run of the head."""

    def __init__(self, launch: LaunchFile, launch_path: str, native_id: str, claim: Claim) -> None:
        self.launch, self.launch_path, self.native_id = launch, launch_path, native_id
        self.attempt = AttemptDir(launch.attempt_dir)
        self.restart = _restart_count(launch, claim)
        self.terminated = False
        self.node_pid = 0
        self._started = time.monotonic()
        self._told = ""

    def run(self) -> int:
        """From the claim to the final record."""
        os.makedirs(self.attempt.events, exist_ok=True)
        os.makedirs(self.launch.doorbell, exist_ok=True)
        journal = Journal(self.attempt.event_file(HEAD), HEAD, os.path.join(self.launch.doorbell, self.launch.job_id))
        journal.append(EventKind.CLAIMED, native_id=self.native_id, host=os.uname().nodename, restart=self.restart)
        journal.append(EventKind.STARTED, **identity(os.getpid()))
        journal.load_ballast()
        try:
            self._execute()
            conclusion = conclude(self.launch, self._events(), self.terminated)
        except Exception as error:  # noqa: BLE001 - whatever went wrong, the record must say so
            conclusion = self._own_failure(journal, error)
        final = self._record(conclusion)
        self._write_final(final, journal)
        journal.append(EventKind.FINAL, outcome=final.outcome.value)
        journal.close()
        return exit_status(final)

    def _own_failure(self, journal: Journal, error: Exception) -> Conclusion:
        code, message = "S101", f"the head controller failed on {os.uname().nodename}: {type(error).__name__}: {error}"
        if isinstance(error, DirectoryRefused):
            code, message = error.code, str(error)
        sys.stderr.write(f"ffdl-controller: {message}\n")
        journal.append(EventKind.FAULT, code=code, message=message)
        told = conclude(self.launch, self._events(), self.terminated)
        if told.outcome is Outcome.COMPLETED:
            return told
        return Conclusion(Outcome.FAILED, False, error_code=code, message=message)

    # -------------------------------------------------------------------------------------- preparation

    def _execute(self) -> None:
        adopted = 0 if self.launch.step else living_controller(self._node_events(0))
        if not adopted:
            told = conclude(self.launch, self._events(), terminated=False)
            if told.stored and told.outcome is not Outcome.CANCELLED:
                return
            self._prepare()
        self._follow(adopted)
        if not self.launch.step:
            end_learners(self._node_events(0), mark(self.launch.token, 0))

    def _prepare(self) -> None:
        """Everything that node controllers and readers on other nodes expect to be there."""
        values = {"attempt_dir": self.attempt.path, "job_dir": self.launch.job_dir}
        wanted = [self.attempt.state, self.attempt.model, self.attempt.data, self.attempt.results, self.attempt.logs]
        for directory in [*wanted, *self._made_dirs(values)]:
            self._make(directory)
        for rank in range(self.launch.nodes):
            create_empty(self.attempt.event_file(node_source(rank)))
        write_text(self.attempt.stop, "")
        names = ["halt"] + [f"{p.value}.exit" for p in (Phase.LEARNER, Phase.STORE_RESULTS, Phase.STORE_LOGS)]
        for name in names:  # of an earlier run, whose learners were ended from outside
            path = os.path.join(self.attempt.state, name)
            if os.path.lexists(path):
                os.unlink(path)

    def _make(self, directory: str) -> None:
        try:
            os.makedirs(directory, exist_ok=True)
        except OSError as error:
            # What lies outside the job's own directory is the user's data store.
            code = "S101" if directory.startswith(self.launch.job_dir + os.sep) else "C103"
            message = f"{directory} cannot be made on {os.uname().nodename}: {error.strerror}"
            raise DirectoryRefused(code, message) from error

    def _made_dirs(self, values: Dict[str, str]) -> List[str]:
        made = []
        for text in self.launch.make_dirs:
            for learner in range(1, self.launch.learners + 1):
                path = fill(text, {**values, "learner_id": str(learner)})
                if path not in made:
                    made.append(path)
        return made

    # ------------------------------------------------------------------------------------- the one step

    def _follow(self, adopted: int) -> None:
        """Start the step, or follow a node controller that outlived an earlier head; until it has ended."""
        process = None
        if adopted:
            self.node_pid = adopted
        else:
            process = self._start_step()
            self.node_pid = 0 if self.launch.step else process.pid
        while process.poll() is None if process else _alive(adopted):
            number = next_signal(TICK_S if process else 0.1)
            if number in (signal.SIGTERM, signal.SIGINT):
                self.terminated = True
            # A step's processes get the scheduler's signals from the scheduler itself.
            if self.node_pid and number in (signal.SIGTERM, signal.SIGINT, signal.SIGURG):
                send(self.node_pid, number)
            # One for the batch script alone (sbatch's --signal=B:...) is meant for the training; srun passes it on.
            elif number in FORWARDED:
                send(process.pid if process else adopted, number)
            self._enforce_limit()

    def _start_step(self) -> "subprocess.Popen[bytes]":
        if self.launch.step:
            values = {
                "launch": self.launch_path,
                "attempt_dir": self.attempt.path,
                "job_dir": self.launch.job_dir,
                "python": sys.executable,
                "controller": controller_path(),
                "hostname": os.uname().nodename,
            }
            argv = [fill(part, values) for part in self.launch.step]
        else:
            argv = [*own_argv(), "node", "--launch", self.launch_path, "--rank", "0"]
        return subprocess.Popen(argv, stdin=subprocess.DEVNULL, preexec_fn=release_signals)  # noqa: PLW1509 - no threads here

    def _enforce_limit(self) -> None:
        """Where no scheduler does it: ask for a checkpoint before the limit, end the learners at it."""
        limit = self.launch.limits.time_s
        if limit is None:
            return
        lead = min(self.launch.limits.grace_s, limit // 2)
        spent = time.monotonic() - self._started
        what = "stop" if spent >= limit else "halt" if spent >= limit - lead else ""
        if what and what != self._told and (read_cell(self.attempt.stop) or {}).get("what") != "stop":
            write_cell(self.attempt.stop, {"what": what, "reason": "time", "at": time.time()})
            self._told = what

    # --------------------------------------------------------------------------------------- last words

    def _node_events(self, rank: int) -> List[Event]:
        return read_events(self.attempt, node_source(rank))

    def _events(self) -> List[Event]:
        return merge(self._node_events(rank) for rank in range(self.launch.nodes))

    def _record(self, conclusion: Conclusion) -> FinalRecord:
        lines: Tuple[str, ...] = ()
        if conclusion.learner_id:
            try:
                lines = tail(self.attempt.training_log(conclusion.learner_id))
            except OSError as error:
                sys.stderr.write(f"ffdl-controller: {error}\n")
        return FinalRecord(
            native_id=self.native_id,
            outcome=conclusion.outcome,
            at=time.time(),
            stored=conclusion.stored,
            exit_code=conclusion.exit_code,
            exit_signal=conclusion.exit_signal,
            error_code=conclusion.error_code,
            message=conclusion.message,
            log_tail=lines,
            restart=self.restart,
        )

    def _write_final(self, final: FinalRecord, journal: Journal) -> None:
        """The record, durably; where the disk stays full, to standard error."""
        end = time.monotonic() + FINAL_RETRY_S
        while True:
            try:
                write_cell(self.attempt.final, to_plain(final))
                return
            except OSError as error:
                if not journal.drop_ballast():
                    if time.monotonic() > end:
                        sys.stderr.write(f"ffdl-controller: {self.attempt.final}: {error}: {to_plain(final)}\n")
                        return
                    time.sleep(0.5)


def _restart_count(launch: LaunchFile, claim: Claim) -> int:
    """The scheduler's count where it has one, else how often this attempt was claimed before."""
    text = os.environ.get(launch.host.restart_count, "") if launch.host.restart_count else ""
    return int(text) if text.isdigit() else claim.run - 1


def _alive(pid: int) -> bool:
    process = read_process(pid)
    return process is not None and process.state not in "ZX"
