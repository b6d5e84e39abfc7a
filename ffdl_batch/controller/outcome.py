"""From what the node controllers reported to how the attempt ended. Pure but for the tail of one log."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import Dict, List, Optional, Sequence

from ffdl_batch.controller.siblings import last_endings, learner_status
from ffdl_batch.domain.events import Event, EventKind, FinalRecord, Outcome
from ffdl_batch.domain.launch import LaunchFile

EXIT_PLATFORM = 74
"""The platform failed and no learner's exit code is to blame (sysexits.h EX_IOERR)."""
EXIT_TIMED_OUT = 124
RERUN_CODES = frozenset({"S106", "S110"})


@dataclass(frozen=True)
class Conclusion:
    """How the attempt ended. `learner_id` is the one whose log explains it (0 = none)."""

    outcome: Outcome
    stored: bool
    learner_id: int = 0
    exit_code: Optional[int] = None
    exit_signal: Optional[int] = None
    error_code: str = "000"
    message: str = ""


def conclude(launch: LaunchFile, events: Sequence[Event], terminated: bool) -> Conclusion:
    """Judge the events of all node controllers, in order. `terminated`: the head was told to end the job.

    In this order: everything stored with success; a request to halt or a time limit that was obeyed; the first
    learner that failed of itself; a fault of a phase; an end from outside; and, where nothing explains the end, a
    controller that died.
    """
    endings = last_endings(list(events))
    done = {n for n, e in endings.items() if learner_status(e) == 0 and not e.fields.get("ended_by")}
    stored = _stored_all(launch, events)
    fault = _first_fault(events)
    if len(done) == launch.learners:
        return _success(stored, fault, terminated)
    failing = [e for e in endings.values() if learner_status(e) != 0 and not e.fields.get("ended_by")]
    if failing:
        return _failure(min(failing, key=lambda e: (e.at, e.source, e.seq)), stored)
    reasons = {str(e.fields.get("ended_by")) for e in endings.values() if e.fields.get("ended_by")}
    if "time" in reasons:
        learner = min(n for n, e in endings.items() if e.fields.get("ended_by") == "time")
        return Conclusion(
            Outcome.TIMED_OUT,
            stored,
            learner,
            error_code="C203",
            message=f"the time limit of {launch.limits.time_s} s was reached",
        )
    reasons |= {str(fault.fields.get("ended_by"))} if fault is not None else set()
    if "halt" in reasons and len(endings) in (0, launch.learners):
        return Conclusion(Outcome.HALTED, stored, message="halted on request")
    if fault is not None and fault.fields.get("code"):
        return Conclusion(
            Outcome.FAILED, False, error_code=str(fault.fields["code"]), message=str(fault.fields.get("message", ""))
        )
    if terminated or "term" in reasons or fault is not None:
        return Conclusion(Outcome.CANCELLED, stored, message="ended from outside before the learners had finished")
    return Conclusion(Outcome.FAILED, False, error_code="S106", message=_silence(launch, events, endings))


def _success(stored: bool, fault: Optional[Event], terminated: bool) -> Conclusion:
    if stored:
        return Conclusion(Outcome.COMPLETED, True, exit_code=0)
    if terminated and fault is None:
        return Conclusion(Outcome.CANCELLED, False, message="ended from outside before everything was stored")
    message = str(fault.fields.get("message", "")) if fault else "a node controller died while storing"
    code = str(fault.fields.get("code") or "S303") if fault else "S106"
    return Conclusion(Outcome.FAILED, False, exit_code=0, error_code=code, message=message)


def _failure(event: Event, stored: bool) -> Conclusion:
    learner = int(event.fields["learner_id"] or 0)
    code, number = event.fields.get("exit_code"), event.fields.get("signal")
    told = str(event.fields.get("detail") or "")
    error = str(event.fields.get("code") or ("C202" if event.fields.get("out_of_memory") else "C201"))
    if error == "C202":
        told = f"learner {learner} was killed because it needed more memory than the job has"
    elif not told:
        told = f"learner {learner} {_how(code, number)}"
    return Conclusion(
        Outcome.FAILED,
        stored,
        learner,
        code if isinstance(code, int) else None,
        number if isinstance(number, int) else None,
        error,
        told,
    )


def _how(code: object, number: object) -> str:
    if isinstance(number, int):
        return f"was killed by {_signal_name(number)}"
    if isinstance(code, int) and code > 128 and _signal_name(code - 128):
        return f"ended with exit code {code} (128 + {code - 128}: {_signal_name(code - 128)})"
    return f"ended with exit code {code}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return ""


def _stored_all(launch: LaunchFile, events: Sequence[Event]) -> bool:
    """Whether every learner was stored after it had last ended."""
    state: Dict[object, bool] = {}
    for event in events:
        if event.kind is EventKind.STORED:
            state[event.fields.get("learner_id")] = True
        elif event.kind is EventKind.LEARNER_STARTED:
            state[event.fields.get("learner_id")] = False
    return sum(state.values()) >= launch.learners


def _first_fault(events: Sequence[Event]) -> Optional[Event]:
    """The first fault of the latest run (a later run has the earlier ones behind it), one with a code first."""
    starts: Dict[str, int] = {}
    for event in events:
        if event.kind is EventKind.STARTED:
            starts[event.source] = event.seq
    faults = [e for e in events if e.kind is EventKind.FAULT and e.seq > starts.get(e.source, 0)]
    return min(faults, key=lambda e: (not e.fields.get("code"), e.at, e.source, e.seq)) if faults else None


def _silence(launch: LaunchFile, events: Sequence[Event], endings: Dict[int, Event]) -> str:
    missing: List[int] = [n for n in range(1, launch.learners + 1) if n not in endings]
    nodes = sorted({(n - 1) // launch.learners_per_node for n in missing})
    hosts = {e.source: str(e.fields.get("host", "?")) for e in events if e.kind is EventKind.STARTED}
    names = [f"{n} ({hosts[f'node-{n}']})" if f"node-{n}" in hosts else f"{n} (never started)" for n in nodes]
    return f"the controller of node {', '.join(names)} died without a word; its learners' ends are not known"


def exit_status(final: FinalRecord) -> int:
    """What the head exits with: 0 only for work that is done and stored, or halted as asked."""
    if final.outcome is Outcome.HALTED or (final.outcome is Outcome.COMPLETED and final.stored):
        return 0
    if final.outcome is Outcome.TIMED_OUT:
        return EXIT_TIMED_OUT
    if final.outcome is Outcome.CANCELLED:
        return 128 + signal.SIGTERM
    if final.exit_signal:
        return 128 + final.exit_signal
    return final.exit_code or EXIT_PLATFORM


def may_run_again(final: FinalRecord) -> bool:
    """Whether a job that the scheduler starts anew under the same id has something left to do.

    What ended by itself (success, failure, halt, time limit) is told and stays; what was ended from outside (a
    preemption, a drained node) or lost its controller goes on.
    """
    return final.outcome is Outcome.CANCELLED or final.error_code in RERUN_CODES
