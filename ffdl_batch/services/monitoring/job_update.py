"""Judges one job by its files and its listing, and returns what has to be written about it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from ffdl_batch.attempt.layout import AttemptDir
from ffdl_batch.domain.file_format import NewerFormat
from ffdl_batch.domain.incidents.incident import LINE_CHARS, Evidence, Incident
from ffdl_batch.domain.incidents.site_settings import POLICY
from ffdl_batch.domain.incidents.stalled_learners import alarms
from ffdl_batch.domain.job.job import Change, Job
from ffdl_batch.domain.job.learners import started_again
from ffdl_batch.domain.job_state import JobState, RequestedAction
from ffdl_batch.domain.outcome.controller_events import EventKind, is_final
from ffdl_batch.domain.outcome.facts import AttemptFacts
from ffdl_batch.domain.outcome.observation import EndCause, NativeId, Observation, Phase
from ffdl_batch.domain.outcome.verdict import Verdict, VerdictKind, judge
from ffdl_batch.domain.scheduler_errors import InvalidRequest, SchedulerUnreachable
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.ports.capabilities import AvoidsNodes
from ffdl_batch.services.backends.adapters import Adapters
from ffdl_batch.services.backends.node_exclusion import KEPT_OFF
from ffdl_batch.services.deployment.submission_results import age, sought
from ffdl_batch.services.incidents.incident_recorder import Ends, Policies
from ffdl_batch.services.job_files.control_cell import write_control
from ffdl_batch.services.job_files.element_directory import make_directories
from ffdl_batch.services.job_storage import JobStorage
from ffdl_batch.services.monitoring.scheduler_calls import keep_off, let_back, take_away
from ffdl_batch.services.monitoring.watch_state import Memories, Memory
from ffdl_batch.services.outcome.attempt_records import STILL_ALIVE_S, add_files, claim_owner
from ffdl_batch.services.outcome.ended_attempt import Remains, read_remains
from ffdl_batch.services.outcome.job_change import change_of
from ffdl_batch.services.outcome.record_completion import add_leftovers, others_know_more
from ffdl_batch.services.outcome.upload_pending_reason import is_reported_pending
from ffdl_batch.services.queries.learners import unrecorded_restarts
from ffdl_batch.store import StoreError

log = logging.getLogger(__name__)

SETTLE_S = 10.0
"""How long after the scheduler lists an attempt as ended its final record may still appear on a shared file system."""
QUIET_S = 25.0
"""Longer than the interval of node controllers' heartbeats (Limits.heartbeat_s)."""
LONG_AGO_S = 600.0
"""If the scheduler dates an end this far back, the final record is not awaited: munge lets clocks differ by 300 s."""
NOWHERE_ELSE = "no other node fits: it may run on nodes that failed often lately"
DROPPED = Observation(Phase.ENDED, "CANCELLED", EndCause.CANCELLED)
"""Stands for the listing of a waiting task that was removed from its array: no scheduler reports when or by which user.
"""


@dataclass(frozen=True, slots=True)
class Judged:
    """A job, what changes about it, and why."""

    job: Job
    change: Change
    verdict: Verdict


class Judge:
    """Judges jobs. One per watcher, with which it shares the memories. `end_is_near` is called for an attempt that has
    a final record while the scheduler still lists it as running."""

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
            log.error("job %s cannot be judged, and is judged again: %s", job.id, error)
            self._memories.of(job).read_once = False
            return None
        except Exception as error:
            self._memories.of(job).read_once = False
            judged = self._warn(job, f"its state cannot be updated: {type(error).__name__} in the daemon: {error}")
            if judged is not None:
                log.exception("job %s cannot be judged", job.id)
            return judged

    def _warn(self, job: Job, text: str) -> Judged | None:
        """Warn the owner, once, why the state of the job does not change."""
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
        facts = AttemptFacts(
            job.state,
            job.requested_action,
            self._storage.clock.now(),
            attempt=job.attempt,
            is_lost=memory.lost,
        )
        facts = add_files(attempt, self._with_size(job, facts))
        dropped = DROPPED if memory.dropped and not _has_begun(attempt, facts) else None
        gone = is_forgotten and dropped is None and (facts.final_record is not None or not self._is_alive(facts))
        if gone and memory.was_never_seen and not _has_begun(attempt, facts):
            found = self._all_named(job)
            if found is None:
                return None
            if NativeId.parse(job.native_id) not in found:
                log.warning(
                    "job %s: the scheduler does not know %s, the id that it returned for the job; searching",
                    job.id,
                    job.native_id,
                )
                return Judged(job, sought(self._storage.clock, job), Verdict())
            # Accounting knows it: the scheduler accepted it, and lost it before any listing showed it.
        facts = self._with_observation(job, memory, facts, gone, dropped)
        if not fresh and facts.observation is not None and facts.observation.phase is Phase.PENDING:
            facts = replace(facts, observation=replace(facts.observation, phase=Phase.UNKNOWN))
        verdict = judge(facts)
        if not facts.is_silent:  # no other event causes a judgment when the controllers become silent
            memory.read_once = False
        memory.concluded = facts.valid_record is not None and is_final(facts.valid_record)
        if facts.valid_record is not None and not facts.is_ended:
            self._end_is_near()
        change = self._change(job, memory, facts, verdict)
        change = self._with_learner_events(job, memory, facts, change)
        return Judged(job, change, verdict) if change is not None else None

    def _with_size(self, job: Job, facts: AttemptFacts) -> AttemptFacts:
        """Return the facts with the number of learners that the current attempt started with. A job that shrank in
        place has fewer now."""
        elastic = job.spec.batch.elasticity
        facts = replace(facts, learners=job.effective_spec.resources.learners)
        if elastic is None or not elastic.in_place:
            return facts
        for attempt in self._storage.store.attempts(job.id):
            if attempt.number == job.attempt and attempt.learners:
                resizes = tuple((one.at, one.learners) for one in attempt.resizes)
                return replace(facts, learners=attempt.learners, resizes=resizes)
        return facts

    def _change(self, job: Job, memory: Memory, facts: AttemptFacts, verdict: Verdict) -> Change | None:
        """Return the change that follows from the verdict, after doing what must precede it."""
        seen = memory.observation
        if verdict.kind is VerdictKind.NONE:
            change = change_of(job, verdict, facts, Remains(), seen)
            return self._let_back(job, change) if self._has_nowhere_to_run(job, memory) else change
        avoids = verdict.has_lost_node and self._avoids_nodes(job.backend)
        remains = read_remains(self._storage.root, job, facts, verdict, seen, avoids_nodes=avoids)
        self._prepare(job, verdict, remains)
        change = change_of(job, verdict, facts, remains, seen)
        if change is None:
            return None
        change = self._ends.noted(job, facts, verdict, remains, change)
        return self._ruled(job, facts, verdict, remains, change)

    def _with_learner_events(
        self, job: Job, memory: Memory, facts: AttemptFacts, change: Change | None
    ) -> Change | None:
        """Add what happened to learners without ending the attempt."""
        restarts, raised = self._restarts(job, memory, facts), self._alarms(job, memory, facts)
        if not restarts and not raised:
            return change
        change = change or Change()
        return replace(change, restarts=restarts, incidents=(*change.incidents, *raised))

    def _ruled(self, job: Job, facts: AttemptFacts, verdict: Verdict, remains: Remains, change: Change) -> Change:
        """Apply the site's fault policy that matches this end."""
        ruling = self._policies.ruling(job)
        if ruling is None:
            return change
        log.warning("job %s: the fault policy %s matches its log", job.id, ruling.policy)
        nodes = ruling.nodes if ruling.nodes and self._avoids_nodes(job.backend) else ()
        if verdict.kind is VerdictKind.REQUEUED and nodes:
            keep_off(self._storage.root, self._adapters, job, nodes)
        failed = tuple(dict.fromkeys((*remains.failed_nodes, *nodes)))
        remains = replace(remains, failed_nodes=failed, policy=ruling.policy, stops_retries=ruling.stops)
        ruled = change_of(job, verdict, facts, remains, self._memories.of(job).observation)
        match = Evidence(f"{POLICY}{ruling.policy}", f"it matches a line of the log: {ruling.match}"[:LINE_CHARS])
        incidents = tuple(replace(one, evidence=(match, *one.evidence)) for one in change.incidents)
        return replace(ruled or change, incidents=incidents)

    def _restarts(self, job: Job, memory: Memory, facts: AttemptFacts) -> tuple[tuple[float, str], ...]:
        """Return the restarts of learners that the history does not contain yet. It is read only if learners were
        restarted. Restarts in an attempt that no listing has shown running are reported later."""
        again = started_again(facts.events)
        if len(again) == memory.restarts:
            return ()
        attempt = self._storage.root.job(job.id).attempt(job.attempt)
        history = self._storage.store.history(job.id)
        fresh = unrecorded_restarts(job, attempt, again, history)
        memory.restarts = len(again) - len(fresh)
        return tuple(sorted((facts.first_known_time(at), message) for at, message in fresh))

    def _alarms(self, job: Job, memory: Memory, facts: AttemptFacts) -> tuple[Incident, ...]:
        """Return the incidents of a continuing attempt that the database does not contain. It is read only if some are
        not certainly in it."""
        raised = alarms(job.id, job.attempt, facts.events)
        if len(raised) == memory.alarms:
            return ()
        noticed = self._storage.store.incidents_of([job.id]).get(job.id, [])
        stored = {(one.incident.attempt, one.incident.episode) for one in noticed}
        fresh = [one for one in raised if (one.attempt, one.episode) not in stored]
        memory.alarms = len(raised) - len(fresh)
        return tuple(replace(one, at=facts.first_known_time(one.at)) for one in fresh)

    def _avoids_nodes(self, backend: str) -> bool:
        """Whether a job can be kept off the node that failed it."""
        try:
            return isinstance(self._adapters.get(backend), AvoidsNodes)
        except InvalidRequest:  # it is not configured any more, so nothing can be planned with it
            return False

    def _prepare(self, job: Job, verdict: Verdict, remains: Remains) -> None:
        """Do what must precede the change of the row, so that a crash in between loses nothing."""
        if verdict.is_held:
            write_control(
                self._storage.root, job, requested_action=RequestedAction.CANCEL
            )  # if a user releases it, it ends at once
        if verdict.kind is VerdictKind.REQUEUED and remains.failed_nodes:
            keep_off(self._storage.root, self._adapters, job, remains.failed_nodes)

    def _has_nowhere_to_run(self, job: Job, memory: Memory) -> bool:
        """Whether only nodes that the job excludes because they failed it could run it."""
        seen = memory.observation
        if seen is None or not seen.nowhere or job.requested_action is not RequestedAction.NONE:
            return False
        kept_off = any(one.startswith(KEPT_OFF) for one in job.warnings) and NOWHERE_ELSE not in job.warnings
        return bool(job.overrides.exclude) or kept_off

    def _let_back(self, job: Job, change: Change | None) -> Change | None:
        """Allow the job to run on the nodes that failed it, because no other node can run it."""
        if not let_back(self._storage.root, self._adapters, job):
            return change
        nodes = ", ".join(job.overrides.exclude)
        log.warning("job %s has nowhere to run without %s", job.id, nodes or "nodes that failed often")
        warning = f"no other node fits: it may run on {nodes} again, which failed it before" if nodes else NOWHERE_ELSE
        change = change or Change()
        warnings = (*job.warnings, *([warning] if warning not in job.warnings else []))
        columns = {**change.columns, "overrides": replace(job.overrides, exclude=()), "warnings": warnings}
        return replace(change, columns=columns)

    def _follow_claim(self, job: Job, owner: str) -> Change:
        """Follow another submission of this attempt that claimed it first, because its request arrived late."""
        log.warning("job %s: %s claimed the attempt, not %s; following it", job.id, owner, job.native_id)
        self._memories.renew(job)
        take_away(self._storage.root, self._adapters, job, f"{owner} claimed the attempt")
        return Change(columns={"native_id": owner})

    def _named(self, job: Job) -> NativeId | None:
        """Return the scheduler's job with the attempt's token, if its id is not the one that the scheduler returned."""
        found = self._all_named(job) or frozenset()
        return None if NativeId.parse(job.native_id) in found else min(found, key=age, default=None)

    def _all_named(self, job: Job) -> frozenset[NativeId] | None:
        """Return the scheduler's jobs, present or past, with the attempt's token; None if it does not answer now."""
        attempt = self._storage.root.job(job.id).attempt(job.attempt)
        make_directories(self._storage.root, [job])
        try:
            with self._adapters.asking(job.backend) as adapter:
                return adapter.find(job.token, attempt)
        except (InvalidRequest, SchedulerUnreachable) as error:
            log.info("job %s: cannot find out now whether %s belongs to it: %s", job.id, job.native_id, error)
            return None

    def _follow_name(self, job: Job, named: NativeId) -> Change:
        """Follow the job with the attempt's token: the scheduler returned a wrong id when the attempt was submitted.
        The job that has that id is left alone."""
        log.warning("job %s: %s has its name, and %s has not; following it", job.id, named, job.native_id)
        self._memories.renew(job)
        return Change(columns={"native_id": str(named), "pending_reason": ""})

    def _is_alive(self, facts: AttemptFacts) -> bool:
        """Whether node controllers sent heartbeats lately. If so, a listing that leaves the job out proves nothing."""
        if facts.last_heartbeat_at is None:
            return False
        return self._storage.file_time(self._storage.root.path) - facts.last_heartbeat_at < STILL_ALIVE_S

    def _with_observation(
        self, job: Job, memory: Memory, facts: AttemptFacts, is_forgotten: bool, dropped: Observation | None
    ) -> AttemptFacts:
        """Return the facts with what the scheduler reports. `dropped` takes precedence over the listing."""
        seen, clock = dropped or memory.observation, self._storage.clock
        waited = memory.ended_seen_at is not None and clock.monotonic() - memory.ended_seen_at >= SETTLE_S
        if seen is not None and seen.phase is Phase.ENDED and seen.ended_at is not None and facts.final_record is None:
            waited = waited or self._is_long_ago(seen.ended_at)
        # Slurm reports that a job which was cancelled in the queue started and ended at that moment, on no node.
        never_began = not facts.events and seen is not None and (seen.started_at is None or not seen.nodes)
        if seen is not None and memory.missing:
            seen = replace(seen, phase=Phase.UNKNOWN) if seen.phase is not Phase.ENDED else seen
        facts = replace(
            facts,
            now=clock.now(),
            observation=None if is_forgotten else seen,
            is_forgotten=is_forgotten,
            is_settled=is_forgotten or waited or never_began,
            requeues=self._requeues(job, memory, facts),
        )
        if seen is not None and self._may_be_requeued(facts, seen):
            facts = replace(facts, is_silent=self._is_silent(facts))
        if self._is_unkillable(facts):
            facts = replace(facts, is_unkillable=True, is_settled=True)
        final = facts.valid_record
        is_complete = final is not None and is_final(final) and not (facts.learners > 1 and others_know_more(final))
        if not facts.is_ended or (is_complete and not is_reported_pending(job)):
            return facts
        return add_leftovers(self._storage.root.job(job.id).attempt(job.attempt), facts)

    def _may_be_requeued(self, facts: AttemptFacts, seen: Observation) -> bool:
        """Whether the scheduler seems to have restarted the attempt while the run before may still write."""
        waits = seen.phase is Phase.PENDING and facts.state is not JobState.QUEUED
        return (waits or seen.restarts > facts.requeues) and facts.last_heartbeat_at is not None

    def _is_silent(self, facts: AttemptFacts) -> bool:
        """Whether heartbeats have stopped, by the clock of the file system. Raises OSError if that cannot be read."""
        assert facts.last_heartbeat_at is not None
        return self._storage.file_time(self._storage.root.path) - facts.last_heartbeat_at >= QUIET_S

    def _is_unkillable(self, facts: AttemptFacts) -> bool:
        """Whether the attempt was abandoned so long ago that no controller can have learners any more, while the
        scheduler is still ending it: a process that SIGKILL does not end may stay for days."""
        mark, seen = facts.abandon_mark, facts.observation
        if mark is None or seen is None or seen.phase is not Phase.COMPLETING:
            return False
        return self._storage.file_time(self._storage.root.path) - mark.at >= STILL_ALIVE_S

    def _is_long_ago(self, at: float) -> bool:
        """Whether `at` is long ago by this host's clock and by the file system's, because one may just have been
        set."""
        if self._storage.clock.now() - at < LONG_AGO_S:
            return False
        try:
            return self._storage.file_time(self._storage.root.path) - at >= LONG_AGO_S
        except OSError:  # nothing can be written there now, so the final record is awaited
            return False

    def _requeues(self, job: Job, memory: Memory, facts: AttemptFacts) -> int:
        """Return how often the scheduler restarted the current attempt. The history is read only if it may matter."""
        if memory.requeues is None:
            claims = sum(event.kind is EventKind.CLAIMED for event in facts.events)
            if claims < 2 and (memory.observation is None or memory.observation.restarts == 0):
                return 0
            history = self._storage.store.history(job.id)
            memory.requeues = sum(entry.is_restart_of(job.attempt) for entry in history)
        return memory.requeues


def _has_begun(attempt: AttemptDir, facts: AttemptFacts) -> bool:
    """Whether a controller ever executed the attempt or wrote into its directory. Raises OSError."""
    return facts.has_begun or facts.last_heartbeat_at is not None or _exists(attempt.claim)


def _exists(path: str) -> bool:
    try:
        Path(path).stat()
    except FileNotFoundError:
        return False
    return True
