"""``ffdl report usage``."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING

import click

from ffdl_batch.cli.commands.report.period import Period, local, read_period
from ffdl_batch.cli.connection import open_client
from ffdl_batch.cli.options.output_file import check_written, writing
from ffdl_batch.cli.render.formatting import print_json, read_moment, read_span
from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.output import data_output

if TYPE_CHECKING:
    from ffdl_batch.client.api_calls.reports import Reports
    from ffdl_batch.domain.metrics.usage_report import JobUse

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
            from ffdl_batch.cli.render.report_files import write_document

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
    from ffdl_batch.cli.render.document_text import write_csv

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
            from ffdl_batch.cli.commands.report.accounting_comparison import agreement_document, write_agreement_csv
            from ffdl_batch.cli.render.report_files import write_document

            if form == "csv":
                write_agreement_csv(file, found)
            else:
                write_document(agreement_document(found, period, tolerance_s), form, file)
    if found.without and not found.backends:
        return ExitCode.UNAVAILABLE
    return ExitCode.FAILED if found.differing or found.unknown else ExitCode.OK
