"""Run two jobs on shares of one GPU and then each alone, and compare their speeds."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING

import click

from ffdl_batch.cli.render.job_messages import report_end
from ffdl_batch.cli.trial_runs import TrialRuns
from ffdl_batch.client.api import is_ended
from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.domain.job_state import JobState
from ffdl_batch.domain.metrics.gpu_sharing import (
    Comparison,
    Held,
    Measured,
    Run,
    common_start,
    compare,
    is_measured,
    make_run,
    make_subject,
    measure,
)
from ffdl_batch.domain.metrics.learner_reports import remaining_samples, throughputs
from ffdl_batch.domain.metrics.rates import Rates
from ffdl_batch.domain.terminal_text import quoted
from ffdl_batch.exit_handling import Stop
from ffdl_batch.host.fast_dataclass import dataclass

if TYPE_CHECKING:
    from ffdl_batch.client import Client, ClientError
    from ffdl_batch.domain.job.submission import Submission
    from ffdl_batch.domain.job.views import JobView

POLL_S = 1.0


@dataclass(frozen=True, slots=True)
class Candidate:
    """One of the two jobs."""

    name: str
    """Name of the manifest."""
    submission: Submission
    has_gpus: bool
    gpu_type: str
    cpus: float
    nodelist: str
    """The nodes that its owner requested; "" = any."""


@dataclass(frozen=True, slots=True)
class Share:
    """A share of a GPU."""

    part: float
    """Fraction of a GPU, or of the CPUs of a job without GPUs."""
    gpu_type: str = ""
    """Type of a MIG device; "" = a share of a GPU that other jobs may use, too."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Times of a run, in seconds."""

    measured_s: float
    first_report_s: float
    queue_s: float | None
    """None = no limit."""


def parse_shares(texts: Sequence[str], candidates: Sequence[Candidate], rates: Rates) -> tuple[Share, Share]:
    """Return the share of each job. Raises UsageError."""
    if len(texts) > 2:
        raise click.UsageError("--share can be given at most twice, once for each job")
    first, second = (_parse_share(text, rates) for text in (texts[0], texts[-1]))
    if bool(first.gpu_type) != bool(second.gpu_type):
        raise click.UsageError(
            "--share: a MIG device and a fraction of a GPU cannot be on the same GPU; give two of one kind"
        )
    if first.part + second.part > 1:
        raise click.UsageError(f"--share: {texts[0]} and {texts[-1]} add up to more than one GPU")
    if not all(one.has_gpus for one in candidates):
        if any(one.has_gpus for one in candidates):
            raise click.UsageError("one job requests a GPU and the other does not, so they cannot share one")
        if first.gpu_type:
            raise click.UsageError(
                f"--share {texts[0]}: the jobs request no GPUs, so they share CPUs; give a fraction, such as 0.5"
            )
    return first, second


def _parse_share(text: str, rates: Rates) -> Share:
    try:
        part = float(text)
    except ValueError:
        part = rates.part_of_gpu(text)
        if part < 1:
            return Share(part, text)
        part = 0.0
    if not 0 < part < 1:
        raise click.UsageError(
            f"--share: {quoted(text)} is neither a fraction of a GPU, such as 0.5, nor a MIG type, such as 1g.10gb"
        )
    return Share(part)


@dataclass(slots=True)
class _Trial:
    """A run of a candidate."""

    candidate: Candidate
    part: float
    device_type: str
    job_id: str
    held: Held | None = None
    reports: list[tuple[float, float]] = field(default_factory=list)
    """See :data:`ffdl_batch.domain.metrics.gpu_sharing.Reports`. A thread appends new ones."""
    samples: float | None = None
    failure: ClientError | None = None
    """Why its reports could not be read to their end."""

    @property
    def label(self) -> str:
        """The manifest and the id."""
        return f"{self.candidate.name} ({self.job_id})"


@dataclass(slots=True)
class SharedRun:
    """Runs the jobs and compares them. Raises :class:`Stop` if a run fails or takes too long."""

    client: Client
    runs: TrialRuns
    limits: Limits
    rates: Rates
    report: Callable[[str], None]

    def compare(self, candidates: tuple[Candidate, Candidate], shares: tuple[Share, Share]) -> Comparison:
        """Run both jobs together, then each alone, on the same node unless the shares are MIG devices.

        The shared runs come first, so that a backend without shares refuses immediately."""
        isolated = bool(shares[0].gpu_type)
        trials: list[_Trial] = []
        for candidate, share in zip(candidates, shares, strict=True):
            node = "" if isolated or not trials or trials[0].held is None else trials[0].held.nodes
            trials.append(self._start(candidate, share, node))
            self._await_start(trials)
        together = self._measure(trials)
        node = "" if isolated or trials[0].held is None else trials[0].held.nodes
        subjects = []
        for candidate, beside, trial in zip(candidates, together, trials, strict=True):
            alone = self._start(candidate, None, node)
            self._await_start([alone])
            (run,) = self._measure([alone])
            left = [one.samples for one in (trial, alone) if one.samples is not None]
            subjects.append(make_subject(candidate.name, run, beside, max(left, default=None)))
        return compare((subjects[0], subjects[1]), self.rates, isolated=isolated)

    # ---------------------------------------------------------------------------------------------- one run

    def _start(self, candidate: Candidate, share: Share | None, node: str) -> _Trial:
        """Submit a run: on a share, or alone if `share` is None."""
        part = 1.0 if share is None else share.part
        device = share.gpu_type if share is not None and share.gpu_type else candidate.gpu_type
        options = dict(candidate.submission.options)
        if candidate.has_gpus:
            count = f"{part:g}" if share is not None and not share.gpu_type else "1"
            options["gpus"] = f"{device}:{count}" if device else count
        elif share is not None:
            options["cpus"] = f"{candidate.cpus * part:g}"
        pins = bool(node and not candidate.nodelist)
        if pins:
            options["nodelist"] = node
        self.report(f"{candidate.name}: {'alone' if share is None else 'together with the other job'}")
        own_key = "batch.nodelist" if pins else ""  # a backend with one node warns that nodelist has no effect
        # The daemon treats two submissions with the same key as one job.
        job_id = self.runs.start(replace(candidate.submission, options=options, key=uuid.uuid4().hex), own_key)
        return _Trial(candidate, part, device, job_id)

    def _await_start(self, trials: Sequence[_Trial]) -> None:
        """Wait until all are PROCESSING."""
        ends_at = None if self.limits.queue_s is None else time.monotonic() + self.limits.queue_s
        said: dict[str, str] = {}
        while True:
            jobs = [self._living(trial) for trial in trials]
            # The nodes of a job may become known only after its controllers report that it trains.
            waiting = [job for job in jobs if job.state != JobState.PROCESSING or not job.nodes]
            if not waiting:
                break
            for job in waiting:
                place = f"{job.id} is {job.state}" + (f" ({job.pending_reason})" if job.pending_reason else "")
                if said.get(job.id) != place:
                    said[job.id] = place
                    self.report(place)
            if ends_at is not None and time.monotonic() > ends_at:
                span = f"{self.limits.queue_s:g} s (--queue-timeout)"
                raise Stop(ExitCode.TIMEOUT, f"{said[waiting[0].id]} after {span}")
            time.sleep(POLL_S)
        for trial, job in zip(trials, jobs, strict=True):
            trial.held = self._held(trial, job)

    def _held(self, trial: _Trial, job: JobView) -> Held:
        """Return the resources of the run. Without GPUs, its CPUs are the shared device."""
        gpus = job.attempts[-1].gpus if job.attempts else None
        if gpus is None:
            gpus = job.gpus
        gpus *= self.rates.part_of_gpu(trial.device_type)
        cpus = job.cpus if gpus else trial.candidate.cpus * trial.part
        return Held(gpus, cpus, job.nodes, job.gpu_devices)

    def _living(self, trial: _Trial) -> JobView:
        """Return the job. Raises :class:`Stop` if its training has ended."""
        job = self.client.get(trial.job_id)
        if job.state == JobState.STORING:  # its final state shows whether its learner failed
            job = self.client.wait(trial.job_id)
        if not is_ended(job):
            return job
        report_end(job, ExitCode.FAILED)
        longer = "; let it train longer, or reduce --seconds" if job.state == JobState.COMPLETED else ""
        raise Stop(ExitCode.FAILED, f"{trial.label} became {job.state} before its measurement ended{longer}")

    # ------------------------------------------------------------------------------------------- measurement

    def _measure(self, trials: Sequence[_Trial]) -> list[Run]:
        """Measure runs in PROCESSING over a period in which all of them train, then cancel them."""
        seconds, since = self.limits.measured_s, None
        ends_at = time.monotonic() + self.limits.first_report_s
        for trial in trials:
            threading.Thread(target=self._follow, args=(trial,), name=trial.job_id, daemon=True).start()
        while True:
            if failures := [trial.failure for trial in trials if trial.failure is not None]:
                raise failures[0]
            reports = [list(trial.reports) for trial in trials]
            if since is None and (since := common_start(reports)) is not None:
                ends_at = time.monotonic() + self.limits.first_report_s + seconds
                self.report(f"measuring {' and '.join(trial.label for trial in trials)} for {seconds:g} s")
            if since is not None and is_measured(reports, since, seconds):
                break
            for trial in trials:
                self._check_uninterrupted(trial, self._living(trial))
            if time.monotonic() > ends_at:
                raise self._silent(trials, since)
            time.sleep(POLL_S)
        found = [self._run(trial, measure(one, since, seconds)) for trial, one in zip(trials, reports, strict=True)]
        self.runs.end()
        for trial in trials:
            self.client.wait(trial.job_id)
        return found

    @staticmethod
    def _check_uninterrupted(trial: _Trial, job: JobView) -> None:
        """Raise :class:`Stop` if the attempt no longer trains: reports of two attempts cannot be combined."""
        if job.state != JobState.PROCESSING or job.attempt > 1:
            why = f": {job.pending_reason}" if job.pending_reason else ""
            raise Stop(
                ExitCode.TRY_AGAIN,
                f"{trial.label} was interrupted during the measurement and is {job.state}{why}; run the command again",
            )

    def _follow(self, trial: _Trial) -> None:
        """Read each report of a run once, until its job has ended. Runs in a thread, because a stream blocks."""
        from ffdl_batch.client import ClientError

        try:
            for line in self.client.metrics(trial.job_id, follow=True, learner=1):
                trial.reports += throughputs([line.record])
                if trial.samples is None:
                    trial.samples = remaining_samples([line.record])
        except ClientError as error:
            trial.failure = error

    def _silent(self, trials: Sequence[_Trial], since: float | None) -> Stop:
        """Return the error for the job that has not reported for the longest time."""
        trial = min(trials, key=lambda one: one.reports[-1][0] if one.reports else 0.0)
        if since is None:
            message = (
                f"{trial.label} reported no throughput within {self.limits.first_report_s:g} s of PROCESSING "
                "(--timeout); its first learner must print ffdl-throughput: samples=N seconds=S"
            )
        else:
            message = f"{trial.label} stopped reporting its throughput; see: ffdl logs {trial.job_id}"
        return Stop(ExitCode.TIMEOUT, message)

    def _run(self, trial: _Trial, speed: Measured | None) -> Run:
        assert speed is not None and trial.held is not None  # `_measure` has waited for both
        return make_run(trial.job_id, trial.held, speed, self.rates, trial.device_type)
