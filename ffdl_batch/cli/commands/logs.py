"""``ffdl logs``, and ``ffdl loglines`` in the format of FfDL's command line."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from ffdl_batch.cli.arrays import elements_of, is_array
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
from ffdl_batch.domain.number_text import counted
from ffdl_batch.exit_handling import complain, detachable
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.option_types import WholeNumber
from ffdl_batch.output import echo_styled

if TYPE_CHECKING:
    from ffdl_batch.client import Client, Grep
    from ffdl_batch.domain.job.log_text import LogText
    from ffdl_batch.domain.job.views import AttemptChoice, JobView

_CONTEXT = WholeNumber(0, 1000)
_MOST_FOLLOWED = 200
"""Jobs of an array whose output is followed at once; the daemon sends at most 256 streams."""
_SILENCE_S = 3600.0


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
    its attempt: [attempt 1], or [1.2] for learner 2 of attempt 1. Of an array, the lines of all jobs are shown, each
    with the index of its job before, such as [_3].
    """
    _check_raw(raw=raw, as_json=as_json)
    if by_learner and follow:
        raise click.UsageError("--by-learner and --follow exclude each other")
    before, after = max(before_context, context), max(after_context, context)
    if pattern is None and (ignore_case or invert_match or fixed_strings or before or after):
        raise click.UsageError("-i, -v, -F, -A, -B and -C need --grep")
    grep = None if pattern is None else _grep(pattern, ignore_case, invert_match, fixed_strings, before, after)
    asked = _Asked(follow, learner, since, tail, attempt, grep)
    names = LineNames(learner=False, attempt=attempt == "all")

    def printer(learners: int) -> LinePrinter:
        labels = replace(names, learner=learners > 1 and learner is None)
        return LinePrinter(labels, timestamps=timestamps, as_json=as_json, separate=bool(before or after), colours=raw)

    with open_client() as client, detachable([job_id := job_or_newest(client, job_id)], f"ffdl logs -f {job_id}"):
        if is_array(job_id):
            if by_learner:
                raise click.UsageError(f"--by-learner needs one job, as {job_id}_INDEX")
            _print_array(client, asked, job_id, printer)
            return
        job = client.get(job_id)
        learners = max(job.learners, *(one.learners for one in job.attempts), 0)
        notes = AttemptNotes(job, attempt)
        if follow:
            print_pending_reason(job)
        for which in range(1, learners + 1) if by_learner and learner is None else [learner]:
            lines = replace(asked, learner=which, attempt=attempt or notes.shown).lines(client, job_id)
            if asked.is_whole and which is None:
                lines = explain_no_lines(lambda: _why_empty(client, job_id, attempt), lines)
            printer(learners).print(notes.watch(warn_of_lost_lines(lines) if asked.is_whole else lines))


@dataclass(frozen=True, slots=True)
class _Asked:
    """Which lines of a job are printed."""

    follow: bool
    learner: int | None
    since: float | None
    tail: int | None
    attempt: AttemptChoice
    grep: Grep | None

    @property
    def is_whole(self) -> bool:
        """Whether all lines are printed."""
        return self.since is None and self.tail is None and self.grep is None

    def lines(self, client: Client, job_id: str) -> Iterator[LogText]:
        """Return the lines of a job."""
        return client.log_texts(
            job_id, follow=self.follow, learner=self.learner, since=self.since, tail=self.tail, attempt=self.attempt,
            grep=self.grep,
        )  # fmt: skip


def _print_array(client: Client, asked: _Asked, array: str, printer: Callable[[int], LinePrinter]) -> None:
    """Print the lines of all jobs of an array: one job after the other, or as they arrive with --follow."""
    jobs = elements_of(client, array)
    silent = {job.id for job in jobs}

    def noted(lines: Iterator[tuple[JobView, LogText]]) -> Iterator[tuple[JobView, LogText]]:
        for job, text in lines:
            silent.discard(job.id)
            yield job, text

    read = _arriving(asked, array, jobs) if asked.follow else _in_order(client, asked, jobs)
    printer(max(job.learners for job in jobs)).print_array(noted(read))
    if silent and asked.is_whole:
        complain(
            f"{len(silent)} of {counted(len(jobs), 'job')} have no output; for the reason: ffdl logs {array}_INDEX"
        )


def _in_order(client: Client, asked: _Asked, jobs: Sequence[JobView]) -> Iterator[tuple[JobView, LogText]]:
    return ((job, text) for job in jobs for text in asked.lines(client, job.id))


def _arriving(asked: _Asked, array: str, jobs: Sequence[JobView]) -> Iterator[tuple[JobView, LogText]]:
    from ffdl_batch.cli.parallel_streams import ParallelStreams

    if len(jobs) > _MOST_FOLLOWED:
        raise click.UsageError(
            f"--follow reads at most {_MOST_FOLLOWED} jobs at once, and {array} has {len(jobs)}; name one, as "
            f"{array}_{jobs[0].array_index}"
        )

    def stream(job_id: str) -> Iterator[LogText]:
        with open_client(quiet=True) as client:
            yield from asked.lines(client, job_id)

    by_id = {job.id: job for job in jobs}
    with closing(ParallelStreams({job_id: partial(stream, job_id) for job_id in by_id})) as streams:
        yield from ((by_id[job_id], text) for job_id, text in streams.lines(_SILENCE_S) if text is not None)


def follow_log(client: Client, job_id: str, *, as_json: bool) -> None:
    """Print the output of a job, or of an array, until it ends, as ``ffdl logs -f`` does."""
    if is_array(job_id):
        asked = _Asked(follow=True, learner=None, since=None, tail=None, attempt=None, grep=None)
        _print_array(client, asked, job_id, lambda learners: _plain_printer(learners, as_json=as_json))
        return
    job = client.get(job_id)
    print_pending_reason(job)
    lines = explain_no_lines(lambda: _why_empty(client, job_id, None), client.log_texts(job_id, follow=True))
    _plain_printer(job.learners, as_json=as_json).print(AttemptNotes(job, None).watch(warn_of_lost_lines(lines)))


def _plain_printer(learners: int, *, as_json: bool) -> LinePrinter:
    return LinePrinter(LineNames(learner=learners > 1, attempt=False), timestamps=False, as_json=as_json)


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
