"""Turn a verdict on an attempt into the change of its job's row: to the next attempt, or to the end.

Whether a next attempt follows is decided by :func:`ffdl_batch.domain.outcome.continuation.decide`, as in head
controllers. Here its decision meets the row: the retry budget of the manifest, what the job has spent of it, the nodes
to avoid, and what is recorded about the attempt. Nothing is read or written here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ffdl_batch.domain.incidents.stalled_learners import IDLE_WARNING, idle_warning
from ffdl_batch.domain.job.job import AttemptEnd, Change, Job
from ffdl_batch.domain.job.learner_layout import parts_of
from ffdl_batch.domain.job_state import Cause, JobState, RequestedAction
from ffdl_batch.domain.launch.network_level import network_text
from ffdl_batch.domain.outcome.attempt_reports import latest_run
from ffdl_batch.domain.outcome.continuation import (
    UNFIT_NODE,
    Decision,
    Interruption,
    Spent,
    decide,
    describe_interruption,
)
from ffdl_batch.domain.outcome.controller_events import NOT_KEPT, Event, EventKind, GoesOn
from ffdl_batch.domain.outcome.error_codes import OUT_OF_MEMORY
from ffdl_batch.domain.outcome.facts import AttemptFacts
from ffdl_batch.domain.outcome.observation import Observation, Phase
from ffdl_batch.domain.outcome.verdict import Verdict, VerdictKind, is_cancelled_late
from ffdl_batch.domain.quantity import format_memory
from ffdl_batch.services.outcome.ended_attempt import Remains
from ffdl_batch.services.outcome.retry_budget import budget_of
from ffdl_batch.services.outcome.upload_pending_reason import UPLOAD_PENDING, is_reported_pending

MAX_EXCLUDED = 8
"""Maximum number of failed nodes that a job avoids, the latest ones: a longer list could exclude all nodes."""
MAX_METRICS_WARNINGS = 10
"""Maximum number of warnings about metrics of a job."""
MAX_DAMAGED_WARNINGS = 10
"""Maximum number of warnings about damaged files of a job, and about results that are not stored as they are."""

_STOPPED = "{}: the scheduler has stopped it; until it lets it run again a halt waits, a cancel does not"
_AWAITS_FINAL_RECORD = "the scheduler has ended it ({}); waiting for its controllers' final record"
_DEVICES = "devices: "
_METRICS = "metrics: "


def change_of(
    job: Job, verdict: Verdict, facts: AttemptFacts, remains: Remains, seen: Observation | None
) -> Change | None:
    """Return the change of the row, or None if nothing differs from it. `seen` is the scheduler's latest report."""
    columns = _columns(job, verdict, facts, seen)
    if verdict.kind is VerdictKind.REQUEUED:
        return _requeued(job, verdict, facts, remains, columns)
    if verdict.kind is VerdictKind.CONTINUED:
        return _continued(job, verdict, facts, remains, columns)
    if verdict.kind is VerdictKind.UPLOAD_PENDING:
        return _upload_pending(job, verdict, facts, remains, columns)
    if verdict.kind is VerdictKind.ENDED:
        return _ended(job, verdict, facts, remains, columns)
    if not verdict.steps and not columns:
        return None
    return Change(verdict.steps, verdict.cause, verdict.message, verdict.error_code, columns)


# ------------------------------------------------------------------------------------------------- kinds of verdicts


def _requeued(job: Job, verdict: Verdict, facts: AttemptFacts, remains: Remains, columns: dict[str, object]) -> Change:
    """Return the change for an attempt that the scheduler started again. It is counted but never refused: the
    scheduler has a limit of its own."""
    final = facts.final_record
    if verdict.interruption is not None:
        recorded = final.spent if final is not None and final.goes_on is GoesOn.REQUEUE else None
        columns["spent"] = recorded or _decide(job, verdict.interruption, verdict, remains).spent
    if remains.failed_nodes:
        columns["overrides"] = _avoiding(job, remains.failed_nodes)
    end = AttemptEnd() if is_reported_pending(job) else None  # the next run stores what this one left
    return Change(verdict.steps, verdict.cause, verdict.message, verdict.error_code, columns, end)


def _continued(job: Job, verdict: Verdict, facts: AttemptFacts, remains: Remains, columns: dict[str, object]) -> Change:
    """Return the change for an attempt whose head controller began the next one."""
    why, final = verdict.interruption or Interruption.TIMEOUT, facts.valid_record
    recorded = final.spent if final is not None else None
    columns["spent"] = (
        _larger(job.spent, recorded) if recorded is not None else _decide(job, why, verdict, remains).spent
    )
    if remains.policy and remains.failed_nodes:
        columns["overrides"] = _avoiding(job, remains.failed_nodes)
    begun = (JobState.DEPLOYING, facts.first_known_time(final.at if final is not None else None))
    return Change(
        (*verdict.steps, begun),
        Cause.REQUEUED,
        verdict.message or describe_interruption(why, simulated=verdict.is_simulated),
        columns=columns,
        attempt_end=_attempt_end(verdict, facts, remains, why),
        succeeded=True,
    )


def _upload_pending(
    job: Job, verdict: Verdict, facts: AttemptFacts, remains: Remains, columns: dict[str, object]
) -> Change | None:
    """Return the change for an attempt that ended before everything was stored. The job ends when the daemon has stored
    the rest."""
    columns.pop("pending_reason", None)
    if not verdict.steps and is_reported_pending(job):
        return Change(columns=columns) if columns else None
    columns["pending_reason"] = UPLOAD_PENDING
    end = AttemptEnd("", remains.checkpoint, remains.gpu_seconds, remains.is_upload_pending, at=_attempt_end_at(facts))
    return Change(verdict.steps, columns=columns, attempt_end=end)


def _ended(job: Job, verdict: Verdict, facts: AttemptFacts, remains: Remains, columns: dict[str, object]) -> Change:
    """Return the change for an attempt that ended: the end of its job, or the next attempt."""
    if verdict.error_code == OUT_OF_MEMORY:
        verdict = replace(verdict, message=f"{verdict.message}; {_memory_request(job)}")
    why, end = verdict.interruption, _attempt_end(verdict, facts, remains)
    if why is None or why is Interruption.HALT or verdict.is_decided:
        final = facts.valid_record
        if why is Interruption.HALT:  # a scaler may continue the job, with the same budget
            columns["spent"] = replace(job.spent, gpu_seconds=job.spent.gpu_seconds + remains.gpu_seconds)
        if verdict.is_decided and final is not None and final.spent is not None:
            columns["spent"] = final.spent
        return _job_end(verdict, verdict.message, columns, end)
    decision = _decide(job, why, verdict, remains)
    columns["spent"] = decision.spent
    if remains.failed_nodes:
        columns["overrides"] = _avoiding(job, remains.failed_nodes)
    if why is Interruption.FAILURE and budget_of(job.effective_spec.batch.retry).failures == 0:
        return _job_end(verdict, verdict.message, columns, end)
    detail = decision.sentence.removeprefix(describe_interruption(why, simulated=verdict.is_simulated))
    message = _joined(verdict.message, detail)
    # A failure during the halt of an elastic job does not end the job. The scaler or user that requested the halt
    # decides.
    is_halted = facts.requested_action is RequestedAction.HALT and job.spec.batch.elasticity is not None
    is_wanted = decision.goes_on and (is_halted or facts.requested_action is RequestedAction.NONE)
    if is_wanted and remains.stops_retries and not remains.is_successor_begun:
        return _job_end(verdict, f"{message}; the site's fault policy {remains.policy} stops here", columns, end)
    no_node = _why_no_node(job, remains) if decision.goes_on and verdict.error_code in UNFIT_NODE else ""
    if no_node or not is_wanted:
        message = "; ".join(filter(None, (message, no_node, *remains.unfit_before)))
        return _job_end(verdict, message, columns, end)
    if is_halted:
        halted = (*verdict.steps[:-1], (JobState.HALTED, verdict.steps[-1][1]))
        return _job_end(replace(verdict, steps=halted), message, columns, end)
    target = JobState.DEPLOYING if remains.is_successor_begun else JobState.PENDING
    steps = (*verdict.steps[:-1], (target, verdict.steps[-1][1]))
    return Change(
        steps, Cause.REQUEUED, message, verdict.error_code, columns, end, succeeded=remains.is_successor_begun
    )


def _job_end(verdict: Verdict, message: str, columns: dict[str, object], end: AttemptEnd) -> Change:
    """Return the change for a job that ends with its attempt."""
    columns |= {
        "exit_code": verdict.exit_code,
        "exit_signal": verdict.exit_signal,
        "log_tail": verdict.log_tail,
        "pending_reason": "",
    }
    return Change(verdict.steps, verdict.cause, message, verdict.error_code, columns, end)


def _attempt_end(
    verdict: Verdict, facts: AttemptFacts, remains: Remains, why: Interruption | None = None
) -> AttemptEnd:
    """Return what is recorded about the attempt. `why` replaces the verdict's interruption if that names none."""
    why = verdict.interruption or why
    is_earlier = facts.uploaded_at is not None or is_cancelled_late(facts)
    return AttemptEnd(
        why.value if why else "",
        remains.checkpoint,
        remains.gpu_seconds,
        remains.is_upload_pending,
        verdict.is_simulated,
        _attempt_end_at(facts) if is_earlier else None,
    )


def _attempt_end_at(facts: AttemptFacts) -> float:
    """Return when the scheduler ended the attempt; if that is not known, the last sign of life of its controllers."""
    seen = facts.observation
    return facts.first_known_time(seen.ended_at if seen is not None else None, facts.last_sign_at)


# ----------------------------------------------------------------------------------------------------- the next attempt


def _decide(job: Job, why: Interruption, verdict: Verdict, remains: Remains) -> Decision:
    """Return whether the retry budget of the job permits a next attempt."""
    budget = budget_of(job.effective_spec.batch.retry)
    return decide(why, budget, job.spent, remains.checkpoint, remains.gpu_seconds, simulated=verdict.is_simulated)


def _larger(one: Spent, other: Spent) -> Spent:
    """Return the larger of each count: the head controller does not know the starts that only the daemon counted."""
    return replace(
        other,
        timeouts=max(one.timeouts, other.timeouts),
        preemptions=max(one.preemptions, other.preemptions),
        node_failures=max(one.node_failures, other.node_failures),
        failures=max(one.failures, other.failures),
        gpu_seconds=max(one.gpu_seconds, other.gpu_seconds),
    )


def _avoiding(job: Job, nodes: tuple[str, ...]) -> object:
    """Return the overrides of the job with the nodes excluded."""
    excluded = (*(node for node in job.overrides.exclude if node not in nodes), *nodes)
    return replace(job.overrides, exclude=excluded[-MAX_EXCLUDED:])


def _why_no_node(job: Job, remains: Remains) -> str:
    """Return why the next attempt would get the same unfit node; "" if it would not."""
    if job.effective_spec.batch.nodelist:
        return "the job names its nodes, so no other is tried"
    return "" if remains.failed_nodes else "there is no other node to try"


def _memory_request(job: Job) -> str:
    """Return how much memory the job requests, for comparison with the limit that controllers found on a node."""
    amounts = dict.fromkeys(format_memory(part.memory_bytes) for part in parts_of(job.effective_spec))
    return f"the job asks for {' or '.join(amounts)} per learner"


def _joined(message: str, detail: str) -> str:
    """Return the message followed by the parts of `detail` that it does not end with already."""
    if detail in message:
        return message
    ends = (at for at in range(1, len(detail)) if detail.startswith("; ", at))
    return message + detail[max((at for at in ends if message.endswith(detail[:at])), default=0) :]


# ------------------------------------------------------------------------------------------------------------- columns


def _columns(job: Job, verdict: Verdict, facts: AttemptFacts, seen: Observation | None) -> dict[str, object]:
    """Return the columns that change with the observation and the events, whatever the verdict."""
    is_open = verdict.kind is VerdictKind.NONE
    columns = _scheduler_columns(
        job, seen, facts.head_waits_for if is_open and not facts.is_ended else "", is_open and facts.is_ended
    )
    columns |= _network_column(job, facts)
    warnings = [
        *([verdict.warning] if verdict.warning else []),
        *([seen.warning] if seen is not None and seen.warning and seen.warning not in job.warnings else []),
        *_new_warnings(job, _DEVICES, map(_message, _of_kind(facts, EventKind.DEVICES)), 1),
        *_new_warnings(job, _METRICS, map(_learner_message, _of_kind(facts, EventKind.METRICS)), MAX_METRICS_WARNINGS),
        *_new_warnings(job, NOT_KEPT, map(_message, _of_kind(facts, EventKind.NOT_KEPT)), MAX_DAMAGED_WARNINGS),
        *[one for one in facts.damaged_files if one not in job.warnings][:MAX_DAMAGED_WARNINGS],
    ]
    idle = idle_warning(latest_run(facts.events)) if is_open and not facts.is_ended else ""
    present = [one for one in job.warnings if one == idle or not one.startswith(IDLE_WARNING)]
    warnings += [idle] if idle and idle not in present else []
    if warnings or len(present) < len(job.warnings):
        columns["warnings"] = (*present, *warnings)
    return columns


def _scheduler_columns(
    job: Job, seen: Observation | None, head_waits_for: str, awaits_final_record: bool
) -> dict[str, object]:
    """Return pending reason and nodes. What the head controller waits for may be newer than the scheduler's report."""
    if seen is None:
        return {"pending_reason": head_waits_for} if head_waits_for not in ("", job.pending_reason) else {}
    columns: dict[str, object] = {}
    reason = seen.lacks or head_waits_for or (seen.reason if seen.phase is Phase.PENDING else "")
    if awaits_final_record:
        reason = _AWAITS_FINAL_RECORD.format(seen.native_state)
    elif seen.phase is Phase.SUSPENDED:
        reason = _STOPPED.format(seen.native_state)
    if reason != job.pending_reason:
        columns["pending_reason"] = reason
    if seen.nodes and seen.nodes != job.nodes:
        columns["nodes"] = seen.nodes
    return columns


def _network_column(job: Job, facts: AttemptFacts) -> dict[str, object]:
    """Return the network that the node controllers of the latest run found their learners in."""
    reports = [event for event in latest_run(facts.events) if event.kind is EventKind.NETWORK]
    if not reports:
        return {}
    fields = next((event.fields for event in reports if event.fields.get("seen")), reports[0].fields)
    doubt = "" if fields.get("seen") else "; not looked at"
    found = network_text(str(fields.get("level", "")), str(fields.get("mechanism", "")) + doubt)
    return {"network": found} if found != job.network else {}


def _new_warnings(job: Job, prefix: str, texts: Iterable[str], limit: int) -> list[str]:
    """Return the warnings with this prefix that the job does not have yet, up to `limit` with those that it has."""
    present = [warning for warning in job.warnings if warning.startswith(prefix)]
    new = [one for one in dict.fromkeys(f"{prefix}{text}" for text in texts if text) if one not in present]
    return new[: max(0, limit - len(present))]


def _of_kind(facts: AttemptFacts, kind: EventKind) -> Iterable[Event]:
    return (event for event in facts.events if event.kind is kind)


def _message(event: Event) -> str:
    return str(event.fields.get("message") or "")


def _learner_message(event: Event) -> str:
    return f"learner {event.fields.get('learner_id')}: {event.fields.get('message')}"
