"""``ffdl logs``, and ``ffdl loglines`` in the format of FfDL's command line."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from ffdl_batch.cli.connection import open_client
from ffdl_batch.cli.newest_job import job_or_newest
from ffdl_batch.cli.options.output import json_option
from ffdl_batch.cli.options.selection import AttemptNotes, LineNames, Page, attempt_option, page_options
from ffdl_batch.cli.render.formatting import print_json, read_moment
from ffdl_batch.cli.render.log_lines import (
    LinePrinter,
    explain_no_lines,
    explain_none,
    is_terminal,
    print_pending_reason,
    raw_option,
    terminal_line,
    warn_of_lost_lines,
)
from ffdl_batch.exit_handling import detachable
from ffdl_batch.option_types import WholeNumber
from ffdl_batch.output import echo_styled

if TYPE_CHECKING:
    from ffdl_batch.client import Client, Grep
    from ffdl_batch.domain.job.log_text import LogText
    from ffdl_batch.domain.job.views import AttemptChoice

_CONTEXT = WholeNumber(0, 1000)


@click.command()
@click.argument("job_id", metavar="[ID]", required=False)
@click.option(
    "-f",
    "--follow",
    is_flag=True,
    help="Follow the output until the job ends, over all attempts. Ctrl-C does not affect the job.",
)
@attempt_option
@click.option("--learner", type=WholeNumber(1), help="Show only this learner (from 1).")
@click.option("--by-learner", is_flag=True, help="Show one learner after the other, not merged.")
@click.option(
    "-S", "--since", metavar="MOMENT", callback=read_moment, help="Show only lines since then: 10m, 2027-01-20T12:34."
)
@click.option(
    "-n", "--tail", type=WholeNumber(0), help="Show only the last N lines of each learner and attempt.", metavar="N"
)
@click.option(
    "-g",
    "--grep",
    "pattern",
    metavar="PATTERN",
    help="Show only lines that match PATTERN, a regular expression of Python.",
)
@click.option("-i", "--ignore-case", is_flag=True, help="Ignore case in PATTERN and lines.")
@click.option("-v", "--invert-match", is_flag=True, help="Show only lines that do not match.")
@click.option("-F", "--fixed-strings", is_flag=True, help="Treat PATTERN as a fixed string.")
@click.option("-A", "--after-context", type=_CONTEXT, default=0, metavar="N", help="Show N lines after each match.")
@click.option("-B", "--before-context", type=_CONTEXT, default=0, metavar="N", help="Show N lines before each match.")
@click.option(
    "-C", "--context", type=_CONTEXT, default=0, metavar="N", help="Show N lines before and after each match."
)
@click.option("--timestamps", is_flag=True, help="Print the time before each line, if it is known.")
@raw_option
@json_option("Print JSON, one document per line.")
def logs(  # noqa: PLR0913  (one parameter per option)
    *,
    job_id: str | None,
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
    """Show the learners' output, while the job runs and afterwards. Without an ID, show that of the newest job.

    With --grep, -n counts matching lines. With -A, -B or -C, a line -- marks lines that were left out.

    If there are several learners, each line begins with its learner, such as [2]. With --attempt all, it begins with
    its attempt: [attempt 1], or [1.2] for learner 2 of attempt 1.
    """
    _check_raw(raw=raw, as_json=as_json)
    if by_learner and follow:
        raise click.UsageError("--by-learner and --follow exclude each other")
    before, after = max(before_context, context), max(after_context, context)
    if pattern is None and (ignore_case or invert_match or fixed_strings or before or after):
        raise click.UsageError("-i, -v, -F, -A, -B and -C need --grep")
    grep = None if pattern is None else _grep(pattern, ignore_case, invert_match, fixed_strings, before, after)
    is_whole = since is None and tail is None and grep is None
    with open_client() as client, detachable([job_id := job_or_newest(client, job_id)], f"ffdl logs -f {job_id}"):
        job = client.get(job_id)
        learners = max(job.learners, *(one.learners for one in job.attempts), 0)
        names = LineNames(learner=learners > 1 and learner is None, attempt=attempt == "all")
        notes = AttemptNotes(job, attempt)
        if follow:
            print_pending_reason(job)
        wanted = range(1, learners + 1) if by_learner and learner is None else [learner]
        for which in wanted:
            shown = attempt or notes.shown
            lines: Iterator[LogText] = client.log_texts(
                job_id, follow=follow, learner=which, since=since, tail=tail, attempt=shown, grep=grep
            )
            printer = LinePrinter(
                names, timestamps=timestamps, as_json=as_json, separate=bool(before or after), colours=raw
            )
            if is_whole and which is None:
                lines = explain_no_lines(lambda: _why_empty(client, job_id, attempt), lines)
            printer.print(notes.watch(warn_of_lost_lines(lines) if is_whole else lines))


def follow_log(client: Client, job_id: str, *, as_json: bool) -> None:
    """Print the output of a job until it ends, as ``ffdl logs -f`` does."""
    job = client.get(job_id)
    print_pending_reason(job)
    lines = explain_no_lines(lambda: _why_empty(client, job_id, None), client.log_texts(job_id, follow=True))
    printer = LinePrinter(LineNames(learner=job.learners > 1, attempt=False), timestamps=False, as_json=as_json)
    printer.print(AttemptNotes(job, None).watch(warn_of_lost_lines(lines)))


def _why_empty(client: Client, job_id: str, attempt: AttemptChoice) -> str:
    """Return why there is no output, from the state of the job when all was read."""
    from ffdl_batch.client import RequestRefused

    def find_lost() -> str:
        try:
            return client.output.find(job_id, "logs", attempt if isinstance(attempt, int) else None).note
        except RequestRefused as refused:
            return refused.problem.message

    return explain_none(client.get(job_id), attempt, find_lost)


def _check_raw(*, raw: bool, as_json: bool) -> None:
    if raw and as_json:
        raise click.UsageError("--raw and --json exclude each other: JSON has the unchanged lines")


def _grep(*values: Any) -> Grep:
    from ffdl_batch.client import Grep  # late, as the client itself

    return Grep(*values)


@click.command()
@click.argument("job_id", metavar="ID")
@page_options("line")
@attempt_option
@raw_option
@json_option("Print JSON, one document per line.")
def loglines(*, job_id: str, page: Page, attempt: AttemptChoice, raw: bool, as_json: bool) -> None:
    """Show one learner's output as FfDL does: number, time in milliseconds, line.

    The lines of each attempt are numbered from 1. With --attempt all, each line begins with [attempt N], and --pos
    applies to each attempt.
    """
    _check_raw(raw=raw, as_json=as_json)
    names = LineNames(learner=False, attempt=attempt == "all")
    with open_client() as client, detachable([job_id], f"ffdl loglines -f {job_id}"):
        notes = AttemptNotes(client.get(job_id), attempt)
        lines = client.logs(
            job_id, follow=page.follow, learner=page.learner, since=page.since, tail=page.tail, attempt=attempt
        )
        for line in notes.watch(page.cut(lines, lambda line: line.index)):
            if as_json:
                print_json({"line": line})
            else:
                milliseconds = "N/A" if line.at is None else str(round(line.at * 1000))
                text = terminal_line(line.line, colours=raw) if is_terminal() else line.line
                echo_styled(f"{names.of(line)}{line.index} {milliseconds} {text}")
