"""From what is remembered and read of one job to what is to be written about it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from ffdl_batch.attempt.layout import AttemptDir
from ffdl_batch.domain.file_format import NewerFormat
from ffdl_batch.domain.incidents.incident import LINE_CHARS, Incident
from ffdl_batch.domain.incidents.incident import Evidence as Line
from ffdl_batch.domain.incidents.site_settings import POLICY
from ffdl_batch.domain.incidents.stalled_learners import alarms
from ffdl_batch.domain.job.job import Change, Job
from ffdl_batch.domain.job.learners import started_again
from ffdl_batch.domain.job_state import JobState, RequestedAction
from ffdl_batch.domain.outcome.controller_events import EventKind
from ffdl_batch.domain.outcome.facts import Evidence, Known, is_final
from ffdl_batch.domain.outcome.observation import EndCause, NativeId, Observation, Phase
from ffdl_batch.domain.outcome.verdict import Move, Verdict, judge
from ffdl_batch.domain.scheduler_errors import InvalidRequest, SchedulerUnreachable
from ffdl_batch.ports.capabilities import AvoidsNodes
from ffdl_batch.services.backends.adapters import Adapters
from ffdl_batch.services.backends.node_exclusion import KEPT_OFF
from ffdl_batch.services.deployment.submission_results import age, sought
from ffdl_batch.services.incidents.incident_recorder import Ends, Policies
from ffdl_batch.services.job_files.control_cell import write_control
from ffdl_batch.services.job_storage import JobStorage
from ffdl_batch.services.monitoring.request_delivery import keep_off, let_back, take_away
from ffdl_batch.services.monitoring.watch_state import Memories, Memory
from ffdl_batch.services.outcome.attempt_records import STILL_ALIVE_S, claim_owner, read_evidence
from ffdl_batch.services.outcome.job_change import Past, change_of, look_back
from ffdl_batch.services.outcome.record_completion import others_know_more, with_leftovers
from ffdl_batch.services.outcome.upload_pending_reason import is_reported_pending
from ffdl_batch.services.queries.learners import untold_restarts
from ffdl_batch.store import StoreError

log = logging.getLogger(__name__)

SETTLE_S = 10.0
"""How long after the scheduler's word "ended" a final record may still become visible on a shared file system."""
QUIET_S = 25.0
"""A node controller that lives is heard of more often than this (Limits.heartbeat_s)."""
LONG_AGO_S = 600.0
"""Ends that the scheduler dates so far back are not waited for any more: munge lets clocks differ by 300 s."""
NOWHERE_ELSE = "no other node fits: it may run on nodes that failed often lately"
DROPPED = Observation(Phase.ENDED, "CANCELLED", EndCause.CANCELLED)
"""What is known of a waiting task that was taken out of its array: no scheduler says when or by whom."""


@dataclass(frozen=True, slots=True)
class Judged:
    """One job, what follows for it, and why."""

    job: Job
    change: Change
    verdict: Verdict


class Judge:
    """One per watcher, whose memories it shares. `end_is_near` is called for an attempt that has said its last word
    while the scheduler still has it."""

    def __init__(
        self, storage: JobStorage, adapters: Adapters, memories: Memories, end_is_near: Callable[[], None]
    ) -> None:
        self._storage, self._adapters, self._memories, self._end_is_near = storage, adapters, memories, end_is_near
        self._policies = Policies(adapters.settings.fault_policies)
        self._ends = Ends(storage.root, self._policies.find)

    def judge(self, job: Job, is_forgotten: bool, fresh: bool) -> Judged | None:
        """Judge one job. If that fails, because its files cannot be read or written or because of a defect, other jobs
        are still judged. The owner gets a warning, and the job is judged again at the next check."""
        try:
            return self._judge(job, is_forgotten, fresh)
        except StoreError:
            raise
        except NewerFormat as error:
            self._memories.of(job).read_once = False
            return self._warn(job, str(error))
        except OSError as error:
            log.error("job %s cannot be judged, and is looked at again: %s", job.id, error)
            self._memories.of(job).read_once = False
            return None
        except Exception as error:
            self._memories.of(job).read_once = False
            judged = self._warn(job, f"its state cannot be updated: {type(error).__name__} in the daemon: {error}")
            if judged is not None:
                log.exception("job %s cannot be judged", job.id)
            return judged

    def _warn(self, job: Job, text: str) -> Judged | None:
        """Tell the owner, once, why the job stays as it is."""
        if text in job.warnings:
            return None
        log.error("job %s stays %s: %s", job.id, job.state, text)
        return Judged(job, Change(columns={"warnings": (*job.warnings, text)}), Verdict())

    def _judge(self, job: Job, is_forgotten: bool, fresh: bool) -> Judged | None:
        memory = self._memories.of(job)
        memory.read_once = True
        attempt = self._storage.root.job(job.id).attempt(job.attempt)
        owner = claim_owner(attempt)
        if owner and owner != job.native_id:
            return Judged(job, self._follow_claim(job, owner), Verdict())
        if memory.doubtful and not owner and (named := self._named(job)) is not None:
            return Judged(job, self._follow_name(job, named), Verdict())
        evidence = read_evidence(attempt)
        dropped = DROPPED if memory.dropped and not _has_begun(attempt, evidence) else None
        gone = is_forgotten and dropped is None and (evidence.final is not None or not self._is_alive(evidence))
        if gone and memory.was_never_seen and not _has_begun(attempt, evidence):
            found = self._all_named(job)
            if found is None:
                return None
            if NativeId.parse(job.native_id) not in found:
                log.warning("job %s: nobody knows %s, which it was said to be; it is looked for", job.id, job.native_id)
                return Judged(job, sought(self._storage.clock, job), Verdict())
            # The accounting heard of it: the scheduler took it, and lost it before any listing showed it.
        known = self._known(job, memory, evidence, gone, dropped)
        if not fresh and known.observation is not None and known.observation.phase is Phase.PENDING:
            known = replace(known, observation=replace(known.observation, phase=Phase.UNKNOWN))
        verdict = judge(known)
        if not known.quiet:  # nothing else asks for a closer look when it has become so
            memory.read_once = False
        memory.concluded = known.final is not None and is_final(known.final)
        if known.final is not None and not known.ended:
            self._end_is_near()
        past = Past()
        if verdict.move is not Move.NONE:
            avoids = verdict.lost_node and self._avoids_nodes(job.backend)
            root, seen = self._storage.root, memory.observation
            past = look_back(root, job, known, verdict, seen, avoids_nodes=avoids)
            self._prepare(job, verdict, past)
        change = change_of(job, verdict, known, past, memory.observation)
        if change is not None and verdict.move is not Move.NONE:
            change = self._ends.noted(job, known, verdict, past, change)
            change = self._ruled(job, known, verdict, past, change)
        if verdict.move is Move.NONE and self._has_nowhere_to_run(job, memory):
            change = self._let_back(job, change)
        change = self._with_learner_events(job, memory, known, change)
        return Judged(job, change, verdict) if change is not None else None

    def _with_learner_events(self, job: Job, memory: Memory, known: Known, change: Change | None) -> Change | None:
        """`change` with what happened to learners without ending the attempt."""
        restarts, raised = self._restarts(job, memory, known), self._alarms(job, memory, known)
        if not restarts and not raised:
            return change
        change = change or Change()
        return replace(change, restarts=restarts, incidents=(*change.incidents, *raised))

    def _ruled(self, job: Job, known: Known, verdict: Verdict, past: Past, change: Change) -> Change:
        """`change` as the site's policies want it, which have been asked about this end."""
        ruling = self._policies.ruling(job)
        if ruling is None:
            return change
        log.warning("job %s: the fault policy %s matches its log", job.id, ruling.policy)
        nodes = ruling.nodes if ruling.nodes and self._avoids_nodes(job.backend) else ()
        if verdict.move is Move.REQUEUED and nodes:
            keep_off(self._storage.root, self._adapters, job, nodes)
        failed = tuple(dict.fromkeys((*past.failed_nodes, *nodes)))
        past = replace(past, failed_nodes=failed, policy=ruling.policy, stops=ruling.stops)
        ruled = change_of(job, verdict, known, past, self._memories.of(job).observation)
        said = Line(f"{POLICY}{ruling.policy}", f"a line of the log is what it looks for: {ruling.match}"[:LINE_CHARS])
        incidents = tuple(replace(one, evidence=(said, *one.evidence)) for one in change.incidents)
        return replace(ruled or change, incidents=incidents)

    def _restarts(self, job: Job, memory: Memory, known: Known) -> tuple[tuple[float, str], ...]:
        """Learners that were started again, of which the history does not tell yet; it is read where there are any. Of
        an attempt that nobody has seen run yet, they are told when that has been."""
        again = started_again(known.evidence.events)
        if len(again) == memory.restarts:
            return ()
        attempt = self._storage.root.job(job.id).attempt(job.attempt)
        history = self._storage.store.history(job.id)
        untold = untold_restarts(job, attempt, again, history)
        memory.restarts = len(again) - len(untold)
        return tuple(sorted((known.when(at), message) for at, message in untold))

    def _alarms(self, job: Job, memory: Memory, known: Known) -> tuple[Incident, ...]:
        """Incidents of an attempt that goes on, of which the database does not have those; it is asked where there are
        any that are not surely in it."""
        raised = alarms(job.id, job.attempt, known.evidence.events)
        if len(raised) == memory.alarms:
            return ()
        noticed = self._storage.store.incidents_of([job.id]).get(job.id, [])
        stored = {(one.incident.attempt, one.incident.episode) for one in noticed}
        fresh = [one for one in raised if (one.attempt, one.episode) not in stored]
        memory.alarms = len(raised) - len(fresh)
        return tuple(replace(one, at=known.when(one.at)) for one in fresh)

    def _avoids_nodes(self, backend: str) -> bool:
        """Whether a job can be kept off the node that failed it."""
        try:
            return isinstance(self._adapters.get(backend), AvoidsNodes)
        except InvalidRequest:  # it is configured no more, so nothing can be planned with it
            return False

    def _prepare(self, job: Job, verdict: Verdict, past: Past) -> None:
        """What has to be done before the row changes, so that a crash between the two leaves nothing behind."""
        if verdict.held:
            write_control(
                self._storage.root, job, requested_action=RequestedAction.CANCEL
            )  # should anybody let it go, it ends at once
        if verdict.move is Move.REQUEUED and past.failed_nodes:
            keep_off(self._storage.root, self._adapters, job, past.failed_nodes)

    def _has_nowhere_to_run(self, job: Job, memory: Memory) -> bool:
        """Whether it waits for nodes that it is kept off, because they failed it."""
        seen = memory.observation
        if seen is None or not seen.nowhere or job.requested_action is not RequestedAction.NONE:
            return False
        kept_off = any(one.startswith(KEPT_OFF) for one in job.warnings) and NOWHERE_ELSE not in job.warnings
        return bool(job.overrides.exclude) or kept_off

    def _let_back(self, job: Job, change: Change | None) -> Change | None:
        """The nodes that failed it are the only ones that it can run on: better there than nowhere."""
        if not let_back(self._storage.root, self._adapters, job):
            return change
        nodes = ", ".join(job.overrides.exclude)
        log.warning("job %s has nowhere to run without %s", job.id, nodes or "nodes that failed often")
        told = f"no other node fits: it may run on {nodes} again, which failed it before" if nodes else NOWHERE_ELSE
        change = change or Change()
        warnings = (*job.warnings, *([told] if told not in job.warnings else []))
        columns = {**change.columns, "overrides": replace(job.overrides, exclude=()), "warnings": warnings}
        return replace(change, columns=columns)

    def _follow_claim(self, job: Job, owner: str) -> Change:
        """Another delivery of this attempt claimed it first (a request that landed late): that one is the job."""
        log.warning("job %s: %s claimed the attempt, not %s; following it", job.id, owner, job.native_id)
        self._memories.renew(job)
        take_away(self._storage.root, self._adapters, job, f"{owner} claimed the attempt")
        return Change(columns={"native_id": owner})

    def _named(self, job: Job) -> NativeId | None:
        """The job that the scheduler has under the attempt's token, where it has one under another id than we were
        told."""
        found = self._all_named(job) or frozenset()
        return None if NativeId.parse(job.native_id) in found else min(found, key=age, default=None)

    def _all_named(self, job: Job) -> frozenset[NativeId] | None:
        """What the scheduler has, or remembers, under the attempt's token; None where it does not say now."""
        attempt = self._storage.root.job(job.id).attempt(job.attempt)
        try:
            with self._adapters.asking(job.backend) as adapter:
                return adapter.find(job.token, attempt)
        except (InvalidRequest, SchedulerUnreachable) as error:
            log.info("job %s: whether %s is its own cannot be found out now: %s", job.id, job.native_id, error)
            return None

    def _follow_name(self, job: Job, named: NativeId) -> Change:
        """The scheduler's answer to the submission named a wrong id. What has it is left alone."""
        log.warning("job %s: %s has its name, and %s has not; following it", job.id, named, job.native_id)
        self._memories.renew(job)
        return Change(columns={"native_id": str(named), "pending_reason": ""})

    def _is_alive(self, evidence: Evidence) -> bool:
        """Whether node controllers were heard of lately: then no listing that leaves the job out is believed."""
        if evidence.last_heartbeat_at is None:
            return False
        return self._storage.file_time(self._storage.root.path) - evidence.last_heartbeat_at < STILL_ALIVE_S

    def _known(
        self, job: Job, memory: Memory, evidence: Evidence, forgotten: bool, dropped: Observation | None
    ) -> Known:
        """`dropped` goes before what was listed."""
        seen, clock = dropped or memory.observation, self._storage.clock
        waited = memory.ended_seen_at is not None and clock.monotonic() - memory.ended_seen_at >= SETTLE_S
        if seen is not None and seen.phase is Phase.ENDED and seen.ended_at is not None and evidence.final is None:
            waited = waited or self._is_long_ago(seen.ended_at)
        # Slurm says that a job which it cancelled in the queue started and ended at that moment, on no node.
        never_began = not evidence.events and seen is not None and (seen.started_at is None or not seen.nodes)
        if seen is not None and memory.missing:
            seen = replace(seen, phase=Phase.UNKNOWN) if seen.phase is not Phase.ENDED else seen
        known = Known(
            state=job.state,
            requested_action=job.requested_action,
            observation=None if forgotten else seen,
            evidence=evidence,
            now=clock.now(),
            forgotten=forgotten,
            settled=forgotten or waited or never_began,
            learners=job.spec.resources.learners,
            requeues=self._requeues(job, memory, evidence),
            lost=memory.lost,
            attempt=job.attempt,
        )
        if seen is not None and self._may_be_requeued(known, seen):
            known = replace(known, quiet=self._is_quiet(evidence))
        if self._is_unending(known):
            known = replace(known, unending=True, settled=True)
        final = known.final
        said = final is not None and is_final(final) and not (known.learners > 1 and others_know_more(final))
        if not known.ended or (said and not is_reported_pending(job)):
            return known
        attempt = self._storage.root.job(job.id).attempt(job.attempt)
        return replace(known, evidence=with_leftovers(attempt, evidence, known))

    def _may_be_requeued(self, known: Known, seen: Observation) -> bool:
        """Whether the scheduler seems to have started the attempt anew while the run before may still speak."""
        waits = seen.phase is Phase.PENDING and known.state is not JobState.QUEUED
        return (waits or seen.restarts > known.requeues) and known.evidence.last_heartbeat_at is not None

    def _is_quiet(self, evidence: Evidence) -> bool:
        """By the file system's clock; where that cannot be asked, nothing is known, and it is waited for."""
        assert evidence.last_heartbeat_at is not None
        return self._storage.file_time(self._storage.root.path) - evidence.last_heartbeat_at >= QUIET_S

    def _is_unending(self, known: Known) -> bool:
        """Whether the attempt was given up so long ago that no controller of it may have learners any more, and the
        scheduler is still ending it: what not even KILL ends may stay for days."""
        mark, seen = known.evidence.given_up, known.observation
        if mark is None or seen is None or seen.phase is not Phase.COMPLETING:
            return False
        return self._storage.file_time(self._storage.root.path) - mark.at >= STILL_ALIVE_S

    def _is_long_ago(self, at: float) -> bool:
        """By this host's clock and by the file system's: the one may just have been set."""
        if self._storage.clock.now() - at < LONG_AGO_S:
            return False
        try:
            return self._storage.file_time(self._storage.root.path) - at >= LONG_AGO_S
        except OSError:  # nothing can be written there now; then it is waited for
            return False

    def _requeues(self, job: Job, memory: Memory, evidence: Evidence) -> int:
        """How often the history says that the scheduler started the current attempt anew; read where it may matter."""
        if memory.requeues is None:
            claims = sum(event.kind is EventKind.CLAIMED for event in evidence.events)
            if claims < 2 and (memory.observation is None or memory.observation.restarts == 0):
                return 0
            history = self._storage.store.history(job.id)
            memory.requeues = sum(entry.is_restart_of(job.attempt) for entry in history)
        return memory.requeues


def _has_begun(attempt: AttemptDir, evidence: Evidence) -> bool:
    """Whether anybody ever executed the attempt, or wrote in its name. Raises OSError."""
    return (
        bool(evidence.events)
        or evidence.final is not None
        or evidence.last_heartbeat_at is not None
        or _exists(attempt.claim)
    )


def _exists(path: str) -> bool:
    try:
        Path(path).stat()
    except FileNotFoundError:
        return False
    return True
