"""``ffdl logs``, and ``ffdl loglines`` as FfDL's command line has it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ffdl_batch.cli.connection import open_client
from ffdl_batch.cli.exit_handling import detachable
from ffdl_batch.cli.options.selection import AttemptTeller, LineNames, Page, attempt_option, page_options
from ffdl_batch.cli.render.formatting import print_json, read_moment
from ffdl_batch.cli.render.log_lines import (
    LinePrinter,
    explain_no_lines,
    is_terminal,
    print_pending_reason,
    raw_option,
    terminal_line,
    warn_of_lost_lines,
)
from ffdl_batch.output import echo_styled

if TYPE_CHECKING:
    from ffdl_batch.client import Grep
    from ffdl_batch.domain.job.views import AttemptChoice

_CONTEXT = click.IntRange(0, 1000)
_HELP = {"help_option_names": ["-h", "--help"]}


@click.command(context_settings=_HELP)
@click.argument("job_id", metavar="ID")
@click.option(
    "-f", "--follow", is_flag=True, help="Go on until the job has ended, over all attempts. Ctrl-C leaves it alone."
)
@attempt_option
@click.option("--learner", type=click.IntRange(1), help="Only this learner (from 1).")
@click.option("--by-learner", is_flag=True, help="One learner after the other instead of merged.")
@click.option("-S", "--since", metavar="MOMENT", callback=read_moment, help="Only lines since: 10m, 2027-01-20T12:34.")
@click.option("-n", "--tail", type=click.IntRange(0), help="Only the last lines, so many of each learner and attempt.")
@click.option("-g", "--grep", "pattern", metavar="PATTERN", help="Only lines with this regular expression (Python's).")
@click.option("-i", "--ignore-case", is_flag=True, help="Case does not matter to --grep.")
@click.option("-v", "--invert-match", is_flag=True, help="The lines without it.")
@click.option("-F", "--fixed-strings", is_flag=True, help="It is a text, no expression.")
@click.option("-A", "--after-context", type=_CONTEXT, default=0, help="And so many lines after each.")
@click.option("-B", "--before-context", type=_CONTEXT, default=0, help="And so many lines before each.")
@click.option("-C", "--context", type=_CONTEXT, default=0, help="Both.")
@click.option("--timestamps", is_flag=True, help="The time in front of each line, where it is known.")
@raw_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON, one line per line.")
def logs(  # noqa: PLR0913  (one parameter per option)
    *,
    job_id: str,
    follow: bool,
    attempt: AttemptChoice,
    learner: int | None,
    by_learner: bool,
    since: float | None,
    tail: int | None,
    pattern: str | None,
    ignore_case: bool,
    invert_match: bool,
    fixed_strings: bool,
    after_context: int,
    before_context: int,
    context: int,
    timestamps: bool,
    raw: bool,
    as_json: bool,
) -> None:
    """The learners' output, while the job runs and after.

    With --grep, -n counts lines that match; with -A, -B or -C, -- stands where lines were left out.

    With several learners, each line names its own as [2]; with --attempt all, also its attempt: [attempt 1], or [1.2]
    for learner 2 of attempt 1.
    """

    _check_raw(raw=raw, as_json=as_json)
    if by_learner and follow:
        raise click.UsageError("--by-learner and --follow exclude each other: the first learner's output never ends")
    before, after = max(before_context, context), max(after_context, context)
    if pattern is None and (ignore_case or invert_match or fixed_strings or before or after):
        raise click.UsageError("-i, -v, -F, -A, -B and -C go with --grep")
    grep = None if pattern is None else _grep(pattern, ignore_case, invert_match, fixed_strings, before, after)
    is_whole = since is None and tail is None and grep is None
    with open_client() as client, detachable([job_id], f"ffdl logs -f {job_id}"):
        job = client.get(job_id)
        names = LineNames(learner=job.learners > 1 and learner is None, attempt=attempt == "all")
        teller = AttemptTeller(job, attempt)
        if follow:
            print_pending_reason(job)
        wanted = range(1, job.learners + 1) if by_learner and learner is None else [learner]
        for which in wanted:
            shown = attempt or teller.shown
            lines = client.log_texts(
                job_id, follow=follow, learner=which, since=since, tail=tail, attempt=shown, grep=grep
            )
            printer = LinePrinter(
                names, timestamps=timestamps, as_json=as_json, separate=bool(before or after), colours=raw
            )
            told = (
                explain_no_lines(job, lines) if is_whole and which is None and not follow and attempt is None else lines
            )
            printer.print(teller.listen(warn_of_lost_lines(told) if is_whole else told))


def _check_raw(*, raw: bool, as_json: bool) -> None:
    if raw and as_json:
        raise click.UsageError("--raw and --json exclude each other: JSON has the lines as they are")


def _grep(*values: Any) -> Grep:
    from ffdl_batch.client import Grep  # late, as the client itself

    return Grep(*values)


@click.command(context_settings=_HELP)
@click.argument("job_id", metavar="ID")
@page_options("line")
@attempt_option
@raw_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON, one line per line.")
def loglines(*, job_id: str, page: Page, attempt: AttemptChoice, raw: bool, as_json: bool) -> None:
    """One learner's output as FfDL prints it: number, time in milliseconds, line.

    Each attempt counts from 1. With --attempt all, [attempt N] stands in front, and --pos is of each attempt.
    """

    _check_raw(raw=raw, as_json=as_json)
    names = LineNames(learner=False, attempt=attempt == "all")
    with open_client() as client, detachable([job_id], f"ffdl loglines -f {job_id}"):
        teller = AttemptTeller(client.get(job_id), attempt)
        lines = client.logs(
            job_id, follow=page.follow, learner=page.learner, since=page.since, tail=page.tail, attempt=attempt
        )
        for line in teller.listen(page.cut(lines, lambda line: line.index)):
            if as_json:
                print_json({"line": line})
            else:
                milliseconds = "N/A" if line.at is None else str(round(line.at * 1000))
                text = terminal_line(line.line, colours=raw) if is_terminal() else line.line
                echo_styled(f"{names.of(line)}{line.index} {milliseconds} {text}")
