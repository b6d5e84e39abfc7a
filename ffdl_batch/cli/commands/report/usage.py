"""``ffdl report usage``: report usage and cost, or compare them with the scheduler's accounting."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import IO, TYPE_CHECKING

import click

from ffdl_batch.cli.commands.report.usage_document import (
    GROUPS,
    Period,
    local,
    read_period,
    site_document,
    span,
    usage_document,
)
from ffdl_batch.cli.connection import open_client, site_option
from ffdl_batch.cli.options.output import FORMATS, check_written, chosen_format, json_option, open_output
from ffdl_batch.cli.render.document import Cell, Document, Section, number_column, table_of, text_column, write_csv
from ffdl_batch.cli.render.document_html import write_document
from ffdl_batch.cli.render.formatting import print_json, read_moment, read_span
from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.domain.metrics.usage_report import NO_TENANT, Agreement, AgreementRow
from ffdl_batch.domain.number_text import counted

if TYPE_CHECKING:
    from ffdl_batch.client.api_calls.reports import Reports
    from ffdl_batch.domain.metrics.usage_report import JobUse


COMPARISON_COLUMNS = (
    "job", "native_ids", "runs", "ours_s", "theirs_s", "ours_gpu_s", "theirs_gpu_s", "known", "differs", "why",
)  # fmt: skip


def agreement_document(found: Agreement, period: Period, tolerance_s: float) -> Document:
    """Return the comparison as a document: sums, and the jobs that differ."""
    columns = (text_column("JOB"), text_column("SCHEDULER'S"), number_column("RUNS"), number_column("OURS s"),
               number_column("THEIRS s"), number_column("OURS GPU-s"), number_column("THEIRS GPU-s"),
               number_column("DIFFERENCE"), text_column(""))  # fmt: skip
    return Document(
        f"Agreement with the accounting, {period.name}",
        _sentences(found, tolerance_s),
        (Section("Jobs that differ", (), (table_of("", columns, [_row(row) for row in found.rows]),)),),
    )


def _sentences(found: Agreement, tolerance_s: float) -> tuple[str, ...]:
    sentences = []
    if found.without:
        sentences.append(f"{', '.join(found.without)} has no accounting: its jobs are not compared.")
    if not found.backends:
        return (*sentences, "There is nothing to compare with.")
    sentences.append(
        f"{counted(found.compared, 'job')} compared with the accounting of {', '.join(found.backends)}: "
        f"{found.differing} differ by more than {span(tolerance_s)} a run, {found.unknown} are unknown to it. "
        "Whole jobs are compared, not their parts in the period."
    )
    hours = f"GPU-hours: {found.ours_gpu_hours:.3f} ours, {found.theirs_gpu_hours:.3f} theirs"
    part = "" if found.gpus_counted == found.compared else f", of the {found.gpus_counted} whose GPUs it counts"
    sentences.append(f"{hours}{part}.")
    if found.running:
        sentences.append(f"{counted(found.running, 'job')} left out: not ended.")
    shown = found.differing + found.unknown
    if shown > len(found.rows):
        sentences.append(f"The {len(found.rows)} largest of {shown} differences are shown.")
    return tuple(sentences)


def _row(row: AgreementRow) -> tuple[Cell, ...]:
    theirs = row.theirs_s if row.known else None
    difference = None
    if row.known:
        has_gpus = row.theirs_gpu_s is not None and (row.theirs_gpu_s or row.ours_gpu_s)
        difference = row.ours_gpu_s - (row.theirs_gpu_s or 0.0) if has_gpus else row.ours_s - row.theirs_s
    note = "" if row.known else f"unknown: {row.why}" if row.why else "unknown there"
    ids = ",".join(row.native_ids)
    return (row.job, ids, row.runs, row.ours_s, theirs, row.ours_gpu_s, row.theirs_gpu_s, difference, note)


def write_agreement_csv(file: IO[str], found: Agreement) -> None:
    """Write the comparison as CSV."""
    rows = (
        (row.job, " ".join(row.native_ids), row.runs, f"{row.ours_s:.3f}", f"{row.theirs_s:.3f}",
         f"{row.ours_gpu_s:.3f}", None if row.theirs_gpu_s is None else f"{row.theirs_gpu_s:.3f}",
         str(row.known).lower(), str(row.differs).lower(), row.why)
        for row in found.rows
    )  # fmt: skip
    write_csv(file, COMPARISON_COLUMNS, rows)


CSV_COLUMNS = (
    "period_from", "period_until", "job", "array", "name", "user", "uid", "account", "framework", "framework_version",
    "backend", "gpu_type", "learners", "gpus_per_learner", "attempts", "state", "error_code", "submitted", "started",
    "ended", "queued_s", "gpu_hours", "cpu_hours", "lost_gpu_hours", "cost", "currency",
)  # fmt: skip
"""Stable: new columns are added at the end, and no column changes its meaning."""
SITE_COLUMNS = ("period_from", "period_until", "kind", "name", "jobs", "gpu_hours", "cpu_hours")
"""For --site: a row for each tenant and user. Stable in the same way."""


@click.command(
    epilog="Example: ffdl report usage --month 2026-11 --by framework --format html --output november.html",
)
@click.option("--month", metavar="YYYY-MM", help="Month in local time.  [default: this month]")
@click.option(
    "-S", "--since", metavar="MOMENT", callback=read_moment, help="Start of the period: 7d, 2026-11-01, yesterday."
)
@click.option("--until", metavar="MOMENT", callback=read_moment, help="End of the period.  [default: now]")
@click.option("--by", type=click.Choice(GROUPS), multiple=True, help="Group by this; repeatable.  [default: all]")
@click.option("-a", "--all-users", is_flag=True, help="Report jobs of all users; for administrators.")
@site_option
@click.option("--format", "form", type=click.Choice(FORMATS), default="text", show_default=True,
              help="Format. csv has one row for each job; with --site, one for each tenant and user.")  # fmt: skip
@json_option("Same as --format json.")
@click.option("-o", "--output", metavar="FILE", default="-", callback=check_written,
              help="Write the report to this file.")  # fmt: skip
@click.option(
    "--check",
    is_flag=True,
    help="Compare usage with the scheduler's accounting instead. Exit code 1: they differ; 69: there is none.",
)
@click.option("--tolerance", metavar="SPAN", default="30s", callback=read_span, show_default=True,
              help="With --check: tolerated difference of each run.")  # fmt: skip
def usage(  # noqa: PLR0913  (one parameter per option)
    *,
    month: str | None,
    since: float | None,
    until: float | None,
    by: Sequence[str],
    all_users: bool,
    site: bool,
    form: str,
    as_json: bool,
    output: str,
    check: bool,
    tolerance: float,
) -> int:
    """Report usage: GPU-hours and CPU-hours by tenant, user and framework; jobs by framework, GPUs per learner and
    learners per job; queueing, download and processing times; GPU utilisation; waste by cause; and the cost by [rates]
    of the configuration.

    A job counts with its part in the period. Running jobs count up to now. With --site, hours and jobs come from the
    scheduler's accounting, including jobs submitted without ffdl.
    """
    form = chosen_format(form, as_json=as_json)
    if by and form == "csv":
        raise click.UsageError("--by selects sums, but --format csv has a row for each job")
    if by and check:
        raise click.UsageError("--by selects sums, but --check compares jobs")
    period = read_period(month, since, until, time.time())
    if site:
        return _report_site(period, form, output, has_others=bool(by or check or all_users))
    with open_client() as client:
        if check:
            return _check(client.reports, period, tolerance, form, output, all_users=all_users)
        if form == "csv":
            _write_csv(client.reports, period, output, all_users=all_users)
            return ExitCode.OK
        found = client.reports.usage(period.since, period.until, all_users=all_users)
    with open_output(output) as file:
        if form == "json":
            print_json({"usage": found}, file)
        else:
            write_document(usage_document(found, period, by or GROUPS), form, file)
    return ExitCode.OK


def _report_site(period: Period, form: str, output: str, *, has_others: bool) -> int:
    if has_others:
        raise click.UsageError("--site cannot be combined with --all-users, --by or --check")
    with open_client(is_site=True) as client:
        found = client.reports.site_usage(period.since, period.until)
    with open_output(output) as file:
        if form == "json":
            print_json({"usage": found}, file)
        elif form == "csv":
            bounds = local(found.since), local(found.until)
            kinds = (("tenant", found.tenants), ("user", found.users))
            rows = (
                (
                    kind,
                    one.name if one.name != NO_TENANT else "",
                    one.jobs,
                    f"{one.gpu_hours:.6f}",
                    f"{one.cpu_hours:.6f}",
                )
                for kind, groups in kinds
                for one in groups
            )
            write_csv(file, SITE_COLUMNS, ((*bounds, *row) for row in rows))
        else:
            write_document(site_document(found, period), form, file)
    return ExitCode.OK


def _write_csv(reports: Reports, period: Period, output: str, *, all_users: bool) -> None:
    with open_output(output) as file:
        uses = reports.job_uses(period.since, period.until, all_users=all_users)
        write_csv(file, CSV_COLUMNS, csv_rows(uses, period))


def csv_rows(uses: Iterable[JobUse], period: Period) -> Iterator[tuple[object, ...]]:
    """Yield rows with CSV_COLUMNS. Times are local, with their UTC offset. Hours have six decimal places."""
    bounds = (local(period.since), local(period.until))
    for use in uses:
        moments = (_moment(use.submitted_at), _moment(use.started_at), _moment(use.ended_at))
        hours = (f"{use.gpu_hours:.6f}", f"{use.cpu_hours:.6f}", f"{use.lost_gpu_hours:.6f}")
        yield (
            *bounds, use.job, use.array, use.name, use.user, use.uid, use.account, use.framework, use.version,
            use.backend, use.gpu_type, use.learners, f"{use.gpus_per_learner:g}", use.attempts, use.state,
            use.error_code, *moments, f"{use.queued_s:.3f}", *hours, f"{use.cost:.4f}", use.currency,
        )  # fmt: skip


def _moment(at: float | None) -> str:
    return "" if at is None else local(at)


def _check(reports: Reports, period: Period, tolerance_s: float, form: str, output: str, *, all_users: bool) -> int:
    found = reports.agreement(period.since, period.until, tolerance_s=tolerance_s, all_users=all_users)
    with open_output(output) as file:
        if form == "json":
            print_json({"agreement": found}, file)
        elif form == "csv":
            write_agreement_csv(file, found)
        else:
            write_document(agreement_document(found, period, tolerance_s), form, file)
    if found.without and not found.backends:
        return ExitCode.UNAVAILABLE
    return ExitCode.FAILED if found.differing or found.unknown else ExitCode.OK
