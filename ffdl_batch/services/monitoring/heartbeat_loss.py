"""Ends attempts whose controllers send no heartbeats although their scheduler lists them as running.

Schedulers monitor nodes, not the processes on them. Processes that are frozen, hang in a driver or have lost their file
system would hold the allocation until its time limit. The owner gets a warning first. Then the attempt is marked as
abandoned, durably and before the scheduler is asked to cancel it. After a crash between the two steps, the next check
cancels it. Controllers that continue later read the mark and end. The watcher judges how the attempt ended.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path

from ffdl_batch.attempt.layout import AttemptDir
from ffdl_batch.domain.job.job import Change, Job, JobId
from ffdl_batch.domain.job_state import JobState, RequestedAction
from ffdl_batch.domain.launch.limits import Limits
from ffdl_batch.domain.outcome.controller_events import AbandonMark
from ffdl_batch.domain.outcome.heartbeat_loss import (
    SILENCE,
    WARNING_SHARE,
    Beat,
    Finding,
    Step,
    decide,
    is_widespread,
    patience_s,
    quiet,
)
from ffdl_batch.domain.outcome.observation import NativeId, Observation, Phase
from ffdl_batch.domain.scheduler_errors import InvalidRequest, SchedulerUnreachable
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.services.backends.adapters import Adapters
from ffdl_batch.services.job_files.control_cell import mark_abandoned, newest_run, read_abandon_mark
from ffdl_batch.services.job_storage import JobStorage
from ffdl_batch.services.leader_lease import LeaderLease, Leases
from ffdl_batch.services.outcome.attempt_records import beats_of, oldest_heartbeat, read_launch
from ffdl_batch.services.outcome.native_job_identity import is_own, may_ask_of
from ffdl_batch.services.outcome.upload_pending_reason import is_reported_pending

log = logging.getLogger(__name__)

LEASE = "silence"
_RUN = frozenset({JobState.DOWNLOADING, JobState.PROCESSING, JobState.STORING})

Reached = Callable[[str], None]
"""Called with the name of each step; tests kill the process there."""


@dataclass(frozen=True, slots=True)
class _Seen:
    """Heartbeats that have stopped, and when that was first seen (monotonic)."""

    attempt: int
    beats: tuple[Beat, ...]
    at: float


@dataclass(frozen=True, slots=True)
class _Suspect:
    """A job whose controllers are silent, or whose attempt was abandoned before."""

    job: Job
    silent_s: float
    """How long its controllers may be silent."""
    beats: tuple[Beat, ...]
    mark: AbandonMark | None
    """The mark of an abandoned attempt."""


class SilenceKeeper:
    """Checks the heartbeats of all jobs of a daemon. If several daemons share a database, only the holder of a lease
    checks. After a restart of the daemon, two more checks are needed to detect a silence."""

    def __init__(
        self, storage: JobStorage, adapters: Adapters, leases: Leases, reached: Reached = lambda _step: None
    ) -> None:
        self._storage, self._adapters, self._reached = storage, adapters, reached
        self._turn = LeaderLease(leases, LEASE)
        self._seen: dict[JobId, _Seen] = {}
        self._abandoned: set[tuple[JobId, int]] = set()

    def look(self) -> int:
        """Check all jobs once. Return how many changed. Raises StoreError, and OSError if the job directories cannot be
        written, because missing heartbeats prove nothing then."""
        store = self._storage.store
        if not self._adapters.settings.silent_s or not self._turn.take():
            return 0
        changed, running = 0, set[JobId]()
        for backend in store.live_backends():
            jobs = [job for job in store.live_deployed(backend) if job.state in _RUN and not is_reported_pending(job)]
            running |= {job.id for job in jobs}
            changed += self._look_at(backend, jobs) if jobs else 0
        self._seen = {key: seen for key, seen in self._seen.items() if key in running}
        self._abandoned = {key for key in self._abandoned if key[0] in running}
        return changed

    def close(self) -> None:
        """Release the lease. Raises StoreError."""
        self._turn.end()

    def _has_nodes(self, backend: str) -> bool:
        """Whether the job can continue on other nodes. On a single machine, a user has stopped the processes."""
        try:
            return not self._adapters.facts(backend).is_this_machine
        except (InvalidRequest, SchedulerUnreachable):  # it is not configured any more, or has never answered
            return False

    def _look_at(self, backend: str, jobs: list[Job]) -> int:
        looked_at = self._storage.clock.monotonic()
        now = self._storage.file_time(self._storage.root.path)
        suspects, unread = self._suspects(jobs, now)
        if suspects and not self._has_nodes(backend):
            return 0
        shown = self._observe(backend, suspects) if suspects else {}
        if shown is None:
            self._forget({job.id for job in jobs})
            return 0
        phases = {one.job.id: self._phase(shown, one.job) for one in suspects}
        silent = {one.job.id: one.beats for one in suspects if not one.mark and phases[one.job.id] is Phase.RUNNING}
        crowd, changed = is_widespread(silent.values(), len(jobs)), 0
        for one in suspects:
            phase = phases[one.job.id]
            try:
                if one.mark is not None:
                    changed += self._finish(one.job, one.mark, phase)
                else:
                    changed += self._follow(one, self._find(one, phase, now, looked_at, widespread=crowd), now)
            except OSError as error:  # of this job's files; it is checked again
                log.error("job %s is silent, and its mark or warning cannot be written: %s", one.job.id, error)
        self._forget({job.id for job in jobs if job.id not in phases})
        return changed + sum(self._take_back(job) for job in jobs if job.id not in phases and job.id not in unread)

    def _suspects(self, jobs: list[Job], now: float) -> tuple[list[_Suspect], set[JobId]]:
        """Return the jobs that are silent or abandoned, and the ids of jobs whose files cannot be read now."""
        found: list[_Suspect] = []
        unread: set[JobId] = set()
        for job in jobs:
            try:
                suspect = self._suspect(job, now)
            except OSError as error:  # including NewerFormat: nothing is concluded
                log.warning("job %s: whether its controllers are silent cannot be read: %s", job.id, error)
                unread.add(job.id)
                continue
            if suspect is not None:
                found.append(suspect)
        return found, unread

    def _suspect(self, job: Job, now: float) -> _Suspect | None:
        """Return the job if some of its controllers have been silent for a while. Read no file of a job that was
        updated recently. Raises OSError."""
        warn_s = self._adapters.settings.silent_s * WARNING_SHARE
        is_known = job.pending_reason.startswith(SILENCE) or (job.id, job.attempt) in self._abandoned
        if not is_known and self._storage.clock.now() - job.updated_at < warn_s:
            return None
        attempt = self._attempt(job)
        oldest = oldest_heartbeat(attempt)
        if (oldest is None or now - oldest < warn_s) and (job.id, job.attempt) not in self._abandoned:
            return None
        silent_s = self._patience_s(attempt)
        mark, beats = read_abandon_mark(attempt), quiet(beats_of(attempt), now, silent_s)
        if mark is None and (
            not beats or job.requested_action is RequestedAction.CANCEL
        ):  # the watcher repeats a cancel until the job has ended
            return None
        return _Suspect(job, silent_s, beats, mark)

    def _patience_s(self, attempt: AttemptDir) -> float:
        launch = read_launch(attempt)
        return patience_s(self._adapters.settings.silent_s, (launch.limits if launch else Limits()).heartbeat_s)

    def _observe(self, backend: str, suspects: list[_Suspect]) -> Mapping[NativeId, Observation] | None:
        """Ask the scheduler about the suspects. Return None if it does not answer."""
        try:
            with self._adapters.asking(backend) as adapter:
                return adapter.observe([NativeId.parse(one.job.native_id) for one in suspects])
        except (SchedulerUnreachable, InvalidRequest) as error:
            log.info("backend %s did not answer whether silent jobs run: %s", backend, error)
            return None

    def _find(self, one: _Suspect, phase: Phase, now: float, looked_at: float, *, widespread: bool) -> Finding:
        """Decide about one suspect, and remember its heartbeats for the next check."""
        last, attempt = self._seen.get(one.job.id), one.job.attempt
        is_same = last is not None and (last.attempt, last.beats) == (attempt, one.beats)
        unchanged_s = looked_at - last.at if last is not None and is_same else None
        finding = decide(one.beats, phase, now, one.silent_s, unchanged_s, is_widespread=widespread)
        if finding.step in (Step.NONE, Step.HOLD):
            self._seen.pop(one.job.id, None)
        elif not is_same:
            self._seen[one.job.id] = _Seen(attempt, one.beats, looked_at)
        return finding

    def _follow(self, one: _Suspect, finding: Finding, now: float) -> int:
        if finding.step is Step.NONE:
            return self._take_back(one.job)
        if finding.step is Step.ABANDON:
            return self._abandon(one, finding, now)
        return self._warn(one.job, finding.sentence)

    def _abandon(self, one: _Suspect, finding: Finding, now: float) -> int:
        """Mark the attempt as abandoned, then cancel it. Do nothing if another daemon holds the lease meanwhile, or if
        the controllers send heartbeats again: this process may have been stopped in between."""
        job, attempt = one.job, self._attempt(one.job)
        mark = AbandonMark(newest_run(attempt), finding.nodes, finding.since, now)
        self._reached("deciding")
        current = self._storage.store.get(job.id)
        if current is None or (current.attempt, current.native_id) != (job.attempt, job.native_id):
            return 0
        if quiet(beats_of(attempt), now, one.silent_s) != one.beats or not self._turn.take():
            return 0
        if not mark_abandoned(self._storage.root, job, mark):
            return 0
        log.warning("job %s: %s", job.id, finding.sentence)
        self._reached("marked")
        self._end(job)
        self._reached("ended")
        return self._warn(current, finding.sentence)

    def _finish(self, job: Job, mark: AbandonMark, phase: Phase) -> int:
        """Cancel an attempt that an earlier check abandoned and that has not ended yet."""
        self._abandoned.add((job.id, job.attempt))
        if phase in (Phase.ENDED, Phase.PENDING):  # it has ended or is restarted: the watcher handles that
            return 0
        if phase not in (Phase.COMPLETING, Phase.UNKNOWN):
            self._end(job)
        self._ring(job)
        return self._warn(job, Finding(Step.ABANDON, mark.nodes, mark.since, mark.at).sentence)

    def _end(self, job: Job) -> None:
        """Ask the scheduler to cancel the attempt. If it does not answer, the next check asks again."""
        self._abandoned.add((job.id, job.attempt))
        try:
            with self._adapters.asking(job.backend) as adapter:
                if may_ask_of(self._storage.root, adapter, job):
                    log.warning("job %s: cancelling %s, which was abandoned", job.id, job.native_id)
                    adapter.cancel(NativeId.parse(job.native_id))
        except (SchedulerUnreachable, InvalidRequest) as error:
            log.warning("job %s: %s was abandoned and is not cancelled yet: %s", job.id, job.native_id, error)

    def _ring(self, job: Job) -> None:
        """Have the watcher judge the job, because the listing of a job that cannot be ended does not change."""
        Path(self._storage.root.doorbell, job.id).touch(mode=0o600)

    def _warn(self, job: Job, sentence: str) -> int:
        if job.pending_reason == sentence:
            return 0
        return int(self._storage.store.apply(job, Change(columns={"pending_reason": sentence})) is not None)

    def _take_back(self, job: Job) -> int:
        """Remove the warning from a job that sends heartbeats again."""
        return self._warn(job, "") if job.pending_reason.startswith(SILENCE) else 0

    def _forget(self, ids: set[JobId]) -> None:
        self._seen = {key: seen for key, seen in self._seen.items() if key not in ids}

    def _attempt(self, job: Job) -> AttemptDir:
        return self._storage.root.job(job.id).attempt(job.attempt)

    def _phase(self, shown: Mapping[NativeId, Observation], job: Job) -> Phase:
        """Return the phase of the job; UNKNOWN if the entry with the job's id is not provably the job."""
        native = NativeId.parse(job.native_id)
        seen = shown.get(native)
        return seen.phase if seen is not None and is_own(self._storage.root, job, native, seen) else Phase.UNKNOWN
