"""Decide how an attempt ended, from what its node controllers reported. Pure."""

from __future__ import annotations

import signal
from dataclasses import field, replace
from typing import Dict, List, Optional, Sequence, Tuple

from ffdl_batch.attempt.learner_endings import (
    Answer,
    answer,
    endings_of_run,
    failing,
    learner_status,
    since_start,
    staying,
)
from ffdl_batch.domain.data.staging_protocol import UNREADABLE_CODE
from ffdl_batch.domain.launch.launch_file import LaunchFile
from ffdl_batch.domain.launch.learner_text import KILLED_FOR_MEMORY, describe_end, name_learner
from ffdl_batch.domain.outcome.continuation import UNFIT_NODE, Checkpoint, Interruption, describe, describe_interruption
from ffdl_batch.domain.outcome.controller_events import (
    HALT,
    IDLE_GPUS,
    LIMITS,
    TERM,
    TIME,
    Event,
    EventKind,
    FinalRecord,
    GoesOn,
    Outcome,
    Phase,
    is_final,
    node_source,
)
from ffdl_batch.host.fast_dataclass import dataclass

EXIT_PLATFORM = 74
"""The platform failed and no learner's exit code is to blame (sysexits.h EX_IOERR)."""
EXIT_UNREADABLE = 77
"""Results deny their own user the access, so that storing again cannot succeed (sysexits.h EX_NOPERM)."""
EXIT_TIMED_OUT = 124
DIED, NOT_STORED = "S106", "S303"
MARGIN_S = 120.0
"""A warning that comes this much earlier than the lead before a known time limit is a preemption's. Slurm delivers up
to 60 s early, and its clock ticks in half minutes (sbatch(1), --signal; measured with 26.05)."""


@dataclass(frozen=True)
class Conclusion:
    """How the attempt ended."""

    outcome: Outcome
    stored: bool
    learner_id: int = 0
    """The learner whose log explains it; 0 if there is none."""
    exit_code: Optional[int] = None
    exit_signal: Optional[int] = None
    error_code: str = "000"
    message: str = ""
    interruption: str = ""
    checkpoint: Checkpoint = field(default_factory=Checkpoint)


@dataclass(frozen=True)
class StepEnd:
    """What is known about the end of a step besides its controllers' events."""

    out_of_memory: str = ""
    """A sentence if the kernel killed one of its processes for memory."""
    printed: str = ""
    """The last lines that the program which started it printed."""
    unheard: bool = False
    """Whether events of other nodes may be missing."""

    def explain(self, found: Conclusion) -> Conclusion:
        """Return the conclusion about a killed controller, with the explanation.

        Files in /dev/shm belong to no process, so the kernel may have killed a controller.
        """
        message = f"{found.message}; the step printed: {self.printed}" if self.printed else found.message
        if self.out_of_memory and found.exit_code != 0:  # with 0 only storing is left
            return replace(found, error_code="C202", message=f"{self.out_of_memory}; {message}")
        return replace(found, message=message)


def conclude(
    launch: LaunchFile,
    events: Sequence[Event],
    terminated: bool,
    deadline: Optional[float] = None,
    step: StepEnd = StepEnd(),
) -> Conclusion:
    """Decide how the attempt ended, from the events of all node controllers in order.

    `terminated` means that the head was asked to end the job. `deadline` is the time limit in epoch seconds, if known.
    The first of these applies: success, with everything stored; a learner that failed by itself, unless another node
    was lost; a checkpoint request that was obeyed or led to the end; a fault with a code; an end from outside; else a
    controller that died. Learners that have left the attempt do not count, but their files must be stored.
    """
    whole = [event for event in events if _is_of_job(launch, event)]
    stored, fault = _stored_all(launch, whole), next(iter(_faults(whole)), None)
    launch, events = staying(launch, whole)
    answered = answer(launch, events)
    found = _judge(launch, events, terminated, deadline, answered, unheard=step.unheard)
    if found.outcome is Outcome.COMPLETED and not stored:  # a released node has not stored everything
        found = _success(stored, fault, terminated, later=launch.cut_off)
    if found.error_code == DIED:
        found = step.explain(found)
    return replace(found, checkpoint=answered.checkpoint, message=_place(launch, events, found))


def _is_of_job(launch: LaunchFile, event: Event) -> bool:
    """Return whether the event has no learner or a learner of the job. The file may be damaged."""
    learner = event.fields.get("learner_id")
    return not isinstance(learner, int) or 1 <= learner <= launch.learners


def _place(launch: LaunchFile, events: Sequence[Event], found: Conclusion) -> str:
    """Return the message. A learner that failed by itself is also named by its role and node."""
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
    answered: Answer,
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
    if len(done) == len(launch.trainees) and not (answered.reason and (answered.fresh or answered.signalled)):
        return _success(stored, fault, terminated, later=launch.cut_off)
    failures = sorted((e for e in failing(endings) if not _is_answer(e, answered)), key=_failure_order)
    own = [e for e in failures if not _lost_its_peers(launch, events, endings, e)]
    if own:
        return _failure(own[0], stored)
    reason = _reason(endings, faults)
    ended_at_limit = any(e.fields.get("ended_by") in LIMITS for e in endings.values())
    if reason and (ended_at_limit or not endings or unheard or _is_accounted_for(launch, endings, faults)):
        if reason in (HALT, IDLE_GPUS):
            return (_halted if reason == HALT else _idle)(launch, trained, fault, stored, answered)
        return _at_limit(launch, trained, stored, answered, _kind(launch, reason, answered, deadline))
    if fault is not None and fault.fields.get("code"):
        return Conclusion(
            Outcome.FAILED, False, error_code=str(fault.fields["code"]), message=_fault_messages(events, faults)
        )
    if terminated or any(_why(e) == TERM for e in (*endings.values(), *faults)):
        return Conclusion(Outcome.CANCELLED, stored, message="ended from outside before the learners had finished")
    # Nodes that ended because of another node report that. The other node did not report a fault, so it died.
    message = str(fault.fields.get("message") or "") if fault is not None else ""
    message = message or _silence(launch, events, endings)
    if failures:
        message += f"; meanwhile {_failure(failures[0], stored).message}"
    return Conclusion(Outcome.FAILED, False, error_code=DIED, message=message)


def _is_loaded(events: Sequence[Event]) -> bool:
    """Return whether the data are loaded, by this run or an earlier one."""
    ended = {"phase": Phase.LOAD_DATA.value, "status": "ended", "exit": 0}
    return any(e.kind is EventKind.PHASE and ended.items() <= dict(e.fields).items() for e in events)


def _failure_order(failure: Event) -> Tuple[bool, float, str, int]:
    """Return the sort key of failures. One with a code is no consequence of another failure, so it comes first whatever
    the nodes' clocks say."""
    return (not failure.fields.get("code"), failure.at, failure.source, failure.seq)


def _lost_its_peers(launch: LaunchFile, events: Sequence[Event], endings: Dict[int, Event], failure: Event) -> bool:
    """Return whether a learner may have failed because another node died, which did not report its learners' ends.

    A node that ends because of this failure reports them.
    """
    if failure.fields.get("code") or failure.fields.get("out_of_memory") or failure.fields.get("asked"):
        return False
    begun = {e.fields.get("learner_id") for e in since_start(events, EventKind.LEARNER_STARTED)}
    unseen = {node_source(launch.seat_of(n).node) for n in range(1, launch.learners + 1) if n in begun - endings.keys()}
    return bool(unseen - {failure.source})


def _why(event: Event) -> str:
    """Return why a learner ended: what ended it, else the request that it got; "" if it ended by itself."""
    return str(event.fields.get("ended_by") or event.fields.get("asked") or "")


def _is_answer(event: Event, answered: Answer) -> bool:
    """Return whether an exit status other than 0 answered a request: the learner left a new checkpoint. A
    service need not leave one, nor a job that fails anyway."""
    blamed, asked = event.fields.get("out_of_memory") or event.fields.get("code"), event.fields.get("asked")
    return bool(asked) and (answered.fresh or bool(event.fields.get("service")) or asked == IDLE_GPUS) and not blamed


def _reason(endings: Dict[int, Event], faults: Sequence[Event]) -> str:
    """Return the request that explains the end: halt, warned, time or idle; "" if something else does."""
    reasons = {_why(e) for e in endings.values()}
    if not any(e.fields.get("code") for e in faults):
        reasons |= {_why(e) for e in faults}
    if HALT in reasons:
        return HALT
    if TERM in reasons:  # its sender knows why
        return ""
    return next((reason for reason in (TIME, *LIMITS, IDLE_GPUS) if reason in reasons), "")


def _is_accounted_for(launch: LaunchFile, endings: Dict[int, Event], faults: Sequence[Event]) -> bool:
    """Return whether every learner has ended, or its node was asked to end before it started one."""
    asked = {e.source for e in faults if not e.fields.get("code")}
    return all(n in endings or node_source(launch.seat_of(n).node) in asked for n in range(1, launch.learners + 1))


def _kind(launch: LaunchFile, reason: str, answered: Answer, deadline: Optional[float]) -> Interruption:
    """Return what a warning means: the time limit, or a preemption if the limit is known to be far away."""
    if reason != TIME and launch.pod is not None:  # the head of a pod enforces the limit itself
        return Interruption.PREEMPTION
    if reason == TIME or deadline is None or answered.asked_at is None:
        return Interruption.TIMEOUT
    limits = launch.limits
    lead_s = launch.succession.lead_s if launch.succession and launch.succession.lead_s is not None else limits.lead_s
    usual_s = (limits.grace_s if lead_s is None else lead_s) + MARGIN_S
    return Interruption.PREEMPTION if deadline - answered.asked_at > usual_s else Interruption.TIMEOUT


def keeps_checkpoints(launch: LaunchFile) -> bool:
    """Return whether the next attempt can read the checkpoints. If pods share no files, a store or a claim must keep
    them."""
    is_kept = launch.uploads or (launch.pod is not None and launch.pod.claimed(launch.checkpoints))
    return not launch.apart or bool(is_kept)


def _saved(launch: LaunchFile, checkpoint: Checkpoint) -> str:
    """Describe the checkpoint, and whether it is lost."""
    text = describe(checkpoint)
    is_lost = checkpoint.confirmed and not keeps_checkpoints(launch)
    return f"{text}, and gone with its pod: no store and no claim keeps it" if is_lost else text


def _halted(
    launch: LaunchFile, endings: Dict[int, Event], fault: Optional[Event], stored: bool, answered: Answer
) -> Conclusion:
    message = f"{describe_interruption(Interruption.HALT)}; {_saved(launch, answered.checkpoint)}"
    late = sorted(n for n, e in endings.items() if e.fields.get("ended_by") == HALT and not e.fields.get("waited"))
    if late:
        who = f"learner{'s' if len(late) > 1 else ''} {', '.join(map(str, late))}"
        message += f"; the grace period of {launch.limits.grace_s} s was over, and {who} had to be ended"
    if not endings and fault is not None:
        message = str(fault.fields.get("message") or describe_interruption(Interruption.HALT))
    code = "000"
    if endings and not stored and fault is not None and fault.fields.get("code") in (NOT_STORED, UNREADABLE_CODE):
        code = "S305" if fault.fields["code"] == NOT_STORED else UNREADABLE_CODE
        message = f"{message}; {fault.fields.get('message')}"
    return Conclusion(Outcome.HALTED, stored, error_code=code, message=message, interruption=Interruption.HALT.value)


def _at_limit(
    launch: LaunchFile, endings: Dict[int, Event], stored: bool, answered: Answer, kind: Interruption
) -> Conclusion:
    """Return the conclusion for an allocation that was about to end: HALTED if a learner reacted, else TIMED_OUT."""
    if answered.reacted or kind is Interruption.PREEMPTION:
        message = f"{describe_interruption(kind)}; {_saved(launch, answered.checkpoint)}"
        return Conclusion(Outcome.HALTED, stored, message=message, interruption=kind.value)
    limit = launch.limits.time_s
    return Conclusion(
        Outcome.TIMED_OUT,
        stored,
        min((n for n, e in endings.items() if e.fields.get("ended_by") in LIMITS), default=0),
        error_code="C203",
        message=f"{describe_interruption(kind) if limit is None else f'the time limit of {limit} s was reached'}; "
        f"{_saved(launch, answered.checkpoint)}",
        interruption=kind.value,
    )


def _idle(launch: LaunchFile, _: Dict[int, Event], __: Optional[Event], stored: bool, answered: Answer) -> Conclusion:
    message = f"the job was ended: {answered.why}; {_saved(launch, answered.checkpoint)}"
    return Conclusion(Outcome.FAILED, stored, launch.trainees[0], None, int(signal.SIGTERM), "C206", message)


def _success(stored: bool, fault: Optional[Event], terminated: bool, *, later: bool) -> Conclusion:
    """Return the conclusion after all learners succeeded. With `later`, this attempt does not store the results."""
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
    message = str(event.fields.get("detail") or "")
    error = str(event.fields.get("code") or ("C202" if event.fields.get("out_of_memory") else "C201"))
    if error == "C202":
        message = message or f"learner {learner} {KILLED_FOR_MEMORY}"
    elif not message:
        message = f"learner {learner} {describe_end(code, number)}"
        if event.fields.get("asked"):
            message += ", asked for a checkpoint, without leaving a new one"
    return Conclusion(
        Outcome.FAILED,
        stored,
        learner,
        code if isinstance(code, int) else None,
        number if isinstance(number, int) else None,
        error,
        message,
    )


def _stored_all(launch: LaunchFile, events: Sequence[Event]) -> bool:
    """Return whether results were stored after each learner had last ended. Services need not have started."""
    state: Dict[object, bool] = {}
    for event in events:
        if event.kind is EventKind.STORED:
            state[event.fields.get("learner_id")] = True
        elif event.kind is EventKind.LEARNER_STARTED:
            state[event.fields.get("learner_id")] = False
    return all(state.get(number) for number in launch.trainees) and all(state.values())


def _faults(events: Sequence[Event]) -> List[Event]:
    """Return the faults of the latest run, those that explain most first."""
    starts: Dict[str, int] = {}
    for event in events:
        if event.kind is EventKind.STARTED:
            starts[event.source] = event.seq
    faults = [e for e in events if e.kind is EventKind.FAULT and e.seq > starts.get(e.source, 0)]
    return sorted(faults, key=lambda e: (_rank(e), e.at, e.source, e.seq))


def _rank(fault: Event) -> int:
    """Return the rank of a fault: first those with a code, then requested ends, ends from outside, and ends because of
    another node. The death of a controller comes after other codes, because another fault may be its cause."""
    code = fault.fields.get("code")
    if code:
        return 1 if code == DIED else 0
    order = (HALT, *LIMITS, TERM)
    return 2 + (order.index(_why(fault)) if _why(fault) in order else len(order))


def _fault_messages(events: Sequence[Event], faults: Sequence[Event]) -> str:
    """Return the message of the first fault; if nodes are unfit for the job, the messages of all of them."""
    first = faults[0]
    if first.fields.get("code") not in UNFIT_NODE:
        return str(first.fields.get("message", ""))
    hosts = {e.source: str(e.fields.get("host", "")) for e in events if e.kind is EventKind.STARTED}
    alike: Dict[str, List[str]] = {}
    messages: Dict[str, str] = {}
    for fault in (f for f in faults if f.fields.get("code") == first.fields["code"]):
        message, host = str(fault.fields.get("message", "")), hosts.get(fault.source) or fault.source
        reason = message.replace(host, "")
        messages.setdefault(reason, message)
        alike.setdefault(reason, []).append(host)
    more = {reason: f" (and so on {', '.join(names[1:])})" if names[1:] else "" for reason, names in alike.items()}
    return "; ".join(message + more[reason] for reason, message in messages.items())


def _silence(launch: LaunchFile, events: Sequence[Event], endings: Dict[int, Event]) -> str:
    missing: List[int] = [n for n in range(1, launch.learners + 1) if n not in endings]
    nodes = sorted({launch.seat_of(n).node for n in missing})
    hosts = {e.source: e.machine or "?" for e in events if e.kind is EventKind.STARTED}
    names = [f"{n} ({hosts[f'node-{n}']})" if f"node-{n}" in hosts else f"{n} (never started)" for n in nodes]
    return f"the controller of node {', '.join(names)} died without a report; the ends of its learners are unknown"


def exit_status(final: FinalRecord) -> int:
    """Return the exit status of the head. It is 0 for a halt, and for success if results are stored or will be."""
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
    """Return whether a job that the scheduler starts again under the same id has something left to do."""
    return final.goes_on not in (GoesOn.SUCCESSOR, GoesOn.PLATFORM) and not is_final(final)
