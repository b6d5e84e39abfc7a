"""The head controller: claims the attempt, starts the node controllers, and writes the final record."""

from __future__ import annotations

import os
import signal
import sys
import time
from dataclasses import replace
from typing import Callable, List, Optional, Tuple, TypeVar

from ffdl_batch.attempt.conclusion import Conclusion, StepEnd, conclude, exit_status, may_run_again
from ffdl_batch.attempt.control_cell import CANCEL, HALT, count_restarts
from ffdl_batch.attempt.event_journal import Journal
from ffdl_batch.attempt.file_writer import create_empty, remove, restore_directory, write_cell, write_text
from ffdl_batch.attempt.filesystem_retry import patiently
from ffdl_batch.attempt.layout import AttemptDir
from ffdl_batch.attempt.learner_endings import (
    ended_of_itself,
    endings_of_run,
    has_ended,
    unreported_ends,
)
from ffdl_batch.attempt.log_tail import tail
from ffdl_batch.attempt.phase_files import PhaseFiles
from ffdl_batch.controller.data.job_directories import DirectoryRefused, make_places
from ffdl_batch.controller.head.claim import Claim, claim_attempt
from ffdl_batch.controller.head.continuation import Arrangement, Continuation
from ffdl_batch.controller.head.earlier_attempts import (
    await_earlier,
    earlier_attempts,
    fence_older_attempts,
    upload_pending_results,
)
from ffdl_batch.controller.head.final_record import forget_attempt, forget_template, left_to_others, read_final
from ffdl_batch.controller.head.step import Step, count_events
from ffdl_batch.controller.head.time_limit import TimeLimit, deadline, limit_now_s
from ffdl_batch.controller.learner.orphans import end_learners, living_controller, mark
from ffdl_batch.controller.learner.pod_exchange import is_cut_off, spared
from ffdl_batch.controller.learner.restarts import restarts_left
from ffdl_batch.controller.rendezvous.node_barrier import read_events
from ffdl_batch.domain.codec import to_plain
from ffdl_batch.domain.file_format import NewerFormat
from ffdl_batch.domain.launch.launch_file import LaunchFile
from ffdl_batch.domain.launch.network_level import explain_unreachable
from ffdl_batch.domain.outcome.continuation import Interruption, halted_before, what_begins
from ffdl_batch.domain.outcome.controller_events import (
    HEAD,
    Event,
    EventKind,
    FinalRecord,
    GoesOn,
    Outcome,
    Phase,
    merge,
    node_source,
    released_learners,
)
from ffdl_batch.host.processes import identity, read_living, send
from ffdl_batch.host.signals import FORWARDED, hold_signals, next_signal

T = TypeVar("T")
EXIT_CLAIMED_BY_ANOTHER = 73
"""Another head has the attempt. Nothing was written or started (sysexits.h EX_CANTCREAT)."""
TICK_S = 0.5
REQUEUED_WAIT_S = 120.0
"""Seconds that a head waits for the scheduler to end it after it requested a requeue."""


def run_head(launch: LaunchFile, launch_path: str) -> int:
    """Execute the attempt if this head can claim it. :mod:`ffdl_batch.attempt.conclusion` has the exit codes."""
    hold_signals(only_family=launch.pod is not None)
    attempt = AttemptDir(launch.attempt_dir)
    native_id = os.environ.get(launch.host.native_id, "") or f"{os.uname().nodename}-{os.getpid()}"
    fence_s = launch.limits.fence_s
    claim = patiently(lambda: claim_attempt(attempt, native_id), attempt.path, fence_s, awaits_space=True)
    if not claim.run:
        who = f"{claim.owner.get('native_id')} (pid {claim.owner.get('pid')} on {claim.owner.get('host')})"
        why = f"is executed by {who}" if claim.owner else f"has a damaged claim ({attempt.claim})"
        sys.stderr.write(f"ffdl-controller: attempt {launch.token} {why}; nothing is started here\n")
        return EXIT_CLAIMED_BY_ANOTHER
    earlier = patiently(lambda: read_final(attempt), attempt.path, fence_s)
    if earlier is not None and not may_run_again(earlier):
        return exit_status(earlier)
    return Head(launch, launch_path, native_id, claim, earlier).run()


class EndedEarly(Exception):
    """The attempt ends before its learners have started."""

    def __init__(self, conclusion: Conclusion) -> None:
        super().__init__(conclusion.message)
        self.conclusion = conclusion


class Head:
    """One run of the head."""

    def __init__(
        self, launch: LaunchFile, launch_path: str, native_id: str, claim: Claim, earlier: Optional[FinalRecord] = None
    ) -> None:
        """`earlier` is the final record of the run before, if there was one."""
        self.launch, self.launch_path, self.native_id, self.claim = launch, launch_path, native_id, claim
        self.attempt = AttemptDir(launch.attempt_dir)
        self.restart = count_restarts(launch, os.environ, claim.run)
        self.continuation = Continuation(launch, native_id, earlier, claim.run)
        self.terminated = False
        self.node_pid = 0
        self._step_end = StepEnd()
        self._started_at = time.time()
        self._limit = TimeLimit(launch)

    def run(self) -> int:
        """Execute the attempt and write the final record. Return the exit code."""
        journal = self._patiently(self._open_journal, awaits_space=True)
        journal.append(EventKind.CLAIMED, native_id=self.native_id, host=os.uname().nodename, restart=self.restart)
        journal.append(EventKind.STARTED, **identity(os.getpid()))
        journal.load_ballast()
        try:
            if not self.continuation.is_continued:
                self._execute(journal)
            conclusion = self._conclude(self.terminated)
        except EndedEarly as early:
            conclusion = early.conclusion
        except NewerFormat:  # a final record that ignores what cannot be read might be wrong
            journal.close()
            raise
        except Exception as error:  # noqa: BLE001 - the record must report every error
            conclusion = self._own_failure(journal, error)
        self._limit.note()
        arranged = self.continuation.arrange(conclusion, self._gpu_seconds(), self._length_s())
        if arranged.goes_on is not GoesOn.NO:
            journal.append(
                EventKind.CONTINUED, attempt=arranged.attempt, by=arranged.goes_on.value, message=arranged.message
            )
        final = left_to_others(self.launch, self._record(conclusion, arranged), self._events)
        forget_template(self.launch, final)
        self._write_final(final, journal)
        journal.append(EventKind.FINAL, outcome=final.outcome.value)
        if arranged.goes_on is GoesOn.REQUEUE:
            final = self._requeue(final, journal)
        forget_attempt(self.launch, final)
        journal.close()
        return exit_status(final)

    def _open_journal(self) -> Journal:
        restore_directory(self.attempt.events)
        os.makedirs(self.launch.doorbell, exist_ok=True)
        bell = os.path.join(self.launch.doorbell, self.launch.job_id)
        newer = self.attempt.run_claim(self.claim.run + 1)
        path, patience_s = self.attempt.event_file(HEAD), self.launch.limits.fence_s
        return Journal(path, HEAD, bell, patience_s, lambda: os.path.isdir(newer))

    def _patiently(
        self, work: Callable[[], T], pause: Optional[Callable[[float], None]] = None, *, awaits_space: bool = False
    ) -> T:
        """Do `work`, and retry while the file system does not answer. Raises OSError, and what `pause` raises."""
        patience_s = self.launch.limits.fence_s
        return patiently(work, self.attempt.path, patience_s, pause or self._rest, awaits_space=awaits_space)

    def _rest(self, wait_s: float) -> None:
        """Wait. Remember a request to end."""
        if next_signal(wait_s) in (signal.SIGTERM, signal.SIGINT):
            self.terminated = True

    def _requeue(self, final: FinalRecord, journal: Journal) -> FinalRecord:
        """Ask the scheduler to start this attempt again, and wait until it ends this process. Return the final record,
        which changes if the scheduler refuses."""
        failed = self.continuation.requeue()
        if failed:
            final = replace(final, goes_on=GoesOn.PLATFORM, message=f"{final.message}; {failed}")
            journal.append(EventKind.CONTINUED, attempt=self.launch.attempt + 1, by=final.goes_on.value, message=failed)
            self._write_final(final, journal)
            return final
        end = time.monotonic() + REQUEUED_WAIT_S
        while time.monotonic() < end and next_signal(TICK_S) not in (signal.SIGTERM, signal.SIGINT):
            continue
        return final

    def _own_failure(self, journal: Journal, error: Exception) -> Conclusion:
        code, message = "S101", f"the head controller failed on {os.uname().nodename}: {type(error).__name__}: {error}"
        if isinstance(error, DirectoryRefused):
            code, message = error.code, str(error)
        sys.stderr.write(f"ffdl-controller: {message}\n")
        journal.append(EventKind.FAULT, code=code, message=message)
        try:
            found = self._conclude(self.terminated)
        except OSError:  # the events cannot be read, so they explain nothing
            found = Conclusion(Outcome.FAILED, False)
        if found.outcome is Outcome.COMPLETED:
            return found
        return Conclusion(Outcome.FAILED, False, error_code=code, message=message, checkpoint=found.checkpoint)

    def _conclude(self, terminated: bool) -> Conclusion:
        # A drill may simulate the time limit at any moment, so the real one does not matter.
        limit = None if self.continuation.plays_timeout else deadline(self.launch, os.environ, self._started_at)
        events = self._patiently(self._events)
        terminated = terminated or self.continuation.requested_action == CANCEL
        step = replace(self._step_end, unheard=is_cut_off(self.launch))
        found = conclude(self.launch, events, terminated, limit, step)
        if found.interruption != Interruption.PREEMPTION.value or limit is None:
            return found
        # The warning came early. The limit may have been shortened since the job began.
        now_s = limit_now_s(self.launch, self.native_id)
        return found if now_s is None else conclude(self.launch, events, terminated, self._started_at + now_s, step)

    # -------------------------------------------------------------------------------------- preparation

    def _execute(self, journal: Journal) -> None:
        adopted = 0 if self.launch.step else living_controller(self._patiently(lambda: self._node_events(0)))
        if not adopted:
            found = self._conclude(terminated=False)
            interrupted = found.interruption not in ("", Interruption.HALT.value)
            if found.stored and found.outcome is not Outcome.CANCELLED and not interrupted:
                return
            self._patiently(self._prepare, self._pause, awaits_space=True)
            self._patiently(lambda: self._await_earlier(journal), self._pause)
        self._follow(adopted)
        if not self.launch.step:
            end_learners(self._patiently(lambda: self._node_events(0)), mark(self.launch.token, 0), spared(self.launch))
        if self._patiently(self._only_storing_is_left):
            self._follow(0)

    def _only_storing_is_left(self) -> bool:
        """Return whether a node controller died after every learner had ended by itself.

        New node controllers then store the results and start no learner. They would need all nodes, so if some have
        been released, the daemon stores the results.
        """
        if released_learners(self._events()):
            return False
        done = endings_of_run(self._events())
        ended = {n for n, e in done.items() if ended_of_itself(e)}
        died = False
        for rank in range(self.launch.nodes):
            events = self._node_events(rank)
            died = died or not has_ended(events)
            found = unreported_ends(events, PhaseFiles(self.attempt.state), self.launch.learners_on(rank))
            ended |= {n for n, status in found.items() if status == 0 or not restarts_left(self.launch, events)}
        return died and not self.terminated and ended >= set(self.launch.trainees)

    def _prepare(self) -> None:
        """Create the files and directories that node controllers and readers on other nodes expect."""
        make_places(self.launch)
        for rank in range(self.launch.nodes):
            create_empty(self.attempt.event_file(node_source(rank)))
        write_text(self.attempt.stop, "")
        names = ["halt"] + [f"{p.value}.exit" for p in (Phase.LEARNER, Phase.STORE_RESULTS, Phase.STORE_LOGS)]
        for name in names:  # of an earlier run, whose learners were ended from outside
            remove(os.path.join(self.attempt.state, name))

    def _await_earlier(self, journal: Journal) -> None:
        """Wait until older attempts and runs can no longer write, and store their pending uploads."""

        def report(why: str) -> None:
            if why:
                sys.stderr.write(f"ffdl-controller: {why}\n")
            journal.append(EventKind.WAITING, message=why)

        older = earlier_attempts(self.launch)
        fence_older_attempts(older, self.launch.attempt)
        await_earlier([*older, *([self.launch] if self.claim.run > 1 else [])], self.attempt, self._pause, report)
        upload_pending_results(older, self._pause)

    def _pause(self, wait_s: float) -> None:
        """Wait, before the learners have started. Raises EndedEarly if they must not start any more."""
        number = next_signal(wait_s)
        self._limit.look()
        request = self.continuation.requested_action
        if number in (signal.SIGTERM, signal.SIGINT) or request == CANCEL:
            self.terminated = True
            message = f"ended from outside before {what_begins(self.launch.attempt)} started"
            raise EndedEarly(Conclusion(Outcome.CANCELLED, False, message=message))
        if request == HALT:
            message, why = halted_before(self.launch.attempt), Interruption.HALT.value
            raise EndedEarly(Conclusion(Outcome.HALTED, False, message=message, interruption=why))

    # ------------------------------------------------------------------------------------------ the step

    def _follow(self, adopted: int) -> None:
        """Start the step, or follow a node controller that outlived an earlier head, until it has ended."""
        step = None
        if adopted:
            self.node_pid = adopted
        else:
            before = self._patiently(lambda: count_events(self.launch))
            step = Step(self.launch, self.launch_path, self.claim.run, before)
            self.node_pid = 0 if self.launch.step else step.process.pid
        while step.runs() if step else read_living(adopted) is not None:
            number = next_signal(TICK_S if step else 0.1)
            if number in (signal.SIGTERM, signal.SIGINT):
                self.terminated = True
            # The scheduler itself signals the processes of a step.
            if self.node_pid and number in (signal.SIGTERM, signal.SIGINT, signal.SIGURG):
                send(self.node_pid, number)
                if step:
                    step.hurry(number)
            # A signal for the batch script alone (sbatch's --signal=B:...) is meant for the learners. srun passes it
            # on.
            elif number in FORWARDED:
                send(step.process.pid if step else adopted, number)
            self._limit.look()
        if step:
            self._step_end = StepEnd(self._step_end.out_of_memory or step.out_of_memory(), step.last_output())

    # --------------------------------------------------------------------------------- the final record

    def _node_events(self, rank: int) -> List[Event]:
        return read_events(self.attempt, node_source(rank))

    def _events(self) -> List[Event]:
        return merge(self._node_events(rank) for rank in range(self.launch.nodes))

    def _gpu_seconds(self) -> float:
        """Return the GPU time of this run. Schedulers charge each GPU from the start of the run until its end. The
        daemon subtracts the time after nodes were released."""
        succession = self.launch.succession
        return succession.gpus * self._limit.used_s if succession else 0.0

    def _length_s(self) -> Optional[float]:
        end = deadline(self.launch, os.environ, self._started_at)
        return None if end is None else end - self._started_at

    def _record(self, conclusion: Conclusion, arranged: Arrangement) -> FinalRecord:
        lines: Tuple[str, ...] = ()
        hint = ""
        if conclusion.learner_id:
            try:
                lines = tail(self.attempt.training_log(conclusion.learner_id))
            except OSError as error:
                sys.stderr.write(f"ffdl-controller: {error}\n")
        if conclusion.error_code == "C201":
            network, command = self.launch.network, self.launch.command_of(conclusion.learner_id)
            hint = explain_unreachable(network.level, network.offered, lines, command, conclusion.exit_code)
        return FinalRecord(
            native_id=self.native_id,
            outcome=conclusion.outcome,
            at=time.time(),
            stored=conclusion.stored,
            exit_code=conclusion.exit_code,
            exit_signal=conclusion.exit_signal,
            error_code=arranged.error_code or conclusion.error_code,
            message="; ".join(filter(None, (arranged.message or conclusion.message, hint))),
            log_tail=lines,
            restart=self.restart,
            interruption=arranged.interruption,
            simulated=arranged.simulated,
            checkpoint=conclusion.checkpoint,
            goes_on=arranged.goes_on,
            spent=arranged.spent,
            gpu_seconds=self._gpu_seconds(),
        )

    def _write_final(self, final: FinalRecord, journal: Journal) -> None:
        """Write the record durably, or to standard error if the disk stays full or does not answer."""
        end = time.monotonic() + self.launch.limits.fence_s
        while True:
            try:
                write_cell(self.attempt.final, to_plain(final))
                return
            except OSError as error:
                if not journal.drop_ballast():
                    if time.monotonic() > end:
                        sys.stderr.write(f"ffdl-controller: {self.attempt.final}: {error}: {to_plain(final)}\n")
                        journal.patience_s = (
                            0.0  # events could not be written either, and waiting would hold the allocation
                        )
                        return
                    self._rest(TICK_S)
