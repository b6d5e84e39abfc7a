"""``ffdl convert --history``: report where past jobs would run, with what loss, and at what cost. Reads the scheduler's
accounting. Needs no daemon.
"""

from __future__ import annotations

import io
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import click

from ffdl_batch.cli.options.output import open_output
from ffdl_batch.cli.render.document import Cell, Column, Document, Section, Table, write_csv
from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.domain.job.past_job import Fit, PastJob, Place, Unread, Verdict, best_fit, judge
from ffdl_batch.domain.job.views import SCHEMA
from ffdl_batch.domain.metrics.rates import Rates
from ffdl_batch.domain.number_text import counted
from ffdl_batch.domain.terminal_text import json_text, printable
from ffdl_batch.exit_handling import Stop, complain
from ffdl_batch.host.fast_dataclass import dataclass

if TYPE_CHECKING:
    from ffdl_batch.config import Settings
    from ffdl_batch.domain.job.past_job import PastJobs
    from ffdl_batch.ports.conversion import History

Rows = Sequence[tuple[PastJob, Fit]]
_NOWHERE = Place("-", "-")
_HOUR_S = 3600
_KINDS = 40
"""Maximum rows of a table. CSV and JSON have every job."""
_CSV = (
    "job", "user", "account", "name", "partition", "state", "started", "nodes", "cpus", "gpus", "gpu_type",
    "memory_mib", "elapsed_s", "gpu_hours", "cpu_hours", "cost", "currency", "place", "verdict", "reasons",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Weighed:
    """Past jobs with their best places."""

    rows: Rows
    unread: Sequence[Unread]
    """Rows of the accounting that could not be read."""
    whose: str
    """The user or account of the jobs."""
    day: str
    """The first day."""


def weigh(jobs: Sequence[PastJob], places: Sequence[Place]) -> list[tuple[PastJob, Fit]]:
    """Return each job with its best place."""
    nowhere = Fit(_NOWHERE, Verdict.NOT, ("there is no place to send it to",))
    return [(job, best_fit(job, places) or nowhere) for job in jobs]


def cost_of(job: PastJob, rates: Rates) -> float:
    """Return what the job would have cost."""
    return rates.cost(job.gpu_s * rates.part_of_gpu(job.gpu_type), job.cpu_s, job.gpu_type)


def unread_sentence(unread: Sequence[Unread]) -> str:
    """Return a sentence about the rows of the accounting that could not be read."""
    are = "is" if len(unread) == 1 else "are"
    rows = counted(len(unread), "row")
    return f"{rows} of the accounting could not be read and {are} not included; report this to your administrators."


def document_of(weighed: Weighed, places: Sequence[Place], rates: Rates) -> Document:
    """Return the report as a document."""
    rows = weighed.rows
    counts = {verdict: sum(fit.verdict is verdict for _, fit in rows) for verdict in Verdict}
    jobs = [job for job, _ in rows]
    about = [
        f"Jobs: {weighed.whose}, since {weighed.day}.",
        f"{counted(len(jobs), 'job')}, {_hours(sum(job.gpu_s for job in jobs))} GPU-hours, "
        f"{_hours(sum(job.cpu_s for job in jobs))} CPU-hours.",
        f"{counts[Verdict.RUNS]} would run as they are, {counts[Verdict.LOSS]} with a loss, {counts[Verdict.NOT]} not.",
    ]
    if weighed.unread:
        about.append(unread_sentence(weighed.unread))
    if rates.is_set:
        total = sum(cost_of(job, rates) for job, fit in rows if fit.verdict is not Verdict.NOT)
        about.append(f"Those that would run come to {total:.2f} {rates.currency} (rates: {rates}).")
    else:
        about.append("No prices are set; [rates] of the configuration has them.")
    about.append("Jobs run in an image. It must contain what they loaded as environment modules.")
    return Document(
        "Moving past jobs",
        tuple(about),
        (
            Section("Where they would run", tables=(_by_place(jobs, places, rates),)),
            Section("Kinds of jobs", tables=(_by_kind(rows, rates),)),
            Section("Losses", tables=(_by_reason(rows, Verdict.LOSS),)),
            Section("What would not run", tables=(_by_reason(rows, Verdict.NOT),)),
            Section("Rows that could not be read", tables=(_unread(weighed.unread),)),
        ),
    )


def _by_place(jobs: Sequence[PastJob], places: Sequence[Place], rates: Rates) -> Table:
    """Return a table of the places, each as if it were the only one."""
    rows = []
    for place in places:
        fits = [(job, judge(job, place).verdict) for job in jobs]
        there = [job for job, verdict in fits if verdict is not Verdict.NOT]
        counts = [float(sum(found is verdict for _, found in fits)) for verdict in Verdict]
        rows.append(
            _priced(
                [place.name, place.backend, *counts, _hours_of(there)], sum(cost_of(job, rates) for job in there), rates
            )
        )
    columns = [
        Column("place"), Column("backend"), Column("run", 0), Column("with loss", 0), Column("do not run", 0),
        Column("GPU-hours that run", 1),
    ]  # fmt: skip
    return Table("", _with_price(columns, rates), tuple(rows), "Each place is taken as if it were the only one.")


def _by_kind(weighed: Rows, rates: Rates) -> Table:
    kinds: dict[tuple[str, str, str, str], list[PastJob]] = defaultdict(list)
    for job, fit in weighed:
        kinds[job.partition, _shape(job), fit.place.name, str(fit.verdict)].append(job)
    ranked = sorted(
        kinds.items(), key=lambda one: (-sum(j.gpu_s for j in one[1]), -sum(j.cpu_s for j in one[1]), one[0])
    )
    rows = []
    for (partition, shape, place, verdict), jobs in ranked[:_KINDS]:
        cells: list[Cell] = [partition, shape, float(len(jobs)), _hours_of(jobs), place, verdict]
        rows.append(_priced(cells, sum(cost_of(job, rates) for job in jobs), rates))
    columns = [
        Column("partition"), Column("each job"), Column("jobs", 0), Column("GPU-hours", 1), Column("best place"),
        Column("there it"),
    ]  # fmt: skip
    rest = len(ranked) - _KINDS
    note = f"{counted(rest, 'further kind')} not shown; --format csv has every job." if rest > 0 else ""
    return Table("", _with_price(columns, rates), tuple(rows), note)


def _by_reason(weighed: Rows, verdict: Verdict) -> Table:
    found: dict[str, list[PastJob]] = defaultdict(list)
    for job, fit in weighed:
        if fit.verdict is verdict:
            for reason in fit.reasons:
                found[f"{fit.place.name}: {reason}"].append(job)
    ranked = sorted(found.items(), key=lambda one: (-len(one[1]), one[0]))
    rows = tuple((reason, float(len(jobs)), _hours_of(jobs), jobs[0].id) for reason, jobs in ranked)
    return Table("", (Column("why"), Column("jobs", 0), Column("GPU-hours", 1), Column("for example")), rows)


def _unread(unread: Sequence[Unread]) -> Table:
    rows = tuple((one.row, one.why) for one in unread[:_KINDS])
    rest = len(unread) - _KINDS
    note = f"{counted(rest, 'further row')} not shown; --format json has every one." if rest > 0 else ""
    return Table("", (Column("job"), Column("why")), rows, note)


def _shape(job: PastJob) -> str:
    parts = [counted(job.nodes, "node"), counted(job.cpus, "CPU")]
    if job.gpus:
        parts.append(f"{counted(job.gpus, 'GPU')}{f' {job.gpu_type}' if job.gpu_type else ''}")
    return ", ".join(parts)


def _with_price(columns: list[Column], rates: Rates) -> tuple[Column, ...]:
    return (*columns, Column(f"cost {rates.currency}".strip(), 2)) if rates.is_set else tuple(columns)


def _priced(cells: list[Cell], cost: float, rates: Rates) -> tuple[Cell, ...]:
    return (*cells, cost) if rates.is_set else tuple(cells)


def _hours_of(jobs: Sequence[PastJob]) -> float:
    return sum(job.gpu_s for job in jobs) / _HOUR_S


def _hours(seconds: int) -> str:
    return f"{seconds / _HOUR_S:.1f}"


def csv_lines(weighed: Rows, rates: Rates) -> Iterator[str]:
    """Yield a header and a row for each job."""
    rows = [_row(job, fit, rates) for job, fit in weighed]
    buffer = io.StringIO()
    write_csv(buffer, _CSV, ([_in_line(row[name]) for name in _CSV] for row in rows))
    yield from buffer.getvalue().removesuffix("\n").split("\n")


def _in_line(cell: object) -> object:
    return printable(cell).replace("\n", " ") if isinstance(cell, str) else cell


def _row(job: PastJob, fit: Fit, rates: Rates) -> dict[str, object]:
    return {
        "job": job.id,
        "user": job.user,
        "account": job.account,
        "name": job.name,
        "partition": job.partition,
        "state": job.state,
        "started": job.started,
        "nodes": job.nodes,
        "cpus": job.cpus,
        "gpus": job.gpus,
        "gpu_type": job.gpu_type,
        "memory_mib": job.memory_mib,
        "elapsed_s": job.elapsed_s,
        "gpu_hours": round(job.gpu_s / _HOUR_S, 4),
        "cpu_hours": round(job.cpu_s / _HOUR_S, 4),
        "cost": round(cost_of(job, rates), 4) if rates.is_set else None,
        "currency": rates.currency,
        "place": fit.place.name,
        "verdict": str(fit.verdict),
        "reasons": "; ".join(fit.reasons),
    }


def plain_of(weighed: Weighed, places: Sequence[Place], rates: Rates) -> dict[str, object]:
    """Return the report as a JSON document."""
    return {
        "schema": SCHEMA,
        "jobs_of": weighed.whose,
        "since": weighed.day,
        "places": [{"name": place.name, "backend": place.backend, "limit_s": place.limit_s} for place in places],
        "counts": {str(verdict): sum(fit.verdict is verdict for _, fit in weighed.rows) for verdict in Verdict},
        "jobs": [{**_row(job, fit, rates), "reasons": list(fit.reasons)} for job, fit in weighed.rows],
        "unread": [{"row": one.row, "why": one.why} for one in weighed.unread],
    }


_SHOWN = 5
"""Maximum unreadable rows on standard error. The report has more of them, JSON all."""


def print_history_report(
    *, user: str, account: str, since: float, backends: Sequence[str], form: str, output: str
) -> int:  # fmt: skip
    """Read the past jobs, find their places, and write the report."""
    from ffdl_batch.cli.commands.config import settings_or_stop

    if user and account:
        raise click.UsageError("--user and --account: give one of them")
    settings = settings_or_stop()
    day = time.strftime("%Y-%m-%d", time.localtime(since))
    past, places = _ask(settings, user, account, day, backends)
    whose = f"user {user}" if user else f"account {account}" if account else "yours"
    lines = render(past, places, settings.rates, form, (whose, day))
    with open_output(output) as file:
        file.writelines(f"{line}\n" for line in lines)
    _print_unread(past.unread)
    for odd in (one for place in places for one in place.unread):
        complain(f"warning: nodes with an unreadable row are left out: {odd.why}".replace("\n", " "))
    return ExitCode.OK


def _print_unread(unread: Sequence[Unread]) -> None:
    """Print a warning about rows that the report leaves out."""
    if not unread:
        return
    complain(f"warning: {unread_sentence(unread)}")
    for one in unread[:_SHOWN]:
        complain(f"warning: {one.row}: {one.why}".replace("\n", " "))
    if len(unread) > _SHOWN:
        complain(f"warning: and {len(unread) - _SHOWN} more; --format json lists all")


def _ask(
    settings: Settings, user: str, account: str, day: str, backends: Sequence[str]
) -> tuple[PastJobs, list[Place]]:
    """Return the jobs, and the places of the named backends, or of all configured ones if none is named."""
    from ffdl_batch.domain.job.past_job import HistoryMissing, HistoryUnknown, Period
    from ffdl_batch.plugins import history_names

    wanted = backends or [name for name in history_names() if name == "slurm" or name in settings.backends]
    past: PastJobs | None = None
    places: list[Place] = []
    try:
        for name in wanted:
            places += _opened(settings, name).places()
        for name in history_names():
            found = _opened(settings, name)
            if past is None:
                past = found.past_jobs(Period(day, user, account))
    except HistoryMissing as error:
        raise Stop(ExitCode.UNAVAILABLE, f"the history cannot be read: {error}") from None
    except HistoryUnknown as error:
        raise Stop(ExitCode.TRY_AGAIN, f"the history cannot be read: {error}") from None
    if past is None:
        raise Stop(ExitCode.FAILED, "no installed backend keeps a history of jobs")
    return past, places


def _opened(settings: Settings, name: str) -> History:
    """Return the history of a backend. Raises Stop if its configuration is invalid."""
    from ffdl_batch.cli.commands.config import unusable_table
    from ffdl_batch.domain.scheduler_errors import InvalidRequest
    from ffdl_batch.plugins import open_history

    try:
        return open_history(name, settings.backend_settings(name))
    except InvalidRequest as error:
        raise unusable_table(settings, name, error) from None


def render(
    past: PastJobs, places: Sequence[Place], rates: Rates, form: str, about: tuple[str, str]
) -> Iterator[str]:  # fmt: skip
    """Yield the lines of the report in one of FORMATS. `about` is the user or account of the jobs, and the first
    day."""
    from ffdl_batch.cli.render.document import markdown_lines, text_lines
    from ffdl_batch.cli.render.document_html import html_page

    weighed = Weighed(weigh(past.jobs, places), past.unread, *about)
    if form == "csv":
        yield from csv_lines(weighed.rows, rates)
    elif form == "json":
        yield json_text(plain_of(weighed, places, rates))
    else:
        document = document_of(weighed, places, rates)
        if form == "html":
            yield html_page(document).rstrip("\n")
        else:
            yield from markdown_lines(document) if form == "markdown" else text_lines(document)
