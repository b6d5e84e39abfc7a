"""From what became of an attempt to the change of its job: on to the next attempt, or the end.

Whether a training goes on is decided by :func:`ffdl_batch.domain.outcome.continuation.decide`, as in head controllers.
Here that rule meets the job's row: budgets from the manifest, what the chain has used up, nodes to keep away from, and
what is kept of the attempt.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from ffdl_batch.attempt.layout import AttemptDir, Root
from ffdl_batch.domain.job.job import AttemptEnd, Change, Job
from ffdl_batch.domain.job.learner_layout import count_gpus, parts_of
from ffdl_batch.domain.job_state import Cause, JobState, RequestedAction
from ffdl_batch.domain.launch.network_level import network_text
from ffdl_batch.domain.outcome.continuation import (
    UNFIT_NODE,
    Checkpoint,
    Interruption,
    Spent,
    decide,
    describe_interruption,
)
from ffdl_batch.domain.outcome.controller_events import NOT_KEPT, EventKind, FinalRecord, GoesOn
from ffdl_batch.domain.outcome.error_codes import OUT_OF_MEMORY
from ffdl_batch.domain.outcome.facts import Known, latest_run
from ffdl_batch.domain.outcome.observation import Observation, Phase
from ffdl_batch.domain.outcome.verdict import Move, Verdict, is_cancelled_late
from ffdl_batch.domain.quantity import format_size
from ffdl_batch.services.job_files.attempt_directory import begun_at
from ffdl_batch.services.outcome.attempt_records import (
    gone_first,
    nodes_at_fault,
    read_final,
    read_launch,
    saved_checkpoint,
)
from ffdl_batch.services.outcome.record_completion import is_storable
from ffdl_batch.services.outcome.retry_budget import budget_of
from ffdl_batch.services.outcome.upload_pending_reason import UPLOAD_PENDING, is_reported_pending

MAX_EXCLUDED = 8
"""Failed nodes that a job keeps away from, the latest ones: a long list would leave it nowhere to run."""


_STOPPED = "{}: the scheduler has stopped it; until it lets it run again a halt waits, a cancel does not"
_AWAITS_FINAL_RECORD = "the scheduler has ended it ({}); its controllers' last word is waited for"
_DEVICES = "devices: "
_METRICS = "metrics: "
MAX_METRICS_WARNINGS = 10
"""How many warnings about metrics a job gets."""
MAX_DAMAGED_WARNINGS = 10
"""Maximum number of warnings about damaged files of a job."""
NO_CHECKPOINT = Checkpoint()


@dataclass(frozen=True, slots=True)
class Past:
    """What an attempt (or one run of it) left. `failed_nodes` are nodes that took it down, `successor_begun` says that
    somebody began to submit the next attempt, `owed` that results or logs are not where they belong yet. `refused` is
    what nodes said that were not fit for the attempts just before this one, where its own were not either. `policy` is
    the site's that found something in its logs, and `stops` that it wants no further attempt."""

    checkpoint: Checkpoint = NO_CHECKPOINT
    gpu_seconds: float = 0.0
    failed_nodes: tuple[str, ...] = ()
    successor_begun: bool = False
    upload_pending: bool = False
    refused: tuple[str, ...] = ()
    policy: str = ""
    stops: bool = False


def look_back(
    root: Root, job: Job, known: Known, verdict: Verdict, seen: Observation | None, *, avoids_nodes: bool
) -> Past:
    """Read what the attempt's directory tells beyond events. `avoids_nodes`: the backend can keep a job off nodes.

    Raises OSError.
    """
    directory = root.job(job.id)
    attempt = directory.attempt(job.attempt)
    # A run that was ended from outside has left a record too, though it is not the attempt's last word.
    final = known.evidence.final if verdict.move is Move.REQUEUED else known.final
    checkpoint = final.checkpoint if final is not None else NO_CHECKPOINT
    if checkpoint == NO_CHECKPOINT and verdict.interruption is not None:
        launch = read_launch(attempt)
        place = launch.checkpoints if launch is not None else ""
        # What a claim of the cluster holds its pods' controllers alone see; what is in a pod's own tree goes with it.
        pod = launch.pod if launch is not None else None
        unseen = pod is not None and (not pod.apart or bool(pod.claimed(place)))
        checkpoint = Checkpoint(unseen=True) if unseen else saved_checkpoint(attempt, place or directory.checkpoints)
    return Past(
        checkpoint=checkpoint,
        gpu_seconds=_gpu_seconds(lambda: gpus_of(job, attempt), known, final, seen),
        failed_nodes=_failed_nodes(root, job, known) if verdict.lost_node and avoids_nodes else (),
        successor_begun=begun_at(directory.attempt(job.attempt + 1)) is not None,
        upload_pending=_is_upload_pending(known) and not Path(attempt.uploaded).exists() and is_storable(attempt),
        refused=_refused_before(root, job) if verdict.error_code in UNFIT_NODE else (),
    )


def change_of(job: Job, verdict: Verdict, known: Known, past: Past, seen: Observation | None) -> Change | None:
    """What to write, or None when nothing differs from the row. `seen` is the scheduler's latest word. Pure."""
    stays = verdict.move is Move.NONE
    waits_for = known.waits_for if stays and not known.ended else ""
    columns = _seen_columns(job, seen, waits_for, awaits_final_record=stays and known.ended)
    columns |= _network_column(job, known)
    warnings = [warning for warning in (verdict.warning, _doubt_devices(job, known)) if warning]
    warnings += _lost_metrics(job, known)
    warnings += _not_kept(job, known)
    warnings += [one for one in known.evidence.damaged if one not in job.warnings][:MAX_DAMAGED_WARNINGS]
    if warnings:
        columns["warnings"] = (*job.warnings, *warnings)
    if verdict.move is Move.REQUEUED:
        return _adopted(job, verdict, past, known, columns)
    if verdict.move is Move.SUCCEEDED:
        return _succeeded(job, verdict, known, past, columns)
    if verdict.move is Move.UPLOAD_PENDING:
        return _upload_pending(job, verdict, known, past, columns)
    if verdict.move is Move.ENDED:
        if verdict.error_code == OUT_OF_MEMORY:
            verdict = replace(verdict, message=f"{verdict.message}; {_memory_request(job)}")
        return _ended(job, verdict, known, past, columns)
    if not verdict.steps and not columns:
        return None
    return Change(verdict.steps, verdict.cause, verdict.message, verdict.error_code, columns)


def _memory_request(job: Job) -> str:
    """What the job asked for, beside the limit that controllers may have found on a node."""
    amounts = dict.fromkeys(format_size(part.memory_bytes) for part in parts_of(job.effective_spec))
    return f"the job asks for {' or '.join(amounts)} per learner"


def _doubt_devices(job: Job, known: Known) -> str:
    """What a node found about its devices that stopped nothing, "" where none did or the job has been told already."""
    said = (event.fields.get("message") for event in known.evidence.events if event.kind is EventKind.DEVICES)
    first = next((str(message) for message in said if message), "")
    told = any(warning.startswith(_DEVICES) for warning in job.warnings)
    return f"{_DEVICES}{first}" if first and not told else ""


def _lost_metrics(job: Job, known: Known) -> list[str]:
    """What its collectors could not use, as far as the job has not been told."""
    events = (event for event in known.evidence.events if event.kind is EventKind.METRICS)
    said = (f"{_METRICS}learner {event.fields.get('learner_id')}: {event.fields.get('message')}" for event in events)
    told = [warning for warning in job.warnings if warning.startswith(_METRICS)]
    return [one for one in dict.fromkeys(said) if one not in told][: max(0, MAX_METRICS_WARNINGS - len(told))]


def _not_kept(job: Job, known: Known) -> list[str]:
    """Return what of the results is not stored as it is, as far as the job has no such warning yet."""
    events = (event for event in known.evidence.events if event.kind is EventKind.NOT_KEPT)
    said = dict.fromkeys(f"{NOT_KEPT}{event.fields.get('message')}" for event in events)
    told = [warning for warning in job.warnings if warning.startswith(NOT_KEPT)]
    return [one for one in said if one not in told][: max(0, MAX_DAMAGED_WARNINGS - len(told))]


def _adopted(job: Job, verdict: Verdict, past: Past, known: Known, columns: dict[str, object]) -> Change:
    """The scheduler started the attempt anew: it is counted, whatever the budget; its own limit holds it back."""
    final = known.evidence.final
    if verdict.interruption is not None:
        asked = final.spent if final is not None and final.goes_on is GoesOn.REQUEUE else None
        columns["spent"] = asked or _spent(job, verdict.interruption, past, played=verdict.played)
    if past.failed_nodes:
        columns["overrides"] = _avoiding(job, past.failed_nodes)
    back = AttemptEnd() if is_reported_pending(job) else None  # its next run stores what this one owes
    return Change(verdict.steps, verdict.cause, verdict.message, verdict.error_code, columns, back)


def _upload_pending(job: Job, verdict: Verdict, known: Known, past: Past, columns: dict[str, object]) -> Change | None:
    """The attempt has ended, and its job will when what it owes is stored: the daemon does that."""
    columns.pop("pending_reason", None)
    if not verdict.steps and is_reported_pending(job):
        return Change(columns=columns) if columns else None
    columns["pending_reason"] = UPLOAD_PENDING
    end = AttemptEnd("", past.checkpoint, past.gpu_seconds, past.upload_pending, at=_end_of_attempt(known))
    return Change(verdict.steps, columns=columns, attempt_end=end)


def _end_of_attempt(known: Known) -> float:
    """When the scheduler ended it; where that is not known, when its controllers were last heard of."""
    seen = known.observation
    return known.when(seen.ended_at if seen is not None else None, known.last_sign)


def _succeeded(job: Job, verdict: Verdict, known: Known, past: Past, columns: dict[str, object]) -> Change:
    why = verdict.interruption or Interruption.TIMEOUT
    final = known.final
    told = final.spent if final is not None else None
    columns["spent"] = _most(job.spent, told) if told is not None else _spent(job, why, past, played=verdict.played)
    if past.policy and past.failed_nodes:
        columns["overrides"] = _avoiding(job, past.failed_nodes)
    return Change(
        (*verdict.steps, (JobState.DEPLOYING, known.when(final.at if final is not None else None))),
        Cause.REQUEUED,
        verdict.message or describe_interruption(why, played=verdict.played),
        columns=columns,
        attempt_end=_end(verdict, known, past, why),
        succeeded=True,
    )


def _ended(job: Job, verdict: Verdict, known: Known, past: Past, columns: dict[str, object]) -> Change:
    why = verdict.interruption
    if why is None or why is Interruption.HALT or verdict.decided:
        final = known.final
        if verdict.decided and final is not None and final.spent is not None:
            columns["spent"] = final.spent
        return _at_the_end(verdict, verdict.message, columns, _end(verdict, known, past))
    budget = budget_of(job.effective_spec.batch.retry)
    decision = decide(why, budget, job.spent, past.checkpoint, past.gpu_seconds, played=verdict.played)
    columns["spent"] = decision.spent
    if past.failed_nodes:
        columns["overrides"] = _avoiding(job, past.failed_nodes)
    if why is Interruption.FAILURE and budget.failures == 0:
        return _at_the_end(verdict, verdict.message, columns, _end(verdict, known, past))
    message = _joined(
        verdict.message, decision.sentence.removeprefix(describe_interruption(why, played=verdict.played))
    )
    if past.stops and decision.goes_on and known.requested_action is RequestedAction.NONE and not past.successor_begun:
        message = f"{message}; the site's fault policy {past.policy} stops here"
        return _at_the_end(verdict, message, columns, _end(verdict, known, past))
    nowhere = _nowhere_else(job, past) if verdict.error_code in UNFIT_NODE and decision.goes_on else ""
    if known.requested_action is not RequestedAction.NONE or not decision.goes_on or nowhere:
        message = "; ".join(filter(None, (message, nowhere, *past.refused)))
        return _at_the_end(verdict, message, columns, _end(verdict, known, past))
    target = JobState.DEPLOYING if past.successor_begun else JobState.PENDING
    return Change(
        (*verdict.steps[:-1], (target, verdict.steps[-1][1])),
        Cause.REQUEUED,
        message,
        verdict.error_code,
        columns,
        _end(verdict, known, past),
        succeeded=past.successor_begun,
    )


def _nowhere_else(job: Job, past: Past) -> str:
    """Why the next attempt would come to the same node that is not fit for it; "" = it would not."""
    if job.effective_spec.batch.nodelist:
        return "the job names its nodes, so no other is tried"
    return "" if past.failed_nodes else "there is no other node to try"


def _refused_before(root: Root, job: Job) -> tuple[str, ...]:
    """Why attempts ended that came to nodes not fit for them, back to the last one that did not. Raises OSError."""
    said: list[str] = []
    for number in range(job.attempt - 1, max(0, job.attempt - 1 - job.spent.node_failures), -1):
        final = read_final(root.job(job.id).attempt(number))
        if final is None or final.error_code not in UNFIT_NODE:
            break
        said.append(f"attempt {number}: {final.message}")
    return tuple(said)


def _at_the_end(verdict: Verdict, message: str, columns: dict[str, object], end: AttemptEnd) -> Change:
    columns |= {
        "exit_code": verdict.exit_code,
        "exit_signal": verdict.exit_signal,
        "log_tail": verdict.log_tail,
        "pending_reason": "",
    }
    return Change(verdict.steps, verdict.cause, message, verdict.error_code, columns, end)


def _joined(message: str, detail: str) -> str:
    """The message with the detail behind it, without what the head has said already."""
    if detail in message:
        return message
    ends = (at for at in range(1, len(detail)) if detail.startswith("; ", at))
    return message + detail[max((at for at in ends if message.endswith(detail[:at])), default=0) :]


def _end(verdict: Verdict, known: Known, past: Past, why: Interruption | None = None) -> AttemptEnd:
    """What is kept of the attempt; `why` where the verdict names no interruption though there was one."""
    why = verdict.interruption or why
    at = _end_of_attempt(known) if known.evidence.uploaded_at is not None or is_cancelled_late(known) else None
    return AttemptEnd(
        why.value if why else "", past.checkpoint, past.gpu_seconds, past.upload_pending, verdict.played, at
    )


def _spent(job: Job, why: Interruption, past: Past, *, played: bool) -> Spent:
    budget = budget_of(job.effective_spec.batch.retry)
    return decide(why, budget, job.spent, past.checkpoint, past.gpu_seconds, played=played).spent


def _most(one: Spent, other: Spent) -> Spent:
    """The larger of each count: the head does not know of starts that only the daemon has counted."""
    return replace(
        other,
        timeouts=max(one.timeouts, other.timeouts),
        preemptions=max(one.preemptions, other.preemptions),
        node_failures=max(one.node_failures, other.node_failures),
        failures=max(one.failures, other.failures),
        gpu_seconds=max(one.gpu_seconds, other.gpu_seconds),
    )


def _avoiding(job: Job, nodes: tuple[str, ...]) -> object:
    known = (*(node for node in job.overrides.exclude if node not in nodes), *nodes)
    return replace(job.overrides, exclude=known[-MAX_EXCLUDED:])


def _seen_columns(
    job: Job, seen: Observation | None, waits_for: str, *, awaits_final_record: bool
) -> dict[str, object]:
    """`waits_for` is its head's word, which may be younger than the scheduler's. `awaits_word`: it has ended, and
    nobody knows yet how."""
    columns: dict[str, object] = {}
    if seen is None:
        return {"pending_reason": waits_for} if waits_for not in ("", job.pending_reason) else columns
    reason = seen.lacks or waits_for or (seen.reason if seen.phase is Phase.PENDING else "")
    reason = _STOPPED.format(seen.native_state) if seen.phase is Phase.SUSPENDED else reason
    reason = _AWAITS_FINAL_RECORD.format(seen.native_state) if awaits_final_record else reason
    if reason != job.pending_reason:
        columns["pending_reason"] = reason
    if seen.nodes and seen.nodes != job.nodes:
        columns["nodes"] = seen.nodes
    return columns


def _network_column(job: Job, known: Known) -> dict[str, object]:
    """The network that the node controllers found their learners in, by the latest run's word."""
    told = [one for one in latest_run(known.evidence.events) if one.kind is EventKind.NETWORK]
    if not told:
        return {}
    fields = next((one.fields for one in told if one.fields.get("seen")), told[0].fields)
    doubt = "" if fields.get("seen") else "; not looked at"
    found = network_text(str(fields.get("level", "")), str(fields.get("mechanism", "")) + doubt)
    return {"network": found} if found != job.network else {}


def _failed_nodes(root: Root, job: Job, known: Known) -> tuple[str, ...]:
    """The node of a job that has one, as the scheduler calls it. Of several those that said so themselves, that went
    first (nobody can tell two that went together), or that were silent where the attempt was given up for that."""
    seen, given_up = known.observation, known.evidence.given_up
    # A job that was started anew may run by now, and then the scheduler names the nodes that did not fail.
    nodes = (seen.nodes if seen is not None and seen.phase is Phase.ENDED else "") or job.nodes
    if nodes and "," not in nodes and "[" not in nodes:
        return (nodes,)
    if given_up is not None:
        return given_up.nodes
    events = latest_run(known.evidence.events)
    return nodes_at_fault(events) or gone_first(root.job(job.id).attempt(job.attempt), events)


def gpus_of(job: Job, attempt: AttemptDir) -> float:
    """Those that the attempt was given: of nodes that roles fill differently some are idle. Raises OSError."""
    asked = count_gpus(job.effective_spec)
    launch = read_launch(attempt) if asked else None
    return launch.succession.gpus if launch is not None and launch.succession is not None else asked


def _gpu_seconds(
    count: Callable[[], float], known: Known, final: FinalRecord | None, seen: Observation | None
) -> float:
    """GPU time of the attempt's last run: the head's figure, else from the scheduler's times, else from its first
    event to the last sign of its life. What was silent until it was given up did nothing from there on."""
    if final is not None and final.gpu_seconds > 0:
        return final.gpu_seconds
    events = latest_run(known.evidence.events)
    began = seen.started_at if seen is not None and seen.phase is Phase.ENDED else None
    ended = seen.ended_at if seen is not None else None
    if began is None or ended is None:
        began = min((event.at for event in events), default=0.0)
        ended = (known.last_sign or began) if events else began
    if known.evidence.given_up is not None:
        ended = min(ended, known.evidence.given_up.since)
    return count() * max(0.0, ended - began)


def _is_upload_pending(known: Known) -> bool:
    """Learners ran, and nobody has said that all they left is stored."""
    if not known.learners_began:
        return False
    if known.final is not None:
        return not known.final.stored
    stored: set[object] = set()
    for event in known.evidence.events:
        learner = event.fields.get("learner_id")
        if event.kind is EventKind.LEARNER_STARTED:
            stored.discard(learner)
        elif event.kind is EventKind.STORED:
            stored.add(learner)
    return len(stored) < known.learners
