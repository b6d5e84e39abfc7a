"""Records the incident of an attempt that ended abnormally, in the change that ends it: both are written, or neither.

It reads only files of attempts that ended abnormally, and only the end of each log. It never asks a scheduler.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ffdl_batch.attempt.layout import AttemptDir, Root
from ffdl_batch.attempt.log_tail import readable
from ffdl_batch.domain.incidents.classification import Ended, LearnerEnd, PolicyHit, Printed, classify
from ffdl_batch.domain.incidents.incident import LINE_CHARS, Evidence, Incident
from ffdl_batch.domain.incidents.node_health import HealthLine
from ffdl_batch.domain.incidents.site_settings import FaultPolicy
from ffdl_batch.domain.job.job import Change, Job
from ffdl_batch.domain.job.learner_layout import count_gpus
from ffdl_batch.domain.job.log_text import Grep
from ffdl_batch.domain.job_state import JobState, RequestedAction
from ffdl_batch.domain.outcome.attempt_reports import INTERRUPTION_CODES, latest_run
from ffdl_batch.domain.outcome.continuation import Interruption
from ffdl_batch.domain.outcome.controller_events import Event, EventKind, is_time
from ffdl_batch.domain.outcome.error_codes import NOT_STORED
from ffdl_batch.domain.outcome.facts import AttemptFacts
from ffdl_batch.domain.outcome.observation import EndCause, Observation
from ffdl_batch.domain.outcome.verdict import Verdict, VerdictKind
from ffdl_batch.domain.untrusted_json import parse_json
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.services.logs.line_search import matching
from ffdl_batch.services.logs.log_reader import LogReader
from ffdl_batch.services.outcome.ended_attempt import Remains, gpus_of
from ffdl_batch.services.outcome.upload_pending_reason import UPLOAD_PENDING
from ffdl_batch.services.refusals import Refused

__all__ = ["Ends", "FindPolicy", "read_tail", "refusal"]

log = logging.getLogger(__name__)

TAIL_BYTES = 64 * 1024
TAIL_LINES = 400
LEARNERS_READ = 8
"""Number of failed learners whose logs are read: the first ones, because later ones failed because of these."""
HOSTS = 64
"""Maximum number of nodes that an incident names."""
HEALTH = "health"
"""The kind of event with which a node controller reports what root's health check found on its node.

Each of its `lines` is a JSON value with `at`, `kind`, `device` and `text`. A fault that persists since `at` has
`lasts`, and `drains` if it makes the node unfit.
"""
_DIED = "S106"

FindPolicy = Callable[[Job, Sequence[LearnerEnd]], PolicyHit | None]
"""Applies the site's policies to the ends of the logs; called only for abnormal ends."""


class Ends:
    """Adds incidents to changes that end attempts. `find` applies the site's policies."""

    def __init__(self, root: Root, find: FindPolicy | None = None) -> None:
        self._root, self._find = root, find

    def noted(self, job: Job, facts: AttemptFacts, verdict: Verdict, remains: Remains, change: Change) -> Change:
        """Return `change`, which results from `verdict`, with the incident of this end. Raises OSError.

        Success, the owner's request, a drill and the end of an attempt that only loaded data are not incidents.
        """
        if not _is_abnormal(job, facts, verdict, change):
            return change
        attempt = self._root.job(job.id).attempt(job.attempt)
        ended = _describe(job, attempt, facts, verdict, remains, change)
        hit = self._find(job, ended.learners) if self._find is not None else None
        return replace(change, incidents=(*change.incidents, classify(ended, hit)))


def refusal(job: Job, code: str, message: str, at: float) -> Incident:
    """Return the incident of an accepted job that ends because it cannot be submitted."""
    return classify(Ended(job.id, job.attempt, f"refused-{job.revision}", at, code, message, refused=True))


def _is_abnormal(job: Job, facts: AttemptFacts, verdict: Verdict, change: Change) -> bool:
    if verdict.kind is VerdictKind.NONE or verdict.is_simulated:
        return False
    if verdict.kind is VerdictKind.UPLOAD_PENDING:
        final = facts.valid_record
        return bool(change.attempt_end) and not (final is not None and final.stores_later)
    if verdict.interruption is Interruption.STAGED:
        return False
    state = verdict.steps[-1][0] if verdict.steps else job.state
    if verdict.error_code in NOT_STORED:
        return True
    if verdict.interruption is Interruption.HALT or state in (JobState.COMPLETED, JobState.HALTED):
        return False
    if verdict.kind is VerdictKind.ENDED and state is JobState.CANCELLED:
        return facts.requested_action is not RequestedAction.CANCEL and not _is_owners(job, facts.observation)
    return True


def _is_owners(job: Job, seen: Observation | None) -> bool:
    """Return whether the scheduler reports that the owner cancelled the job there (Slurm's ``CANCELLED by UID``)."""
    words = seen.native_state.split() if seen is not None else []
    return words[-2:] == ["by", str(job.uid)]


def _describe(
    job: Job, attempt: AttemptDir, facts: AttemptFacts, verdict: Verdict, remains: Remains, change: Change
) -> Ended:
    final, abandon_mark = facts.final_record, facts.abandon_mark
    events = latest_run(facts.events)
    is_pending, was_pending = verdict.kind is VerdictKind.UPLOAD_PENDING, job.pending_reason == UPLOAD_PENDING
    why = verdict.interruption or (_why_upload_pending(facts.observation) if is_pending else None)
    code = verdict.error_code
    if code == "000" and why is not None and not is_pending:
        code = (
            final.error_code if final is not None and final.error_code != "000" else INTERRUPTION_CODES.get(why, "000")
        )
    code = _DIED if is_pending and why is None else code
    at = change.steps[-1][1] if change.steps else facts.first_known_time(facts.last_sign_at)
    at = change.attempt_end.at or at if is_pending and change.attempt_end is not None else at
    hosts = _hosts(events)
    named = tuple(dict.fromkeys(hosts.values())) or _one_node(job, facts.observation)
    return Ended(
        job.id,
        job.attempt,
        f"{'stored' if was_pending else 'end'}-{facts.requeues}",
        at,
        code,
        change.message,
        _fault_class(events, code),
        why,
        facts.observation,
        requeued=verdict.kind is VerdictKind.REQUEUED,
        cancelled=bool(verdict.steps) and verdict.steps[-1][0] is JobState.CANCELLED,
        nodes=named[:HOSTS],
        failed_nodes=remains.failed_nodes,
        silent=abandon_mark is not None and verdict.has_lost_node,
        learners=_with_logs(attempt, job.attempt, _failures(events, hosts, facts)),
        health=_health(events, hosts),
        lost_gpu_s=0.0 if is_pending or was_pending else _lost(job, attempt, events, remains, at),
        has_gpus=count_gpus(job.effective_spec) > 0,
    )


def _why_upload_pending(seen: Observation | None) -> Interruption | None:
    """Return what ended the controllers after the learners had ended."""
    ends = {
        EndCause.PREEMPTED: Interruption.PREEMPTION,
        EndCause.TIMEOUT: Interruption.TIMEOUT,
        EndCause.NODE_FAIL: Interruption.NODE_FAILURE,
    }
    return ends.get(seen.end) if seen is not None and seen.end is not None else None


def _one_node(job: Job, seen: Observation | None) -> tuple[str, ...]:
    """Return the node of the scheduler's record if it names exactly one."""
    nodes = (seen.nodes if seen is not None else "") or job.nodes
    return (nodes,) if nodes and "," not in nodes and "[" not in nodes else ()


def _hosts(events: Iterable[Event]) -> dict[str, str]:
    """Return the host of each node controller, by the controller's name in events."""
    started = (one for one in events if one.kind is EventKind.STARTED and one.source.startswith("node-"))
    hosts = {one.source: one.node for one in started}
    return {source: host for source, host in hosts.items() if host}


def _fault_class(events: Iterable[Event], code: str) -> str:
    faults = (one for one in events if one.kind is EventKind.FAULT and one.fields.get("code") == code)
    return next((str(one.fields["class"]) for one in faults if one.fields.get("class")), "")


def _failures(events: Sequence[Event], hosts: Mapping[str, str], facts: AttemptFacts) -> list[LearnerEnd]:
    """Return the learners that failed by themselves, in the order of their ends. Only the status is known of a learner
    whose controller was killed."""
    ended = [one for one in events if one.kind is EventKind.LEARNER_ENDED and not one.fields.get("restarted")]
    own = [_learner_end(one, hosts.get(one.source, "")) for one in ended if not one.fields.get("ended_by")]
    found = facts.unreported_exit_at or 0.0
    own += [LearnerEnd(number, found, status) for number, status in facts.unreported_exits.items()]
    failed = [end for end in own if end.exit_code or end.exit_signal or end.out_of_memory]
    return sorted(failed, key=lambda end: (end.at, end.learner))


def _learner_end(event: Event, node: str) -> LearnerEnd:
    fields = event.fields
    return LearnerEnd(
        _whole(fields.get("learner_id")) or 0,
        event.at,
        _whole(fields.get("exit_code")),
        _whole(fields.get("signal")),
        bool(fields.get("out_of_memory")),
        node,
    )


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _with_logs(attempt: AttemptDir, number: int, ends: Sequence[LearnerEnd]) -> tuple[LearnerEnd, ...]:
    read = [replace(end, log=read_tail(attempt, number, end.learner)) for end in ends[:LEARNERS_READ]]
    return (*read, *ends[LEARNERS_READ:])


def read_tail(attempt: AttemptDir, number: int, learner: int) -> tuple[Printed, ...]:
    """Return the end of a learner's log as a terminal would show it. If the log cannot be read, one line says so, and
    the incident is recorded without it."""
    try:
        reader = LogReader(attempt, number, learner)
        end = reader.end()
        reader.go_to(reader.line_start(max(0, end - TAIL_BYTES)) if end > TAIL_BYTES else 0, numbered=False)
        lines = [Printed(readable(line.line), line.at) for line in reader.lines(ended=True)]
    except OSError as error:
        log.warning("the log of learner %d in %s cannot be read: %s", learner, attempt.path, error)
        return (Printed(f"its log cannot be read: {error}"),)
    return tuple(lines[-TAIL_LINES:])


def _health(events: Iterable[Event], hosts: Mapping[str, str]) -> tuple[HealthLine, ...]:
    found: list[HealthLine] = []
    for event in events:
        if event.kind.value != HEALTH:
            continue
        node = hosts.get(event.source, event.source)
        found += [line for text in str(event.fields.get("lines", "")).splitlines() if (line := _finding(text, node))]
    return tuple(found)


def _finding(text: str, node: str) -> HealthLine | None:
    try:
        body: Any = parse_json(text)
    except ValueError:
        return None
    if not isinstance(body, dict) or not is_time(at := body.get("at")):
        return None
    kind, said, device = (str(body.get(name, "")) for name in ("kind", "text", "device"))
    return HealthLine(node, float(at), kind, said, device, body.get("lasts") is True, body.get("drains") is True)


def _lost(job: Job, attempt: AttemptDir, events: Iterable[Event], remains: Remains, at: float) -> float:
    """Return the GPU-seconds since the last checkpoint, or since learners started. Raises OSError."""
    began = min((one.at for one in events if one.kind is EventKind.LEARNER_STARTED), default=None)
    if began is None:
        return 0.0
    saved = remains.checkpoint.saved_at
    since = began if saved is None else max(began, saved)
    return max(0.0, at - since) * gpus_of(job, attempt)


@dataclass(frozen=True, slots=True)
class Ruling:
    """The effect of a policy on a job's next attempts: none follow (`stops`), or none on these `nodes`. `match` is the
    policy's expression, which a line of the log matched."""

    policy: str
    match: str
    stops: bool = False
    nodes: tuple[str, ...] = ()
    notify: tuple[str, ...] = ()


class Policies:
    """The site's policies, with the last match of each job."""

    def __init__(self, policies: Sequence[FaultPolicy]) -> None:
        self._policies = policies
        self._rulings: dict[str, Ruling] = {}

    def find(self, job: Job, ends: Sequence[LearnerEnd]) -> PolicyHit | None:
        """Return the policy that matches this end; None if none does."""
        self._rulings.pop(job.id, None)
        found = find_policy(self._policies, ends)
        if found is None:
            return None
        policy, hit = found
        nodes = hit.nodes if policy.exclude_node else ()
        self._rulings[job.id] = Ruling(policy.name, policy.match, policy.stop_retrying, nodes, policy.notify)
        return hit if policy.kind else None

    def ruling(self, job: Job) -> Ruling | None:
        """Return the effect of the last match of the job, and forget it."""
        return self._rulings.pop(job.id, None)


def find_policy(policies: Sequence[FaultPolicy], ends: Sequence[LearnerEnd]) -> tuple[FaultPolicy, PolicyHit] | None:
    """Return the first policy, in the site's order, that a line of the logs matches, with the line: the last one of the
    learner that failed first."""
    logs = [end for end in ends if end.log]
    for policy in policies if logs else ():
        found = _first_match(policy, logs)
        if found is not None:
            end, place = found
            line = end.log[place]
            said = Evidence(f"learner-{end.learner}", line.text[:LINE_CHARS], line.at)
            nodes = (end.node,) if end.node else ()
            return policy, PolicyHit(policy.name, policy.kind, said, end.learner, nodes)
    return None


def _first_match(policy: FaultPolicy, ends: Sequence[LearnerEnd]) -> tuple[LearnerEnd, int] | None:
    """Return the first learner with a matching line, and the number of its last such line. One process searches all
    logs, so an expression that takes too long costs its time limit once, not once a learner."""
    try:
        with matching(Grep(policy.match)) as match:
            for end in ends:
                places = match("\n".join(line.text.replace("\n", " ") for line in end.log))
                if places:
                    return end, places[-1]
    except Refused as refused:
        log.error("the fault policy %s could not be applied: %s", policy.name, refused)
    return None
