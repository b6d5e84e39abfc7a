"""Compares our usage figures with the schedulers' accounting, job by job.

It compares whole attempts, not only their parts in the period, and only jobs that have ended.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from ffdl_batch.domain.backend_facts import AccountedRun
from ffdl_batch.domain.job.job import Token
from ffdl_batch.domain.job.submission import Caller
from ffdl_batch.domain.metrics.rates import Rates
from ffdl_batch.domain.metrics.usage_report import HOUR_S, Agreement, AgreementRow
from ffdl_batch.domain.metrics.usage_timeline import Run
from ffdl_batch.domain.outcome.observation import NativeId
from ffdl_batch.domain.scheduler_errors import InvalidRequest, SchedulerUnreachable
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.ports.capabilities import HasAccounting
from ffdl_batch.services.backends.adapters import Adapters
from ffdl_batch.services.job_storage import JobStorage
from ffdl_batch.services.refusals import try_again
from ffdl_batch.services.reports.usage import Period, Used, used_in

MOST_ROWS = 1000
NOT_IN_ACCOUNTING = "the accounting has nothing by this id and name"
AT_ONCE = 2000
"""Number of attempts in one query of an accounting."""


@dataclass(frozen=True, slots=True)
class _Ours:
    """The figures that ffdl recorded for an attempt."""

    backend: str
    native_id: NativeId
    token: Token
    runs: tuple[Run, ...]
    shares_gpus: bool
    """Whether it has shares of a GPU, which the accounting may not count."""
    part: float
    """Fraction of a GPU that a device of its type is. The accounting counts devices."""


def find_agreement(
    storage: JobStorage, adapters: Adapters, caller: Caller, period: Period, tolerance_s: float
) -> Agreement:
    """Compare the jobs of the period that have ended. Raises :class:`Refused` if an accounting does not answer.

    `tolerance_s` applies to each run; for GPU time, to each of its GPUs.
    """
    jobs: dict[str, list[_Ours]] = {}
    running = 0
    for used in used_in(storage, adapters.settings, caller, period):
        if used.job.ended_at is None or any(run.end is None for run in used.line.runs):
            running += bool(used.line.runs)
        elif attempts := list(_attempts(used, adapters.settings.rates)):
            jobs[used.job.id] = attempts
    theirs, keeping, without = _ask(adapters, [one for attempts in jobs.values() for one in attempts])
    rows = [
        _row(job, attempts, theirs, tolerance_s)
        for job, attempts in jobs.items()
        if all(one.backend in keeping for one in attempts)
    ]
    counted = [row for row in rows if row.theirs_gpu_s is not None]
    differing = sorted((row for row in rows if row.differs or not row.known), key=_size, reverse=True)
    return Agreement(
        compared=len(rows),
        differing=sum(row.differs for row in rows),
        unknown=sum(not row.known for row in rows),
        running=running,
        ours_gpu_hours=sum(row.ours_gpu_s for row in counted) / HOUR_S,
        theirs_gpu_hours=sum(row.theirs_gpu_s or 0.0 for row in counted) / HOUR_S,
        gpus_counted=len(counted),
        rows=tuple(differing[:MOST_ROWS]),
        backends=tuple(sorted(keeping)),
        without=tuple(sorted(without)),
    )


def _attempts(used: Used, rates: Rates) -> Iterable[_Ours]:
    """Yield the attempts that ran and have a native id."""
    part = rates.part_of_gpu(used.job.gpu_type)
    each = used.job.asked.gpus_each
    for number, record in used.job.attempts.items():
        runs = tuple(run for run in used.line.runs if run.attempt == number)
        if runs and record.native_id:
            backend = used.job.backends.get(number) or used.job.backend
            native, token = NativeId.parse(record.native_id), Token(used.job.tokens[number])
            shares = 0 < each < 1 or (not each and any(run.gpus for run in runs))
            yield _Ours(backend, native, token, runs, shares, part)


Answers = dict[tuple[str, NativeId], Sequence[AccountedRun]]


def _ask(adapters: Adapters, attempts: Sequence[_Ours]) -> tuple[Answers, set[str], set[str]]:
    """Return the accounting's answer for each attempt, and the backends with and without accounting."""
    by_backend: defaultdict[str, dict[NativeId, Token]] = defaultdict(dict)
    for one in attempts:
        by_backend[one.backend][one.native_id] = one.token
    found: Answers = {}
    keeping: set[str] = set()
    for backend, wanted in by_backend.items():
        answer = _ask_one(adapters, backend, wanted)
        if answer is not None:
            keeping.add(backend)
            found.update(((backend, native), runs) for native, runs in answer.items())
    return found, keeping, set(by_backend) - keeping


def _ask_one(
    adapters: Adapters, backend: str, wanted: Mapping[NativeId, Token]
) -> dict[NativeId, Sequence[AccountedRun]] | None:
    found: dict[NativeId, Sequence[AccountedRun]] = {}
    ids = list(wanted)
    try:
        for start in range(0, len(ids), AT_ONCE):
            with adapters.asking(backend) as scheduler:
                if not isinstance(scheduler, HasAccounting):
                    return None
                part = {native: wanted[native] for native in ids[start : start + AT_ONCE]}
                answer = scheduler.accounted_runs(part)
            if answer is None:
                return None
            found.update(answer)
    except SchedulerUnreachable as error:
        raise try_again("S200", f"the accounting of {backend} cannot be compared with: {error}") from error
    except InvalidRequest:  # the backend is not installed any more, so its accounting cannot be asked
        return None
    return found


def _row(job: str, attempts: Sequence[_Ours], theirs: Answers, tolerance_s: float) -> AgreementRow:
    runs = [run for one in attempts for run in one.runs]
    answers = [theirs.get((one.backend, one.native_id)) for one in attempts]
    accounted = [
        run if run.gpus is None else replace(run, gpus=run.gpus * one.part)
        for one, answer in zip(attempts, answers, strict=True)
        for run in answer or ()
    ]
    why = next((run.unread for run in accounted if run.unread), "")
    if not why and any(answer is None for answer in answers):
        why = NOT_IN_ACCOUNTING
    known = not why
    ours_s, theirs_s = sum(run.length_s for run in runs), sum(run.elapsed_s for run in accounted)
    ours_gpu_s = sum(run.gpus * run.length_s for run in runs)
    shares = any(one.shares_gpus for one in attempts)
    counted = all(run.gpus is not None and not (shares and run.gpus == 0) for run in accounted)
    theirs_gpu_s = sum((run.gpus or 0.0) * run.elapsed_s for run in accounted) if known and counted else None
    count = max(len(runs), len(accounted))
    most = max([run.gpus for run in runs] + [run.gpus or 0.0 for run in accounted], default=0.0)
    differs = known and abs(ours_s - theirs_s) > tolerance_s * count
    if theirs_gpu_s is not None:
        differs = differs or abs(ours_gpu_s - theirs_gpu_s) > tolerance_s * count * max(1.0, most)
    ids = tuple(str(one.native_id) for one in attempts)
    return AgreementRow(job, ids, len(runs), ours_s, theirs_s, ours_gpu_s, theirs_gpu_s, known, differs, why)


def _size(row: AgreementRow) -> tuple[float, float]:
    gpus = abs(row.ours_gpu_s - row.theirs_gpu_s) if row.theirs_gpu_s is not None else row.ours_gpu_s
    return gpus, abs(row.ours_s - row.theirs_s)
