"""Decide how an attempt ended, from what its node controllers reported. Pure."""

from __future__ import annotations

import signal
from dataclasses import dataclass, field, replace
from typing import Dict, List, Optional, Sequence, Tuple

from ffdl_batch.attempt.learner_endings import Answer, answer, endings_of_run, failing, learner_status, since_start
from ffdl_batch.domain.launch.launch_file import LaunchFile
from ffdl_batch.domain.launch.learner_text import KILLED_FOR_MEMORY, describe_end, name_learner
from ffdl_batch.domain.outcome.continuation import UNFIT_NODE, Checkpoint, Interruption, describe, describe_interruption
from ffdl_batch.domain.outcome.controller_events import (
    HALT,
    LIMITS,
    TERM,
    TIME,
    Event,
    EventKind,
    FinalRecord,
    GoesOn,
    Outcome,
    Phase,
    node_source,
)

EXIT_PLATFORM = 74
"""The platform failed and no learner's exit code is to blame (sysexits.h EX_IOERR)."""
EXIT_TIMED_OUT = 124
DIED, NOT_STORED = "S106", "S303"
RERUN_CODES = frozenset({DIED, "S110"}) | UNFIT_NODE
MARGIN_S = 120.0
"""A warning that comes this much earlier than the lead before a known time limit is a preemption's. Slurm delivers up
to 60 s early, and its clock ticks in half minutes (sbatch(1), --signal; measured with 26.05)."""


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
    interruption: str = ""
    checkpoint: Checkpoint = field(default_factory=Checkpoint)


@dataclass(frozen=True)
class StepEnd:
    """What is known of the end of a step beside the events of its controllers. `out_of_memory`: the kernel killed one
    of its processes because the job needed more memory than it has, in words ("" = it did not). `printed` are the last
    lines of the program that started it. `unheard`: the other nodes may have written what does not come here any
    more."""

    out_of_memory: str = ""
    printed: str = ""
    unheard: bool = False

    def explain(self, found: Conclusion) -> Conclusion:
        """Return the conclusion about a controller that died with what explains that. Files in /dev/shm belong to no
        process, so the kernel may have chosen a controller."""
        message = f"{found.message}; the step printed: {self.printed}" if self.printed else found.message
        if self.out_of_memory and found.exit_code != 0:  # else the training is done, and what it left is stored later
            return replace(found, error_code="C202", message=f"{self.out_of_memory}; {message}")
        return replace(found, message=message)


def conclude(
    launch: LaunchFile,
    events: Sequence[Event],
    terminated: bool,
    deadline: Optional[float] = None,
    step: StepEnd = StepEnd(),
) -> Conclusion:
    """Judge the events of all node controllers, in order. `terminated`: the head was told to end the job. `deadline`
    is the epoch second of the time limit, where it is known.

    In this order: everything stored with success; a learner that failed of itself, unless another node was lost under
    it; a request for a checkpoint that was obeyed or led to the end; a fault with a code; an end from outside; and,
    where nothing explains the end, a controller that died.
    """
    events = [event for event in events if _is_of_job(launch, event)]
    answered = answer(launch, events)
    found = _judge(launch, events, terminated, deadline, answered, unheard=step.unheard)
    if found.error_code == DIED:
        found = step.explain(found)
    return replace(found, checkpoint=answered.checkpoint, message=_place(launch, events, found))


def _is_of_job(launch: LaunchFile, event: Event) -> bool:
    """Return whether the event has no learner or a learner of the job. The file may be damaged."""
    learner = event.fields.get("learner_id")
    return not isinstance(learner, int) or 1 <= learner <= launch.learners


def _place(launch: LaunchFile, events: Sequence[Event], found: Conclusion) -> str:
    """The message; a learner that failed by itself is named by its role and node, too."""
    if not found.learner_id or found.error_code not in ("C201", "C202"):
        return found.message
    source = node_source(launch.seat_of(found.learner_id).node)
    nodes = [e.node for e in events if e.kind is EventKind.STARTED and e.source == source]
    name = name_learner(launch, found.learner_id, nodes[-1] if nodes else "")
    return found.message.replace(f"learner {found.learner_id} ", f"{name} ", 1)


def _judge(
    launch: LaunchFile,
    events: Sequence[Event],
    terminated: bool,
    deadline: Optional[float],
    told: Answer,
    *,
    unheard: bool,
) -> Conclusion:
    endings, faults = endings_of_run(events), _faults(events)
    stored, fault = _stored_all(launch, events), faults[0] if faults else None
    trained = {n: e for n, e in endings.items() if not launch.seat_of(n).service}
    if launch.only_stages and fault is None and not terminated and _is_loaded(events):
        why = Interruption.STAGED
        return Conclusion(Outcome.HALTED, False, message=describe_interruption(why), interruption=why.value)
    done = [e for e in trained.values() if learner_status(e) == 0 and not e.fields.get("ended_by")]
    if len(done) == len(launch.trainees) and not (told.reason and (told.fresh or told.signalled)):
        return _success(stored, fault, terminated, later=launch.cut_off)
    failures = sorted((e for e in failing(endings) if not _is_answer(e, told)), key=_told_first)
    own = [e for e in failures if not _lost_its_peers(launch, events, endings, e)]
    if own:
        return _failure(own[0], stored)
    reason = _reason(endings, faults)
    ended_at_limit = any(e.fields.get("ended_by") in LIMITS for e in endings.values())
    if reason and (ended_at_limit or not endings or unheard or _is_accounted_for(launch, endings, faults)):
        if reason == HALT:
            return _halted(launch, trained, fault, stored, told)
        return _at_limit(launch, trained, stored, told, _kind(launch, reason, told, deadline))
    if fault is not None and fault.fields.get("code"):
        return Conclusion(
            Outcome.FAILED, False, error_code=str(fault.fields["code"]), message=_told_by_all(events, faults)
        )
    if terminated or any(_why(e) == TERM for e in (*endings.values(), *faults)):
        return Conclusion(Outcome.CANCELLED, stored, message="ended from outside before the learners had finished")
    # Nodes that ended because another one did say so. That one cannot, or it would have a fault of its own.
    message = str(fault.fields.get("message") or "") if fault is not None else ""
    message = message or _silence(launch, events, endings)
    if failures:
        message += f"; meanwhile {_failure(failures[0], stored).message}"
    return Conclusion(Outcome.FAILED, False, error_code=DIED, message=message)


def _is_loaded(events: Sequence[Event]) -> bool:
    """Whether the data are in place, by this run or one before."""
    ended = {"phase": Phase.LOAD_DATA.value, "status": "ended", "exit": 0}
    return any(e.kind is EventKind.PHASE and ended.items() <= dict(e.fields).items() for e in events)


def _told_first(failure: Event) -> Tuple[bool, float, str, int]:
    """The order of failures. What has a code did not come of another learner's failure, whatever the nodes' clocks
    say."""
    return (not failure.fields.get("code"), failure.at, failure.source, failure.seq)


def _lost_its_peers(launch: LaunchFile, events: Sequence[Event], endings: Dict[int, Event], failure: Event) -> bool:
    """Whether a learner may have failed because those of another node were gone: that node's controller did not live to
    see their end. One that has to end because of this failure says how its own have ended."""
    if failure.fields.get("code") or failure.fields.get("out_of_memory") or failure.fields.get("asked"):
        return False
    begun = {e.fields.get("learner_id") for e in since_start(events, EventKind.LEARNER_STARTED)}
    unseen = {node_source(launch.seat_of(n).node) for n in range(1, launch.learners + 1) if n in begun - endings.keys()}
    return bool(unseen - {failure.source})


def _why(event: Event) -> str:
    """Why a learner ended: who ended it, else what it had been asked for ("" = of itself)."""
    return str(event.fields.get("ended_by") or event.fields.get("asked") or "")


def _is_answer(event: Event, told: Answer) -> bool:
    """Whether ending with another status than 0 was the answer to a request: it left a new checkpoint. A service need
    not leave one."""
    blamed = event.fields.get("out_of_memory") or event.fields.get("code")
    return bool(event.fields.get("asked")) and (told.fresh or bool(event.fields.get("service"))) and not blamed


def _reason(endings: Dict[int, Event], faults: Sequence[Event]) -> str:
    """The request that explains the end: halt, warned, time; "" where something else does."""
    reasons = {_why(e) for e in endings.values()}
    if not any(e.fields.get("code") for e in faults):
        reasons |= {_why(e) for e in faults}
    if HALT in reasons:
        return HALT
    if TERM in reasons:  # whoever sent it knows why
        return ""
    return next((reason for reason in (TIME, *LIMITS) if reason in reasons), "")


def _is_accounted_for(launch: LaunchFile, endings: Dict[int, Event], faults: Sequence[Event]) -> bool:
    """Whether every learner has ended, or its node was told to end before it started one."""
    told = {e.source for e in faults if not e.fields.get("code")}
    return all(n in endings or node_source(launch.seat_of(n).node) in told for n in range(1, launch.learners + 1))


def _kind(launch: LaunchFile, reason: str, told: Answer, deadline: Optional[float]) -> Interruption:
    """A warning means the time limit, or a preemption where the limit is known and far away."""
    if reason != TIME and launch.pod is not None:  # the head of a pod keeps the limit itself
        return Interruption.PREEMPTION
    if reason == TIME or deadline is None or told.asked_at is None:
        return Interruption.TIMEOUT
    limits = launch.limits
    lead_s = launch.succession.lead_s if launch.succession and launch.succession.lead_s is not None else limits.lead_s
    usual_s = (limits.grace_s if lead_s is None else lead_s) + MARGIN_S
    return Interruption.PREEMPTION if deadline - told.asked_at > usual_s else Interruption.TIMEOUT


def _saved(launch: LaunchFile, checkpoint: Checkpoint) -> str:
    """The checkpoint in words, and what becomes of it where nothing keeps it."""
    said = describe(checkpoint)
    is_kept = launch.uploads or (launch.pod is not None and launch.pod.claimed(launch.checkpoints))
    is_lost = launch.apart and not is_kept and checkpoint.confirmed
    return f"{said}, and gone with its pod: no store and no claim keeps it" if is_lost else said


def _halted(
    launch: LaunchFile, endings: Dict[int, Event], fault: Optional[Event], stored: bool, told: Answer
) -> Conclusion:
    message = f"{describe_interruption(Interruption.HALT)}; {_saved(launch, told.checkpoint)}"
    deaf = sorted(n for n, e in endings.items() if e.fields.get("ended_by") == HALT and not e.fields.get("waited"))
    if deaf:
        who = f"learner{'s' if len(deaf) > 1 else ''} {', '.join(map(str, deaf))}"
        message += f"; the grace period of {launch.limits.grace_s} s was over, and {who} had to be ended"
    if not endings and fault is not None:
        message = str(fault.fields.get("message") or describe_interruption(Interruption.HALT))
    code = "000"
    if endings and not stored and fault is not None and fault.fields.get("code") == NOT_STORED:
        code, message = "S305", f"{message}; {fault.fields.get('message')}"
    return Conclusion(Outcome.HALTED, stored, error_code=code, message=message, interruption=Interruption.HALT.value)


def _at_limit(
    launch: LaunchFile, endings: Dict[int, Event], stored: bool, told: Answer, kind: Interruption
) -> Conclusion:
    """The allocation was about to end, or did: HALTED where a learner reacted, else it was ended at the limit."""
    if told.reacted or kind is Interruption.PREEMPTION:
        message = f"{describe_interruption(kind)}; {_saved(launch, told.checkpoint)}"
        return Conclusion(Outcome.HALTED, stored, message=message, interruption=kind.value)
    limit = launch.limits.time_s
    return Conclusion(
        Outcome.TIMED_OUT,
        stored,
        min((n for n, e in endings.items() if e.fields.get("ended_by") in LIMITS), default=0),
        error_code="C203",
        message=f"{describe_interruption(kind) if limit is None else f'the time limit of {limit} s was reached'}; "
        f"{_saved(launch, told.checkpoint)}",
        interruption=kind.value,
    )


def _success(stored: bool, fault: Optional[Event], terminated: bool, *, later: bool) -> Conclusion:
    """`later`: storing is not this attempt's."""
    if stored or (later and fault is None):
        return Conclusion(Outcome.COMPLETED, stored, exit_code=0)
    if terminated and fault is None:
        return Conclusion(Outcome.CANCELLED, False, message="ended from outside before everything was stored")
    message = str(fault.fields.get("message", "")) if fault else "a node controller died while storing"
    code = str(fault.fields.get("code") or NOT_STORED) if fault else DIED
    return Conclusion(Outcome.FAILED, False, exit_code=0, error_code=code, message=message)


def _failure(event: Event, stored: bool) -> Conclusion:
    learner = int(event.fields["learner_id"] or 0)
    code, number = event.fields.get("exit_code"), event.fields.get("signal")
    told = str(event.fields.get("detail") or "")
    error = str(event.fields.get("code") or ("C202" if event.fields.get("out_of_memory") else "C201"))
    if error == "C202":
        told = told or f"learner {learner} {KILLED_FOR_MEMORY}"
    elif not told:
        told = f"learner {learner} {describe_end(code, number)}"
        if event.fields.get("asked"):
            told += ", asked for a checkpoint, without leaving a new one"
    return Conclusion(
        Outcome.FAILED,
        stored,
        learner,
        code if isinstance(code, int) else None,
        number if isinstance(number, int) else None,
        error,
        told,
    )


def _stored_all(launch: LaunchFile, events: Sequence[Event]) -> bool:
    """Whether every learner was stored after it had last ended, but for services that nobody has started."""
    state: Dict[object, bool] = {}
    for event in events:
        if event.kind is EventKind.STORED:
            state[event.fields.get("learner_id")] = True
        elif event.kind is EventKind.LEARNER_STARTED:
            state[event.fields.get("learner_id")] = False
    return all(state.get(number) for number in launch.trainees) and all(state.values())


def _faults(events: Sequence[Event]) -> List[Event]:
    """The faults of the latest run (a later run has the earlier ones behind it), what explains most first."""
    starts: Dict[str, int] = {}
    for event in events:
        if event.kind is EventKind.STARTED:
            starts[event.source] = event.seq
    faults = [e for e in events if e.kind is EventKind.FAULT and e.seq > starts.get(e.source, 0)]
    return sorted(faults, key=lambda e: (_rank(e), e.at, e.source, e.seq))


def _rank(fault: Event) -> int:
    """What has a code comes before what was asked for, that before an end from outside, and last is what ended a node
    because of another one. A controller that died may have, for the others, another fault as its cause."""
    code = fault.fields.get("code")
    if code:
        return 1 if code == DIED else 0
    order = (HALT, *LIMITS, TERM)
    return 2 + (order.index(_why(fault)) if _why(fault) in order else len(order))


def _told_by_all(events: Sequence[Event], faults: Sequence[Event]) -> str:
    """The message of the first fault; of nodes that are not fit for the job, what each of them says."""
    first = faults[0]
    if first.fields.get("code") not in UNFIT_NODE:
        return str(first.fields.get("message", ""))
    hosts = {e.source: str(e.fields.get("host", "")) for e in events if e.kind is EventKind.STARTED}
    alike: Dict[str, List[str]] = {}
    said: Dict[str, str] = {}
    for fault in (f for f in faults if f.fields.get("code") == first.fields["code"]):
        message, host = str(fault.fields.get("message", "")), hosts.get(fault.source) or fault.source
        reason = message.replace(host, "")
        said.setdefault(reason, message)
        alike.setdefault(reason, []).append(host)
    more = {reason: f" (and so on {', '.join(names[1:])})" if names[1:] else "" for reason, names in alike.items()}
    return "; ".join(message + more[reason] for reason, message in said.items())


def _silence(launch: LaunchFile, events: Sequence[Event], endings: Dict[int, Event]) -> str:
    missing: List[int] = [n for n in range(1, launch.learners + 1) if n not in endings]
    nodes = sorted({launch.seat_of(n).node for n in missing})
    hosts = {e.source: e.machine or "?" for e in events if e.kind is EventKind.STARTED}
    names = [f"{n} ({hosts[f'node-{n}']})" if f"node-{n}" in hosts else f"{n} (never started)" for n in nodes]
    return f"the controller of node {', '.join(names)} died without a word; its learners' ends are not known"


def exit_status(final: FinalRecord) -> int:
    """What the head exits with: 0 only for work that is done, and stored or somebody else's to store, or halted as
    asked."""
    is_done = final.outcome is Outcome.COMPLETED and (final.stored or final.stores_later)
    if final.outcome is Outcome.HALTED or is_done:
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
    preemption, a drained node) or lost its controller goes on, and so does what asked for it.
    """
    if final.goes_on in (GoesOn.SUCCESSOR, GoesOn.PLATFORM):
        return False
    return final.goes_on is GoesOn.REQUEUE or final.outcome is Outcome.CANCELLED or final.error_code in RERUN_CODES
