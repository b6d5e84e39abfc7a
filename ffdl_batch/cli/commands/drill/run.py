"""The course of a drill: wait until the training runs, play the event, wait for what becomes of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ffdl_batch.attempt.layout import JobDir
from ffdl_batch.cli.commands.drill.report import HALT, DrillReport, Played, is_end, is_start, make_report
from ffdl_batch.cli.exit_handling import Stop
from ffdl_batch.cli.render.job_messages import report_end
from ffdl_batch.client.api import is_ended
from ffdl_batch.client.errors import WaitTimedOut
from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.domain.job_state import Cause, JobState
from ffdl_batch.domain.launch.launch_file import decode
from ffdl_batch.domain.launch.limits import Lead
from ffdl_batch.domain.launch.placeholders import LaunchFileError

if TYPE_CHECKING:
    from ffdl_batch.client import Client
    from ffdl_batch.domain.job.views import EventView, JobView


@dataclass(frozen=True, slots=True)
class Drill:
    """What is wanted.

    `after_s`: how long the training runs before. `timeout_s`: how long the attempt may take from PROCESSING to its end;
    `queue_timeout_s`: how long each wait for PROCESSING may take (None = for ever). `resumes`: a halted job is resumed
    afterwards.
    """

    event: str
    after_s: float = 0.0
    timeout_s: float | None = None
    queue_timeout_s: float | None = None
    resumes: bool = True
    trial: bool = False


@dataclass
class Course:
    """One drill on one job. `tell` hears what is being waited for."""

    client: Client
    job_id: str
    drill: Drill
    report: Callable[[str], None]
    events: list[EventView] = field(default_factory=list)
    played: Played | None = None
    resumed: bool = False
    gave_up: bool = False

    def run(self) -> DrillReport:
        """The whole drill; raises :class:`Stop` where it cannot be played or nothing is known when its time is over."""
        job, deadline = self._train()
        played = self._play(job)
        end = self._await_end(played, deadline)
        if self._goes_on(end):
            self._await_start()
        job = self.client.get(self.job_id)
        lead = read_lead(job, (played.attempt,) if self.drill.trial else (job.attempt, played.attempt))
        return make_report(played, job, self.events, lead, trial=self.drill.trial, gave_up=self.gave_up)

    def describe_rest(self) -> str:
        """What becomes of the job if nobody waits any longer; "" for a trial run, which is cancelled then."""
        if self.drill.trial:
            return ""
        if self.played is None:
            return f"nothing was played; {self.job_id} goes on as before"
        if self.drill.event == HALT and not self.resumed:
            return f"{self.job_id} ends as HALTED; it goes on with: ffdl resume {self.job_id}"
        return f"{self.job_id} goes on by itself: ffdl events -f {self.job_id}"

    # --------------------------------------------------------------------------------------- before the event

    def _train(self) -> tuple[JobView, float | None]:
        """The job when the event is due, and until when its attempt may take. A run that is interrupted in earnest
        meanwhile is followed by the next one."""
        while True:
            job = self._await_processing()
            deadline = _from_now(self.drill.timeout_s)
            if not self.drill.after_s:
                return job, deadline
            self.report(f"{self.job_id} is PROCESSING; the event follows in {self.drill.after_s:g} s")
            try:
                self._next(is_end, _from_now(self.drill.after_s))
            except WaitTimedOut:
                return job, deadline

    def _await_processing(self) -> JobView:
        self.events.extend(self.client.events(self.job_id, after=self._seen))
        job, deadline = self.client.get(self.job_id), _from_now(self.drill.queue_timeout_s)
        waits = "; waiting until it is PROCESSING, nothing is played before"
        waits += "; --timeout counts from then on" if self.drill.timeout_s is not None else ""
        while job.state != JobState.PROCESSING and not is_ended(job):
            self.report(f"{_place(job)}{waits}")
            waits = ""
            try:
                self._next(lambda _: True, deadline)
            except WaitTimedOut:
                span = f"{self.drill.queue_timeout_s:g} s (--queue-timeout)"
                raise self._time_over(f"{_place(job)} after {span}, and not PROCESSING") from None
            job = self.client.get(self.job_id)
        if is_ended(job):
            report_end(job, ExitCode.FAILED)
            shorter = "; let it run longer, or give a shorter --after" if job.state == JobState.COMPLETED else ""
            raise Stop(
                ExitCode.FAILED,
                f"{self.job_id} is {job.state}, and nothing was played: an event can be played only while a training "
                f"is PROCESSING{shorter}",
            )
        return job

    def _play(self, job: JobView) -> Played:
        self.events.extend(self.client.events(self.job_id, after=self._seen))
        played = Played(self.drill.event, job.attempt, time.time(), self._seen)
        self.report(f"playing {self.drill.event} on attempt {job.attempt} of {self.job_id}")
        self.played = played  # also where the answer is lost: it may have been
        self.client.drill(self.job_id, self.drill.event)
        return played

    # ---------------------------------------------------------------------------------------- after the event

    def _await_end(self, played: Played, deadline: float | None) -> EventView | None:
        self.report(f"waiting for the end of attempt {played.attempt}")
        try:
            return self._next(is_end, deadline)
        except WaitTimedOut:
            what = f"attempt {played.attempt} of {self.job_id} has not ended"
            span = f"in {self.drill.timeout_s:g} s of PROCESSING (--timeout)"
            raise self._time_over(f"{what} {span}; what it made of the event is not known") from None

    def _goes_on(self, end: EventView | None) -> bool:
        """Whether there will be a next attempt; a job that the drill halted is resumed for it."""
        if end is None:
            return False
        if end.cause == Cause.REQUEUED:
            return True
        if end.state != JobState.HALTED or self.drill.event != HALT or not self.drill.resumes:
            return False
        self.client.resume(self.job_id)
        self.resumed = True
        return True

    def _await_start(self) -> None:
        self.report(f"{_place(self.client.get(self.job_id))}; waiting until the next attempt is PROCESSING")
        try:
            self._next(is_start, _from_now(self.drill.queue_timeout_s))
        except WaitTimedOut:
            self.gave_up = True

    def _time_over(self, what: str) -> Stop:
        rest = self.describe_rest()
        return Stop(ExitCode.TIMEOUT, f"{what}; {rest}" if rest else what)

    @property
    def _seen(self) -> int:
        return self.events[-1].seq if self.events else 0

    def _next(self, is_wanted: Callable[[EventView], bool], deadline: float | None) -> EventView | None:
        """The next change of state that is wanted; None where the job has ended before. Raises WaitTimedOut."""
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        for event in self.client.events(self.job_id, follow=True, after=self._seen, timeout_s=left):
            self.events.append(event)
            if is_wanted(event):
                return event
        return None


def _from_now(span_s: float | None) -> float | None:
    return None if span_s is None else time.monotonic() + span_s


def _place(job: JobView) -> str:
    """Where the job is; in the queue with the scheduler's reason."""
    why = f" ({job.pending_reason})" if job.pending_reason else ""
    return f"{job.id} is {job.state}{why}"


def read_lead(job: JobView, attempts: tuple[int, ...]) -> Lead | None:
    """The lead of the first of these attempts that has a launch file: the very value that its controllers go by.

    None where the job's directory cannot be read from here.
    """
    for number in attempts:
        try:
            with open(JobDir(job.job_dir).attempt(number).launch, encoding="utf-8") as file:  # noqa: PTH123
                limits = decode(file.read()).limits
        except (OSError, UnicodeDecodeError, LaunchFileError):
            continue
        return Lead(limits.lead_s, limits.lead_from)
    return None
