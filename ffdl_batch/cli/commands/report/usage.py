"""``ffdl report usage``."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING

import click

from ffdl_batch.cli.commands.report.usage_document import Period, local, read_period, span
from ffdl_batch.cli.connection import open_client
from ffdl_batch.cli.options.output_file import check_written, writing
from ffdl_batch.cli.render.document import Cell, Document, Section, number_column, table_of, text_column, write_csv
from ffdl_batch.cli.render.formatting import print_json, read_moment, read_span
from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.domain.metrics.usage_report import Agreement, AgreementRow
from ffdl_batch.domain.number_text import counted
from ffdl_batch.output import data_output

if TYPE_CHECKING:
    from ffdl_batch.client.api_calls.reports import Reports
    from ffdl_batch.domain.metrics.usage_report import JobUse


COMPARISON_COLUMNS = (
    "job", "native_ids", "runs", "ours_s", "theirs_s", "ours_gpu_s", "theirs_gpu_s", "known", "differs", "why",
)  # fmt: skip


def agreement_document(found: Agreement, period: Period, tolerance_s: float) -> Document:
    """Sums, and the jobs that differ."""
    columns = (text_column("JOB"), text_column("SCHEDULER'S"), number_column("RUNS"), number_column("OURS s"),
               number_column("THEIRS s"), number_column("OURS GPU-s"), number_column("THEIRS GPU-s"),
               number_column("DIFFERENCE"), text_column(""))  # fmt: skip
    return Document(
        f"Agreement with the accounting, {period.name}",
        _sentences(found, tolerance_s),
        (Section("Jobs that differ", (), (table_of("", columns, [_row(row) for row in found.rows]),)),),
    )


def _sentences(found: Agreement, tolerance_s: float) -> tuple[str, ...]:
    said = []
    if found.without:
        said.append(f"No accounts are kept by {', '.join(found.without)}: jobs there are compared with nothing.")
    if not found.backends:
        return (*said, "There is nothing to compare with.")
    said.append(
        f"{counted(found.compared, 'job')} compared with the accounting of {', '.join(found.backends)}: "
        f"{found.differing} differ by more than {span(tolerance_s)} a run, {found.unknown} are unknown to it. "
        "Whole jobs are compared, not their parts in the period."
    )
    hours = f"GPU-hours: {found.ours_gpu_hours:.3f} ours, {found.theirs_gpu_hours:.3f} theirs"
    part = "" if found.gpus_counted == found.compared else f", of the {found.gpus_counted} whose GPUs it counts"
    said.append(f"{hours}{part}.")
    if found.running:
        said.append(f"{counted(found.running, 'job')} left out: they have not ended.")
    shown = found.differing + found.unknown
    if shown > len(found.rows):
        said.append(f"The {len(found.rows)} largest of {shown} differences are shown.")
    return tuple(said)


def _row(row: AgreementRow) -> tuple[Cell, ...]:
    theirs = row.theirs_s if row.known else None
    difference = None
    if row.known:
        has_gpus = row.theirs_gpu_s is not None and (row.theirs_gpu_s or row.ours_gpu_s)
        difference = row.ours_gpu_s - (row.theirs_gpu_s or 0.0) if has_gpus else row.ours_s - row.theirs_s
    word = "" if row.known else f"unknown: {row.why}" if row.why else "unknown there"
    ids = ",".join(row.native_ids)
    return (row.job, ids, row.runs, row.ours_s, theirs, row.ours_gpu_s, row.theirs_gpu_s, difference, word)


def write_agreement_csv(file: IO[str], found: Agreement) -> None:
    """The same jobs as rows."""
    rows = (
        (row.job, " ".join(row.native_ids), row.runs, f"{row.ours_s:.3f}", f"{row.theirs_s:.3f}",
         f"{row.ours_gpu_s:.3f}", None if row.theirs_gpu_s is None else f"{row.theirs_gpu_s:.3f}",
         str(row.known).lower(), str(row.differs).lower(), row.why)
        for row in found.rows
    )  # fmt: skip
    write_csv(file, COMPARISON_COLUMNS, rows)


FORMATS = ("text", "json", "csv", "markdown", "html")
CSV_COLUMNS = (
    "period_from", "period_until", "job", "array", "name", "user", "uid", "account", "framework", "framework_version",
    "backend", "gpu_type", "learners", "gpus_per_learner", "attempts", "state", "error_code", "submitted", "started",
    "ended", "queued_s", "gpu_hours", "cpu_hours", "lost_gpu_hours", "cost", "currency",
)  # fmt: skip
"""Stable: new ones come at the end, none changes its meaning."""
_GROUPS = ("tenant", "user", "framework")
_HELP = {"help_option_names": ["-h", "--help"]}


@click.command(
    context_settings=_HELP,
    epilog="Example: ffdl report usage --month 2026-11 --by framework --format html --output november.html",
)
@click.option("--month", metavar="YYYY-MM", help="A month of local time; this month is the default.")
@click.option("-S", "--since", metavar="MOMENT", callback=read_moment, help="From then on: 7d, 2026-11-01, yesterday.")
@click.option("--until", metavar="MOMENT", callback=read_moment, help="To before then; now by default.")
@click.option("--by", type=click.Choice(_GROUPS), multiple=True, help="Only these sums; all three by default.")
@click.option("-a", "--all-users", is_flag=True, help="Everybody's jobs; for administrators.")
@click.option("--format", "form", type=click.Choice(FORMATS), default="text", show_default=True,
              help="csv has one row for each job, for accounting.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="The same as --format json.")
@click.option("-o", "--output", metavar="FILE", default="-", callback=check_written, help="Write it there.")
@click.option(
    "--check",
    is_flag=True,
    help="Compare with the scheduler's accounting instead; exit code 1: it differs, 69: there is none.",
)
@click.option("--tolerance", metavar="SPAN", default="30s", callback=read_span, show_default=True,
              help="With --check: what each run may differ by.")  # fmt: skip
def usage(  # noqa: PLR0913  (one parameter per option)
    *,
    month: str | None,
    since: float | None,
    until: float | None,
    by: Sequence[str],
    all_users: bool,
    form: str,
    as_json: bool,
    output: str,
    check: bool,
    tolerance: float,
) -> int:
    """Who used what: GPU-hours and CPU-hours by tenant, user and framework; jobs by framework, GPUs per learner and
    learners per job; queueing, download and processing times; how much GPUs were at work; what was wasted, by cause;
    and what it cost by [rates] of the configuration.

    Jobs count with the part of them that lies in the period; what runs counts up to now.
    """
    if as_json and form not in ("text", "json"):
        raise click.UsageError(f"--json and --format {form} exclude each other")
    form = "json" if as_json else form
    if by and form == "csv":
        raise click.UsageError("--by chooses sums; --format csv has one row for each job")
    if by and check:
        raise click.UsageError("--by chooses sums; --check compares jobs")
    period = read_period(month, since, until, time.time())
    with open_client() as client:
        if check:
            return _check(client.reports, period, tolerance, form, output, all_users=all_users)
        if form == "csv":
            _write_csv(client.reports, period, output, all_users=all_users)
            return ExitCode.OK
        found = client.reports.usage(period.since, period.until, all_users=all_users)
    with _opened(output) as file:
        if form == "json":
            print_json({"usage": found}, file)
        else:
            from ffdl_batch.cli.commands.report.usage_document import usage_document
            from ffdl_batch.cli.render.document_html import write_document

            write_document(usage_document(found, period, by or _GROUPS), form, file)
    return ExitCode.OK


@contextmanager
def _opened(output: str) -> Iterator[IO[str]]:
    """Standard output, or the file, which appears whole."""
    with writing(output) as path:
        if path == "-":
            yield data_output()
        else:
            with open(path, "w", encoding="utf-8", newline="") as file:  # noqa: PTH123
                yield file


def _write_csv(reports: Reports, period: Period, output: str, *, all_users: bool) -> None:
    from ffdl_batch.cli.render.document import write_csv

    with _opened(output) as file:
        uses = reports.job_uses(period.since, period.until, all_users=all_users)
        write_csv(file, CSV_COLUMNS, csv_rows(uses, period))


def csv_rows(uses: Iterable[JobUse], period: Period) -> Iterator[tuple[object, ...]]:
    """In the order of CSV_COLUMNS. Moments are local time with the distance from UTC; hours have six digits."""
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
    with _opened(output) as file:
        if form == "json":
            print_json({"agreement": found}, file)
        else:
            pass  # merged
            from ffdl_batch.cli.render.document_html import write_document

            if form == "csv":
                write_agreement_csv(file, found)
            else:
                write_document(agreement_document(found, period, tolerance_s), form, file)
    if found.without and not found.backends:
        return ExitCode.UNAVAILABLE
    return ExitCode.FAILED if found.differing or found.unknown else ExitCode.OK
