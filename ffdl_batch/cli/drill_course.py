"""The course of a drill: wait until the training runs, play the event, wait for what becomes of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ffdl_batch.cli.drill_report import DrillReport, Lead, Played, is_end, is_start, make_report
from ffdl_batch.cli.outcome import Stop
from ffdl_batch.client.api import is_ended
from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.domain.job_state import Cause, JobState
from ffdl_batch.domain.jobdir import JobDir
from ffdl_batch.domain.launch import LaunchFileError, decode

if TYPE_CHECKING:
    from ffdl_batch.client import Client
    from ffdl_batch.domain.views import EventView, JobView


@dataclass(frozen=True, slots=True)
class Drill:
    """What is wanted. `after_s`: how long the training runs before; `resumes`: a halted job is resumed afterwards."""

    event: str
    after_s: float = 0.0
    timeout_s: float | None = None
    resumes: bool = True
    trial: bool = False


@dataclass
class Course:
    """One drill on one job. `tell` hears what is being waited for."""

    client: Client
    job_id: str
    drill: Drill
    tell: Callable[[str], None]
    sleep: Callable[[float], None] = time.sleep
    events: list[EventView] = field(default_factory=list)
    deadline: float | None = field(init=False)

    def __post_init__(self) -> None:
        timeout_s = self.drill.timeout_s
        self.deadline = None if timeout_s is None else time.monotonic() + timeout_s

    def run(self) -> DrillReport:
        """The whole drill; raises :class:`Stop` where it cannot be played, WaitTimedOut when its time is over."""
        job = self._wait_until_it_runs()
        if self.drill.after_s:
            self.tell(f"{self.job_id} is PROCESSING; the event follows in {self.drill.after_s:g} s")
            self.sleep(self.drill.after_s)
        self.events.extend(self.client.events(self.job_id, after=self._seen))
        played = Played(self.drill.event, job.attempt, time.time(), self._seen)
        self.tell(f"playing {self.drill.event} on attempt {job.attempt} of {self.job_id}")
        lead = read_lead(job)
        self.client.drill(self.job_id, self.drill.event)
        self._follow()
        return make_report(played, self.client.get(self.job_id), self.events, lead, trial=self.drill.trial)

    @property
    def _seen(self) -> int:
        return self.events[-1].seq if self.events else 0

    def _wait_until_it_runs(self) -> JobView:
        self.events.extend(self.client.events(self.job_id))
        job = self.client.get(self.job_id)
        if job.state != JobState.PROCESSING and not is_ended(job):
            self.tell(f"{self.job_id} is {job.state}; waiting until it is PROCESSING")
            self._until(lambda event: event.state == JobState.PROCESSING)
            job = self.client.get(self.job_id)
        if is_ended(job):
            why = f": {job.error_code} {job.message}" if job.error_code not in ("", "000") else ""
            raise Stop(
                ExitCode.FAILED,
                f"{self.job_id} is {job.state}{why}; an event can be played only while a training is PROCESSING",
            )
        return job

    def _follow(self) -> None:
        """Wait for the attempt's end, and for the next one's start unless the job has ended for good."""
        self.tell("waiting for the attempt's end")
        end = self._until(is_end)
        if end is None:
            return
        if end.cause != Cause.REQUEUED:
            if end.state != JobState.HALTED or self.drill.event != "halt" or not self.drill.resumes:
                return
            self.client.resume(self.job_id)
        self.tell(f"{self.job_id} is {self.client.get(self.job_id).state}; waiting for the next attempt's start")
        self._until(is_start)

    def _until(self, is_wanted: Callable[[EventView], bool]) -> EventView | None:
        """The next change of state that is wanted; None where the job has ended before."""
        left = None if self.deadline is None else max(0.0, self.deadline - time.monotonic())
        for event in self.client.events(self.job_id, follow=True, after=self._seen, timeout_s=left):
            self.events.append(event)
            if is_wanted(event):
                return event
        return None


def read_lead(job: JobView) -> Lead:
    """The lead of the current attempt, from its launch file: the very value that its controllers go by.

    Not known where the job's directory cannot be read from here.
    """
    try:
        with open(JobDir(job.job_dir).attempt(job.attempt).launch, encoding="utf-8") as file:  # noqa: PTH123
            return Lead(decode(file.read()).limits.lead_s, known=True)
    except (OSError, UnicodeDecodeError, LaunchFileError):
        return Lead()
