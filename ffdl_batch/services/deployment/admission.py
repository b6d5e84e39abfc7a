"""Asks the site's hub which new jobs may be handed over to a scheduler, and reports incidents and jobs that have ended.

A job is new after each submission and each resume. Its continuations do not ask. The hub stores the jobs that it has
admitted. After a restart, the daemon asks again, and admitted jobs do not need quota a second time. If a scaler changes
the size of a job, the hub counts the new size, even if that exceeds a quota.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from ffdl_batch.domain.admission import MOST_JOBS, Answer, Claim, Word
from ffdl_batch.domain.job.job import Change, Job, JobId
from ffdl_batch.domain.job.learner_layout import count_gpus
from ffdl_batch.domain.job_state import JobState, RequestedAction
from ffdl_batch.domain.outcome.continuation import Spent
from ffdl_batch.host.backoff import growing_pause
from ffdl_batch.services.deployment.step_lease import Delay, StepLease
from ffdl_batch.services.hub import Hub, HubRefused, HubUnavailable
from ffdl_batch.services.incidents.incident_recorder import refusal
from ffdl_batch.services.incidents.incident_reports import IncidentReports
from ffdl_batch.services.job_storage import JobStorage
from ffdl_batch.store import LeasedJob, StoreError

log = logging.getLogger(__name__)

CODE = "C106"
AGAIN_S = 2.0
"""Pause before a job asks again if its quota is used up or its submission is stopped."""
TURN_S, LONGEST_TURN_S = 0.25, 5.0
"""Shortest and longest pause of a job answered LATER. It grows with the job's place in the queue of its daemon."""
CHECKS_ACCOUNTS = "slurm"
"""The backend whose scheduler checks that a user may use an account."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 15.0
"""Pauses between two requests to a hub that does not answer."""

_NO_ANSWER = Answer(Word.WAIT, "the site's hub did not answer about this job")
_OVERLAP_S = 60.0
"""Changes are read again for this long, because clocks of daemon and database may differ."""


class Admission:
    """Delay or fail new jobs according to the hub's answers. One per daemon. Without a hub, all jobs may go."""

    def __init__(self, storage: JobStorage, hub: Hub | None, default_account: Callable[[str], str]) -> None:
        """`default_account` returns the account of jobs of a backend that name none, "" if there is none."""
        self._storage, self._hub, self._default_account = storage, hub, default_account
        self._incidents = IncidentReports(storage, hub) if hub is not None else None
        self._failures, self._again_at = 0, 0.0
        self._why = ""
        self._lock = threading.Lock()
        self._live: set[str] | None = None
        """Admitted jobs that had not ended when they were last read; None until they were read from the hub."""
        self._changed_at = 0.0
        self._going: set[str] = set()
        """Admitted jobs that this daemon has not reported as handed over."""

    def sort_out(self, lease: StepLease, leased: Sequence[LeasedJob]) -> tuple[list[LeasedJob], int]:
        """Return those of `leased` that may be handed over, and how many jobs ended because the hub refuses them. The
        others are put off."""
        new = [one.job for one in leased if _is_new(one.job)] if self._hub is not None else []
        if not new:
            return list(leased), 0
        answers = self._ask([self._claim(job) for job in new])
        if answers is None:
            reason = f"waiting for the site's hub: {self._why}"
            answers = dict.fromkeys((job.id for job in new), Answer(Word.WAIT, reason))
        found = [(job, answers.get(job.id, _NO_ANSWER)) for job in new]
        going = {job.id for job, answer in found if answer.word is Word.GO}
        turns = turn_pauses([job.id for job, answer in found if answer.word is Word.LATER], len(going))
        lease.put_off(
            [
                Delay(job, turns.get(job.id, self._pause_s()), answer.reason)
                for job, answer in found
                if answer.word in (Word.WAIT, Word.LATER)
            ]
        )
        ended = self._end([(job, answer.reason) for job, answer in found if answer.word is Word.REFUSE])
        held = {job.id for job in new} - going
        return [one for one in leased if one.job.id not in held], ended

    def is_busy(self) -> bool:
        """Return whether the hub still counts jobs of this daemon as live."""
        with self._lock:
            return bool(self._live)

    def report_ended(self) -> float:
        """Report incidents, and ended and handed-over jobs, to the hub. Return the seconds until the next call, if no
        job changes before."""
        if self._hub is None or self._incidents is None:
            return LONGEST_PAUSE_S
        now = self._storage.clock.now()
        try:
            ids = self._find_changed(self._hub)
            self._report_incidents(self._incidents)  # first: a daemon without live jobs may end
            if handed := self._find_handed():
                self._hub.admit((), handed)
                with self._lock:
                    self._going -= set(handed)
            known = {job.id: job for job in self._storage.store.get_many(ids)}
            self._report_sizes(self._hub, [job for job in known.values() if job.spent.resizes])
            if ended := self._find_ended(ids, known):
                self._hub.end_jobs(ended)
                with self._lock:
                    assert self._live is not None
                    self._live -= set(ended)
        except (HubUnavailable, HubRefused) as error:
            self._note_failure(str(error))
            return self._pause_s()
        self._changed_at = now
        return LONGEST_PAUSE_S

    @staticmethod
    def _report_incidents(incidents: IncidentReports) -> None:
        """Report incidents. Only a hub that does not answer keeps the ends of jobs from being reported. Raises
        HubUnavailable."""
        try:
            incidents.send()
        except (HubRefused, StoreError) as error:
            log.warning("incidents were not reported to the hub: %s", error)

    def _find_ended(self, ids: Collection[str], known: Mapping[JobId, Job]) -> list[str]:
        over = [job for job in known.values() if job.state.is_terminal]
        continued = self._storage.store.elastic.continued(over)
        gone = [one for one in ids if one not in known]
        return [*gone, *(job.id for job in over if job.id not in continued)]

    def _report_sizes(self, hub: Hub, jobs: Sequence[Job]) -> None:
        """Report what jobs use after a scaler has changed their sizes. Raises HubUnavailable, HubRefused."""
        claims = [replace(self._claim(job), continues=True) for job in jobs if not job.state.is_terminal]
        waiting = {job.id for job in jobs if job.state is JobState.PENDING}
        claims = [replace(one, gpus=0.0) if one.job in waiting else one for one in claims]
        for start in range(0, len(claims), MOST_JOBS):
            hub.admit(claims[start : start + MOST_JOBS])

    def _find_changed(self, hub: Hub) -> set[str]:
        """Return the live jobs that may have ended since the last report; all of them the first time. Raises
        HubUnavailable, HubRefused."""
        with self._lock:
            live = self._live
        if live is None:
            live = set(hub.live_jobs())
            with self._lock:
                self._live = live | self._going  # some may have been admitted since the hub answered
            return live
        changed = self._storage.store.changed_since(self._storage.uid, self._changed_at - _OVERLAP_S) if live else {}
        return live & changed.keys()

    def _ask(self, claims: Sequence[Claim]) -> dict[str, Answer] | None:
        """Return the hub's answers; None if it does not answer, or did not a moment ago."""
        assert self._hub is not None
        if self._failures and self._storage.clock.monotonic() < self._again_at:
            return None
        answers: dict[str, Answer] = {}
        handed = self._find_handed()
        try:
            for start in range(0, len(claims), MOST_JOBS):
                answers |= self._hub.admit(claims[start : start + MOST_JOBS], handed if start == 0 else ())
        except (HubUnavailable, HubRefused) as error:
            self._note_failure(str(error))
            return None
        self._failures, self._why = 0, ""
        going = {job for job, answer in answers.items() if answer.word is Word.GO}
        with self._lock:
            self._going = (self._going | going) - set(handed)
            if self._live is not None:
                self._live |= going
        return answers

    def _claim(self, job: Job) -> Claim:
        spec = job.effective_spec
        account = spec.batch.account or self._default_account(job.backend)
        hours = (spec.batch.limit_s or 0) / 3600
        is_checked = job.backend == CHECKS_ACCOUNTS
        return Claim(job.id, account, count_gpus(spec), spec.resources.gpu_type, hours, is_checked)

    def _find_handed(self) -> list[str]:
        """Return the admitted jobs about which the scheduler has answered since the last request."""
        with self._lock:
            going = sorted(self._going)
        if not going:
            return []
        waiting = {job.id for job in self._storage.store.get_many(going) if job.state in _BEFORE}
        return [one for one in going if one not in waiting][:MOST_JOBS]

    def _note_failure(self, why: str) -> None:
        self._failures += 1
        self._again_at = self._storage.clock.monotonic() + self._pause_s()
        if why != self._why:
            self._why = why
            log.warning("the hub admits no new jobs: %s", why)

    def _pause_s(self) -> float:
        return growing_pause(self._failures, FIRST_PAUSE_S, LONGEST_PAUSE_S) if self._failures else AGAIN_S

    def _end(self, refused: Sequence[tuple[Job, str]]) -> int:
        now = self._storage.clock.now()
        changes = [
            (
                job,
                Change(
                    ((JobState.FAILED, now),),
                    message=reason,
                    error_code=CODE,
                    incidents=(refusal(job, CODE, reason, now),),
                ),
            )
            for job, reason in refused
        ]
        return len(self._storage.store.apply_many(changes)) if changes else 0


_BEFORE = (JobState.PENDING, JobState.DEPLOYING)


def turn_pauses(jobs: Sequence[str], granted: int) -> dict[str, float]:
    """Return how long each job answered LATER waits before it asks again. Assumes that each request admits as many jobs
    as this one."""
    return {job: min(LONGEST_TURN_S, TURN_S * (1 + number // max(1, granted))) for number, job in enumerate(jobs)}


def _is_new(job: Job) -> bool:
    """Return whether the job has had no attempt since its submission or its last resume."""
    return job.state is JobState.PENDING and job.requested_action is RequestedAction.NONE and job.spent == Spent()
