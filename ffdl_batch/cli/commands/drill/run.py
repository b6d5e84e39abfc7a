"""Run a drill: wait until the training runs, send the event, and wait for the result."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import field
from typing import TYPE_CHECKING

from ffdl_batch.attempt.layout import JobDir
from ffdl_batch.cli.commands.drill.report import DrillReport, Simulation, is_end, is_start, make_report
from ffdl_batch.cli.render.job_messages import report_end
from ffdl_batch.client.api import is_ended
from ffdl_batch.client.errors import WaitTimedOut
from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.domain.job_state import Cause, JobState
from ffdl_batch.domain.launch.launch_file import decode
from ffdl_batch.domain.launch.limits import Lead
from ffdl_batch.domain.launch.placeholders import LaunchFileError
from ffdl_batch.domain.outcome.continuation import DrillEvent
from ffdl_batch.exit_handling import Stop
from ffdl_batch.host.fast_dataclass import dataclass

if TYPE_CHECKING:
    from ffdl_batch.client import Client
    from ffdl_batch.domain.job.views import EventView, JobView


@dataclass(frozen=True, slots=True)
class Drill:
    """The parameters of a drill."""

    event: str
    after_s: float = 0.0
    """How long the training runs before the event."""
    timeout_s: float | None = None
    """Maximum time from PROCESSING to the end of the attempt; None for no limit."""
    queue_timeout_s: float | None = None
    """Maximum time of each wait for PROCESSING; None for no limit."""
    resumes: bool = True
    """Whether a halted job is resumed afterwards."""
    trial: bool = False


@dataclass
class Course:
    """One drill on one job. `report` gets the progress."""

    client: Client
    job_id: str
    drill: Drill
    report: Callable[[str], None]
    events: list[EventView] = field(default_factory=list)
    simulation: Simulation | None = None
    resumed: bool = False
    gave_up: bool = False

    def run(self) -> DrillReport:
        """Run the whole drill. Raises :class:`Stop` if the event is not possible, or at a timeout without a result."""
        job, deadline = self._train()
        simulation = self._simulate(job)
        end = self._await_end(simulation, deadline)
        if self._continues(end):
            self._await_start()
        job = self.client.get(self.job_id)
        lead = read_lead(job, (simulation.attempt,) if self.drill.trial else (job.attempt, simulation.attempt))
        return make_report(simulation, job, self.events, lead, trial=self.drill.trial, gave_up=self.gave_up)

    def describe_rest(self) -> str:
        """Return what happens to the job when the drill stops waiting; "" for a trial run, which is cancelled."""
        if self.drill.trial:
            return ""
        if self.simulation is None:
            return f"{self.job_id} was not interrupted and continues"
        if self.drill.event == DrillEvent.HALT and not self.resumed:
            return f"{self.job_id} becomes HALTED; to continue it: ffdl resume {self.job_id}"
        return f"{self.job_id} continues by itself; to follow it: ffdl events -f {self.job_id}"

    # --------------------------------------------------------------------------------------- before the event

    def _train(self) -> tuple[JobView, float | None]:
        """Return the job when the event is due, and the deadline of its attempt. If a real interruption ends the
        attempt before, wait for the next one."""
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
        waits = "; waiting until it is PROCESSING"
        waits += "; --timeout counts from then" if self.drill.timeout_s is not None else ""
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
                f"{self.job_id} is {job.state} and was not interrupted: an event is possible only while a training is "
                f"PROCESSING{shorter}",
            )
        return job

    def _simulate(self, job: JobView) -> Simulation:
        self.events.extend(self.client.events(self.job_id, after=self._seen))
        simulation = Simulation(self.drill.event, job.attempt, time.time(), self._seen)
        self.report(f"sending {self.drill.event} to attempt {job.attempt} of {self.job_id}")
        self.simulation = simulation  # before the request, because it may have worked if its answer is lost
        self.client.drill(self.job_id, self.drill.event)
        return simulation

    # ---------------------------------------------------------------------------------------- after the event

    def _await_end(self, simulation: Simulation, deadline: float | None) -> EventView | None:
        self.report(f"waiting for the end of attempt {simulation.attempt}")
        try:
            return self._next(is_end, deadline)
        except WaitTimedOut:
            what = f"attempt {simulation.attempt} of {self.job_id} has not ended"
            span = f"in {self.drill.timeout_s:g} s of PROCESSING (--timeout)"
            raise self._time_over(f"{what} {span}; the result is not known") from None

    def _continues(self, end: EventView | None) -> bool:
        """Return whether there will be a next attempt. Resumes a job that the drill halted."""
        if end is None:
            return False
        if end.cause == Cause.REQUEUED:
            return True
        if end.state != JobState.HALTED or self.drill.event != DrillEvent.HALT or not self.drill.resumes:
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
        """Return the next wanted state change; None if the job ends before. Raises WaitTimedOut."""
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        for event in self.client.events(self.job_id, follow=True, after=self._seen, timeout_s=left):
            self.events.append(event)
            if is_wanted(event):
                return event
        return None


def _from_now(span_s: float | None) -> float | None:
    return None if span_s is None else time.monotonic() + span_s


def _place(job: JobView) -> str:
    """Return the state of the job, with its pending reason."""
    why = f" ({job.pending_reason})" if job.pending_reason else ""
    return f"{job.id} is {job.state}{why}"


def read_lead(job: JobView, attempts: tuple[int, ...]) -> Lead | None:
    """Return the lead of the first of these attempts that has a launch file: the value that its controllers use.

    Return None if the job's directory cannot be read from here.
    """
    for number in attempts:
        try:
            with open(JobDir(job.job_dir).attempt(number).launch, encoding="utf-8") as file:  # noqa: PTH123
                limits = decode(file.read()).limits
        except (OSError, UnicodeDecodeError, LaunchFileError):
            continue
        return Lead(limits.lead_s, limits.lead_from)
    return None
