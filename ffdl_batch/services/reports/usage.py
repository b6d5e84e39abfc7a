"""Reports usage: every job of a period, read page by page, and their sums.

A job counts if it was alive in the period, with the part of its runs within the period. A run that has not ended counts
until now. It asks no scheduler.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import field

from ffdl_batch.config import Settings
from ffdl_batch.domain.incidents.incident import Incident
from ffdl_batch.domain.incidents.kinds import kind_of
from ffdl_batch.domain.job.submission import Caller
from ffdl_batch.domain.job_state import JobState
from ffdl_batch.domain.metrics.rates import Rates
from ffdl_batch.domain.metrics.usage_report import (
    GPU_KINDS,
    HOUR_S,
    NO_TENANT,
    PUBLISHED_FRAMEWORKS,
    PUBLISHED_GPUS,
    PUBLISHED_LEARNERS,
    Efficiency,
    Group,
    JobUse,
    UsageReport,
    Waste,
    distribution,
    kind_of_gpus,
    kind_of_learners,
    shares,
)
from ffdl_batch.domain.metrics.usage_timeline import AttemptRecord, Loss, Timeline, in_parts, losses, overlap, timeline
from ffdl_batch.domain.outcome.continuation import Interruption
from ffdl_batch.domain.outcome.error_codes import FAULTS, NORMAL
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.services.job_storage import JobStorage
from ffdl_batch.services.refusals import not_allowed, wrong_usage
from ffdl_batch.services.reports.gpu_efficiency import HeldAttempt, read_efficiency
from ffdl_batch.store import Store, UsedJob

_WORDS = {
    Interruption.HALT.value: "halted by its owner",
    Interruption.TIMEOUT.value: "time limit",
    Interruption.PREEMPTION.value: "preempted",
    Interruption.NODE_FAILURE.value: "node or controller failed",
}
_REQUEUED = "requeued by the scheduler"
_ENDS = "end-"
"""Prefix of the episodes of incidents that ended a run."""


def _cause_by_outcome(job: UsedJob, record: AttemptRecord | None, loss: Loss) -> str:
    """Return the cause by the attempt's outcome code and interruption."""
    if loss.end is JobState.CANCELLED:
        return "cancelled by its owner"
    if record is None or (loss.end is JobState.QUEUED and not record.interruption):
        return _REQUEUED
    if record.interruption in _WORDS:
        return _WORDS[record.interruption]
    code = record.outcome_code if record.outcome_code not in ("", NORMAL.code) else job.error_code
    kind = FAULTS.get(code)
    if code == NORMAL.code:
        return _REQUEUED if loss.end is JobState.QUEUED else "ended early"
    return f"{kind.title} ({code})" if kind is not None else code


class _Causes:
    """Causes of lost GPU time, from the kinds of `incidents`, and from outcomes for ends without an incident.

    If the scheduler requeued an attempt, the incident nearest to the end of the run counts.
    """

    def __init__(self, incidents: Iterable[Incident]) -> None:
        self._ends: dict[tuple[str, int], list[tuple[float, str]]] = {}
        for one in incidents:
            if one.episode.startswith(_ENDS):
                self._ends.setdefault((one.job_id, one.attempt), []).append((one.at, one.kind))

    def cause_of(self, job: UsedJob, record: AttemptRecord | None, loss: Loss) -> str:
        """Return a short description, the same for the same cause."""
        ends = self._ends.get((job.id, loss.attempt))
        if not ends:
            return _cause_by_outcome(job, record, loss)
        kind = kind_of(min(ends, key=lambda end: abs(end[0] - loss.ended))[1])
        return f"{kind.title} ({kind.name})"


_HELD = {JobState.DOWNLOADING: "held while data were loaded", JobState.STORING: "held while results were stored"}


@dataclass(frozen=True, slots=True)
class Period:
    """The reported period, from `since` to before `until`, in seconds since the epoch; the caller's jobs, or those of
    `all_users`."""

    since: float
    until: float
    all_users: bool = False


@dataclass(frozen=True, slots=True)
class Used:
    """One job of the period: its record, its timeline, and its row in the report."""

    job: UsedJob
    line: Timeline
    row: JobUse


def report_usage(storage: JobStorage, settings: Settings, caller: Caller, period: Period) -> UsageReport:
    """Return the whole report. Reads samples of GPU use from the job directories for a bounded time.

    Raises :class:`Refused` and OSError.
    """
    sums = _Sums(period, storage.clock.now(), _causes(storage.store, caller, period))
    for used in used_in(storage, settings, caller, period):
        sums.add(used)
    efficiency = read_efficiency(storage, sums.held_attempts, (period.since, min(period.until, sums.now)))
    return sums.report(settings.rates, efficiency)


def _causes(store: Store, caller: Caller, period: Period) -> _Causes:
    """Return the causes from the incidents of the period. A run's incident is recorded after its end, so none that
    matters is older than the period."""
    noticed = store.incidents_noticed(period.since, uid=None if period.all_users else caller.uid)
    return _Causes(one.incident for one in noticed)


def job_uses(storage: JobStorage, settings: Settings, caller: Caller, period: Period) -> Iterator[JobUse]:
    """Yield one row for each job, in the order of submission. Raises :class:`Refused` before the first row."""
    return (used.row for used in used_in(storage, settings, caller, period))


def used_in(storage: JobStorage, settings: Settings, caller: Caller, period: Period) -> Iterator[Used]:
    """Return the jobs that were alive in the period. Raises :class:`Refused` if the caller may not see them."""
    if period.all_users and not caller.is_admin:
        raise not_allowed("only administrators may have a report about other users' jobs")
    if not period.since < period.until:
        raise wrong_usage("the period is empty: its end must be after its beginning")
    return _used(storage, settings, None if period.all_users else caller.uid, period)


def _used(storage: JobStorage, settings: Settings, uid: int | None, period: Period) -> Iterator[Used]:
    now = storage.clock.now()
    for page in storage.store.used_jobs(uid, period.since, min(period.until, now + 1)):
        for job in page:
            held = timeline(job.steps, job.attempts, job.asked, now)
            line = in_parts(held, settings.rates.part_of_gpu(job.gpu_type))
            if _is_in(line, job, period):
                yield Used(job, line, _row(settings, job, line, period))


def _is_in(line: Timeline, job: UsedJob, period: Period) -> bool:
    if period.since <= job.submitted_at < period.until:
        return True
    return any(overlap(began, ended, period.since, period.until) > 0 for began, ended in line.alive)


def _row(settings: Settings, job: UsedJob, line: Timeline, period: Period) -> JobUse:
    since, until = period.since, period.until
    gpu_s = math.fsum(run.gpus * run.within(since, until) for run in line.runs)
    cpu_s = math.fsum(run.cpus * run.within(since, until) for run in line.runs)
    lost = math.fsum(loss.within(since, until) for loss in losses(line, job.attempts))
    default = settings.backend_settings(job.backend).get("account", "")
    return JobUse(
        job=job.id,
        array=job.array,
        name=job.name,
        user=job.user,
        uid=job.uid,
        account=job.account or (default if isinstance(default, str) else ""),
        framework=job.framework,
        version=job.version,
        backend=job.backend,
        gpu_type=job.gpu_type,
        learners=job.asked.learners,
        gpus_per_learner=job.asked.gpus_each or _named_shares(line, job),
        attempts=len({run.attempt for run in line.runs if run.began < until and run.ended >= since}),
        state=job.state.value,
        error_code=job.error_code,
        submitted_at=job.submitted_at,
        started_at=line.runs[0].began if line.runs else None,
        ended_at=job.ended_at,
        queued_s=math.fsum(ended - began for _, began, ended in line.waits if since <= ended < until),
        gpu_hours=gpu_s / HOUR_S,
        cpu_hours=cpu_s / HOUR_S,
        lost_gpu_hours=lost / HOUR_S,
        cost=settings.rates.cost(gpu_s, cpu_s, job.gpu_type),
        currency=settings.rates.currency,
    )


def _named_shares(line: Timeline, job: UsedJob) -> float:
    """Return the fraction of a GPU that each learner has if the manifest requests shares by number (``batch.gres``)."""
    return line.runs[-1].gpus / max(1, job.asked.learners) if line.runs else 0.0


@dataclass(slots=True)
class _Sum:
    jobs: int = 0
    gpu_hours: float = 0.0
    cpu_hours: float = 0.0
    lost: float = 0.0
    cost: float = 0.0

    def add(self, row: JobUse) -> None:
        self.jobs += 1
        self.gpu_hours += row.gpu_hours
        self.cpu_hours += row.cpu_hours
        self.lost += row.lost_gpu_hours
        self.cost += row.cost


@dataclass(slots=True)
class _Sums:
    """The sums of one pass over the jobs."""

    period: Period
    now: float
    causes: _Causes
    whole: _Sum = field(default_factory=_Sum)
    submitted: int = 0
    attempts: int = 0
    running: int = 0
    never_ran: int = 0
    tenants: defaultdict[str, _Sum] = field(default_factory=lambda: defaultdict(_Sum))
    users: defaultdict[str, _Sum] = field(default_factory=lambda: defaultdict(_Sum))
    frameworks: defaultdict[str, _Sum] = field(default_factory=lambda: defaultdict(_Sum))
    gpus: Counter[str] = field(default_factory=Counter)
    learners: Counter[int] = field(default_factory=Counter)
    times: dict[str, list[float]] = field(default_factory=lambda: {"queueing": [], "download": [], "processing": []})
    wasted: defaultdict[tuple[bool, str], list[float]] = field(default_factory=lambda: defaultdict(list))
    held_attempts: list[HeldAttempt] = field(default_factory=list)

    def add(self, used: Used) -> None:
        job, row = used.job, used.row
        self.whole.add(row)
        for groups, name in ((self.tenants, row.account or NO_TENANT), (self.users, row.user),
                             (self.frameworks, row.framework)):  # fmt: skip
            groups[name].add(row)
        self.submitted += self._is_within(job.submitted_at)
        self.attempts += row.attempts
        self.running += any(run.end is None for run in used.line.runs) and job.ended_at is None
        self.never_ran += not used.line.runs
        self.gpus[kind_of_gpus(row.gpus_per_learner)] += row.learners
        self.learners[row.learners] += 1
        self._add_times(used.line)
        self._add_waste(used)

    def _is_within(self, at: float) -> bool:
        return self.period.since <= at < self.period.until

    def _add_times(self, line: Timeline) -> None:
        """Add the waiting and running times that ended in the period."""
        self.times["queueing"].extend(ended - began for _, began, ended in line.waits if self._is_within(ended))
        kinds = ((JobState.DOWNLOADING, "download"), (JobState.PROCESSING, "processing"))
        for run in line.runs:
            for state, kind in kinds:
                spans = [(a, b) for which, a, b in run.phases if which is state]
                if spans and self._is_within(spans[-1][1]) and (run.end is not None or spans[-1][1] < run.ended):
                    self.times[kind].append(sum(b - a for a, b in spans))

    def _add_waste(self, used: Used) -> None:
        since, until = self.period.since, self.period.until
        held: dict[int, float] = {}
        for run in used.line.runs:
            held[run.attempt] = held.get(run.attempt, 0.0) + run.gpus * run.within(since, until)
            for state, words in _HELD.items():
                if (seconds := run.gpus * run.phase_within(state, since, until)) > 0:
                    self.wasted[False, words].append(seconds)
        self.held_attempts += [HeldAttempt(s, used.job.id, number) for number, s in held.items() if s > 0]
        for loss in losses(used.line, used.job.attempts):
            if (seconds := loss.within(since, until)) > 0:
                cause = self.causes.cause_of(used.job, used.job.attempts.get(loss.attempt), loss)
                self.wasted[True, cause].append(seconds)

    def report(self, rates: Rates, efficiency: Efficiency) -> UsageReport:
        frameworks = {name.lower(): 0 for name in self.frameworks}
        for name, one in self.frameworks.items():
            frameworks[name.lower()] += one.jobs
        learners: Counter[str] = Counter()
        for count, jobs in sorted(self.learners.items()):
            learners[kind_of_learners(count)] += jobs
        return UsageReport(
            since=self.period.since,
            until=self.period.until,
            now=self.now,
            jobs=self.whole.jobs,
            submitted=self.submitted,
            attempts=self.attempts,
            running=self.running,
            never_ran=self.never_ran,
            gpu_hours=self.whole.gpu_hours,
            cpu_hours=self.whole.cpu_hours,
            cost=self.whole.cost,
            currency=rates.currency,
            has_costs=rates.is_set,
            all_users=self.period.all_users,
            tenants=_groups(self.tenants),
            users=_groups(self.users),
            frameworks=_groups(self.frameworks),
            by_framework=shares(frameworks, PUBLISHED_FRAMEWORKS),
            gpus_per_learner=shares(self.gpus, PUBLISHED_GPUS, GPU_KINDS),
            learners_per_job=shares(learners, PUBLISHED_LEARNERS, tuple(dict.fromkeys(("1", *learners)))),
            times=tuple(distribution(kind, times) for kind, times in self.times.items()),
            held=self._wastes(lost=False),
            lost=self._wastes(lost=True),
            efficiency=efficiency,
        )

    def _wastes(self, *, lost: bool) -> tuple[Waste, ...]:
        found = [
            Waste(cause, math.fsum(seconds) / HOUR_S, len(seconds))
            for (is_lost, cause), seconds in self.wasted.items()
            if is_lost is lost
        ]
        return tuple(sorted(found, key=lambda one: (-one.gpu_hours, one.cause)))


def _groups(sums: dict[str, _Sum]) -> tuple[Group, ...]:
    found = (Group(name, s.jobs, s.gpu_hours, s.cpu_hours, s.lost, s.cost) for name, s in sums.items())
    return tuple(sorted(found, key=lambda one: (-one.gpu_hours, -one.cpu_hours, one.name)))
