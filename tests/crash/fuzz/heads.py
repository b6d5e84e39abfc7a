"""Heads without processes: the controllers' own claim, journal, chain and cells, and learners that only say they ran.

A head is a generator that the cluster advances: it yields the seconds until its next step, and returns its end. It is
woken early when it is signalled. What it writes is what controllers write; what a learner executes is one line in
``$JOB_STATE_DIR/executions``, the learner's own record. What it makes is a file in ``$RESULT_DIR``, which the node's
controller stores, unless its node fails before that: then its upload is pending.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import field
from enum import StrEnum
from pathlib import Path
from random import Random

from ffdl_batch.attempt.conclusion import Conclusion, exit_status, may_run_again
from ffdl_batch.attempt.control_cell import CANCEL, HALT, read_control
from ffdl_batch.attempt.event_journal import Journal
from ffdl_batch.attempt.file_writer import touch, write_cell
from ffdl_batch.attempt.layout import AttemptDir
from ffdl_batch.controller.data.result_storage import store_results
from ffdl_batch.controller.head.claim import claim_attempt
from ffdl_batch.controller.head.continuation import Continuation
from ffdl_batch.controller.head.earlier_attempts import earlier_attempts, fence_older_attempts
from ffdl_batch.controller.head.final_record import read_final
from ffdl_batch.controller.head.head_controller import EXIT_CLAIMED_BY_ANOTHER
from ffdl_batch.controller.head.pending_uploads import upload
from ffdl_batch.domain.codec import to_plain
from ffdl_batch.domain.launch.launch_file import LaunchFile, decode
from ffdl_batch.domain.outcome.continuation import Checkpoint, Interruption
from ffdl_batch.domain.outcome.controller_events import HEAD, EventKind, FinalRecord, GoesOn, Outcome, node_source
from ffdl_batch.domain.outcome.observation import EndCause
from ffdl_batch.host.fast_dataclass import dataclass

__all__ = ["CANCEL", "Fate", "HeadEnd", "Run", "claim_attempt", "run_head"]
RECORD, RESULT = "executions", "result-of-"
NODE = node_source(0)
TICK_S = 0.02
WORK_S, LONG_WORK_S, LONG = 0.15, 1.0, 0.2
"""A learner works at most so long; a fifth of them for longer."""
LOOK_S = 0.25
"""How often a head looks into its cell unless it is signalled."""
EXIT_OF_FAILURE = 3
TERM, KILL = "TERM", "KILL"
"""Signals to the node controllers, which drills send."""
LOST = "S106"
"""How a head calls the end of a node controller that it has not heard of."""
UPLOADS_DONE = 0.5
"""How often a head stores what earlier attempts owe; else that is left to the daemon."""


class Fate(StrEnum):
    """What becomes of a job's first attempt; later ones work. The job's name says it."""

    WORKS = "works"
    LASTING = "lasting"
    """It works for longer than others."""
    FAILS = "fails"
    LIMITED = "limited"
    """Its time limit comes: a checkpoint, and the head goes on alone."""
    PREEMPTED = "preempted"
    NODE_FAILS = "node-fails"
    """Nobody hears of it again, before its learner is told of or in the middle of its work."""
    UNSTORED = "unstored"
    """Its learner is done, and then its node or its batch script fails before anything is stored."""
    REQUEUED = "requeued"
    """Its node fails, and the scheduler starts it again under its id."""
    FORGOTTEN = "forgotten"
    """It works, and the scheduler forgets it as soon as it has ended."""

    def of_next(self) -> Fate:
        """What becomes of the attempt after this one: a training that fails does so again."""
        return self if self is Fate.FAILS else Fate.WORKS


@dataclass(slots=True)
class Run:
    """One start of a job by the cluster. `signals` are those that the head has not looked at yet."""

    native: str
    restart: int
    attempt: AttemptDir
    fate: Fate
    chance: Random
    reached: Callable[[str], None]
    signals: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class HeadEnd:
    """How the scheduler sees the end of a head. `successor`: the attempt that whoever started this one submits now;
    `starts_anew`: the scheduler runs the job again."""

    cause: EndCause
    exit_code: int = 0
    successor: AttemptDir | None = None
    starts_anew: bool = False


Head = Generator[float, None, HeadEnd]


class _Lost(Exception):
    """The node of this head fails, or what the scheduler makes of it."""

    def __init__(self, cause: EndCause = EndCause.NODE_FAIL) -> None:
        super().__init__(cause)
        self.cause = cause


def run_head(run: Run) -> Head:
    """The batch script's process, from the claim to the final record."""
    launch = decode(Path(run.attempt.launch).read_text(encoding="utf-8"))
    run.reached("before claim")
    number = _claim(run)
    if not number:
        return HeadEnd(EndCause.FAILURE, EXIT_CLAIMED_BY_ANOTHER)
    run.reached("after claim")
    earlier = read_final(run.attempt)
    if earlier is not None and not may_run_again(earlier):
        return HeadEnd(EndCause.SUCCESS)
    bell = str(Path(launch.doorbell, launch.job_id))
    journal = Journal(run.attempt.event_file(HEAD), HEAD, bell)
    journal.append(EventKind.CLAIMED, native_id=run.native, host="n1", restart=run.restart)
    chain = Continuation(launch, run.native, earlier, number)
    try:
        conclusion = yield from _execute(run, launch, chain, Journal(run.attempt.event_file(NODE), NODE, bell))
    except _Lost as lost:
        return HeadEnd(lost.cause, starts_anew=run.fate is Fate.REQUEUED)
    arranged = chain.arrange(conclusion, 0.0, None)
    final = FinalRecord(
        run.native, conclusion.outcome, time.time(), conclusion.stored, conclusion.exit_code,
        error_code=arranged.error_code or conclusion.error_code, message=arranged.message or conclusion.message,
        restart=run.restart, interruption=arranged.interruption, simulated=arranged.simulated,
        checkpoint=conclusion.checkpoint, goes_on=arranged.goes_on, spent=arranged.spent,
    )  # fmt: skip
    yield TICK_S
    write_cell(run.attempt.final, to_plain(final))
    journal.append(EventKind.FINAL, outcome=final.outcome.value)
    return _end_of(run, launch, final)


def _claim(run: Run) -> int:
    """Which run of the attempt this is, 0 where it is another's. The head of a run that will be started again is a
    process, which has to die."""
    if run.fate is not Fate.REQUEUED or run.restart:
        return claim_attempt(run.attempt, run.native).run
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            status = 0 if claim_attempt(run.attempt, run.native).run else EXIT_CLAIMED_BY_ANOTHER
        finally:
            os._exit(status)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert status in (0, EXIT_CLAIMED_BY_ANOTHER), "the head of a run could not claim it"
    return int(status == 0)


def _execute(run: Run, launch: LaunchFile, chain: Continuation, node: Journal) -> Generator[float, None, Conclusion]:
    """The node controller and its learner."""
    older = earlier_attempts(launch)
    fence_older_attempts(older, launch.attempt)
    if run.chance.random() < UPLOADS_DONE:
        _pay(older)
    node.append(EventKind.STARTED, host="n1")
    touch(run.attempt.heartbeat(0))
    if (early := _unwanted(run, chain)) is not None:
        return early
    yield run.chance.uniform(0.0, TICK_S)
    if (early := _unwanted(run, chain)) is not None:
        return early
    _record(run)
    if run.fate is Fate.NODE_FAILS and run.chance.random() < 1 / 2:
        raise _Lost
    node.append(EventKind.LEARNER_STARTED, learner_id=1)
    make_result(run.attempt)
    conclusion = yield from _work(run, launch, chain)
    if conclusion.error_code == LOST:
        return conclusion
    node.append(EventKind.LEARNER_ENDED, learner_id=1, **_how(conclusion))
    if run.fate is Fate.UNSTORED and conclusion.outcome is Outcome.COMPLETED:
        raise _Lost(run.chance.choice((EndCause.NODE_FAIL, EndCause.FAILURE)))
    store_results(launch)
    node.append(EventKind.STORED, learner_id=1)
    node.append(EventKind.ENDED)
    return conclusion


def _pay(older: Sequence[LaunchFile]) -> None:
    """Store what these attempts owe, as heads do before their learners start."""
    for launch in older:
        final = read_final(AttemptDir(launch.attempt_dir))
        if final is None or not final.stored:
            upload(launch)


def make_result(attempt: AttemptDir) -> None:
    """What the learner makes: a file whose name no other attempt's has."""
    Path(attempt.results, f"{RESULT}{Path(attempt.path).name}").write_text("numbers", encoding="utf-8")


def _unwanted(run: Run, chain: Continuation) -> Conclusion | None:
    """Why the learners are not to start any more."""
    request = chain.requested_action
    if CANCEL in run.signals or request == CANCEL or _is_fenced(run, chain.launch):
        return Conclusion(Outcome.CANCELLED, False, message="ended from outside before it started")
    if request == HALT:
        return Conclusion(Outcome.HALTED, False, message="halted before it started", interruption=HALT)
    return None


def _is_fenced(run: Run, launch: LaunchFile) -> bool:
    return read_control(run.attempt).attempt > launch.attempt


def _record(run: Run) -> None:
    """The learner runs, and says so: one line, appended at once."""
    Path(run.attempt.state, ".began-1").touch()
    descriptor = os.open(Path(run.attempt.state, RECORD), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(descriptor, f"{run.restart} {run.native}\n".encode())
    os.close(descriptor)
    run.reached("after record")


def _work(run: Run, launch: LaunchFile, chain: Continuation) -> Generator[float, None, Conclusion]:
    """Work until it is done, or somebody wants something else."""
    longest = LONG_WORK_S if run.chance.random() < LONG else WORK_S
    work_s = LONG_WORK_S if run.fate is Fate.LASTING else run.chance.uniform(0.0, longest)
    ends_at = time.monotonic() + work_s
    look_at = time.monotonic() + LOOK_S
    while (left := ends_at - time.monotonic()) > 0:
        yield min(left, TICK_S)
        if not run.signals and time.monotonic() < look_at:
            continue
        look_at = time.monotonic() + LOOK_S
        asked = _asked(run, launch, chain)
        if asked is not None:
            return asked
    if run.fate is Fate.NODE_FAILS:
        raise _Lost
    if run.fate is Fate.REQUEUED and not run.restart:
        raise _Lost
    if run.fate is Fate.FAILS:
        return Conclusion(
            Outcome.FAILED, True, exit_code=EXIT_OF_FAILURE, error_code="C201", message="the learner failed"
        )
    if run.fate is Fate.LIMITED:
        return _halted(launch, Interruption.TIMEOUT)
    if run.fate is Fate.PREEMPTED:
        Path(launch.checkpoints, "model.pt").write_text("weights", encoding="utf-8")
        return _ended_from_outside()
    return Conclusion(Outcome.COMPLETED, True, exit_code=0)


def _asked(run: Run, launch: LaunchFile, chain: Continuation) -> Conclusion | None:
    """What somebody else made of the work: its owner, who may make a drill, or a newer attempt."""
    request = chain.requested_action
    if KILL in run.signals:
        return Conclusion(Outcome.FAILED, False, error_code=LOST, message="the controller died without a report")
    if {CANCEL, TERM} & run.signals or request == CANCEL or _is_fenced(run, launch):
        return _ended_from_outside()
    if request == HALT:
        return _halted(launch, Interruption.HALT)
    return _halted(launch, Interruption.TIMEOUT) if chain.plays_timeout else None


def _ended_from_outside() -> Conclusion:
    return Conclusion(Outcome.CANCELLED, True, message="ended from outside before the learners had finished")


def _halted(launch: LaunchFile, why: Interruption) -> Conclusion:
    """The learner was asked, wrote a checkpoint, and ended."""
    path = Path(launch.checkpoints, "model.pt")
    path.write_text(f"weights {time.monotonic_ns()}", encoding="utf-8")
    progress = Checkpoint(True, True, True, TICK_S, path.stat().st_mtime, path.name)
    return Conclusion(
        Outcome.HALTED, True, exit_code=0, message=f"{why.value}; checkpoint confirmed", interruption=why.value,
        checkpoint=progress,
    )  # fmt: skip


def _how(conclusion: Conclusion) -> dict[str, str | int]:
    """The fields of ``learner_ended``."""
    if conclusion.outcome is Outcome.CANCELLED:
        return {"signal": 15, "ended_by": "term"}
    asked = {"asked": HALT if conclusion.interruption == HALT else "warned"} if conclusion.interruption else {}
    return {"exit_code": conclusion.exit_code or 0, **asked}


def _end_of(run: Run, launch: LaunchFile, final: FinalRecord) -> HeadEnd:
    """The scheduler's word, and who comes next."""
    if final.goes_on is GoesOn.SUCCESSOR:
        path = Path(run.attempt.path).with_name(f"attempt-{launch.attempt + 1}")
        return HeadEnd(EndCause.SUCCESS, successor=AttemptDir(str(path)))
    if final.outcome is Outcome.CANCELLED:
        if TERM in run.signals and CANCEL not in run.signals:
            return HeadEnd(EndCause.FAILURE, exit_status(final))
        preempted = run.fate is Fate.PREEMPTED and CANCEL not in run.signals
        return HeadEnd(EndCause.PREEMPTED if preempted else EndCause.CANCELLED)
    if final.outcome is Outcome.FAILED:
        return HeadEnd(EndCause.FAILURE, EXIT_OF_FAILURE)
    return HeadEnd(EndCause.SUCCESS)
