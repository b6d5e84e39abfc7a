"""``ffdl logs``, and ``ffdl loglines`` as FfDL's command line has it."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING

import click

from ffdl_batch.cli.connection import open_client
from ffdl_batch.cli.outcome import detachable
from ffdl_batch.cli.present import format_time, is_colourful, print_json, printable, read_moment
from ffdl_batch.cli.which_attempt import AttemptTeller, LineNames, attempt_option

if TYPE_CHECKING:
    from ffdl_batch.client import Client
    from ffdl_batch.domain.views import AttemptChoice, LogLine

_COLOUR = re.compile(r"(\x1b\[[0-9;]*m)")
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
@click.option("--timestamps", is_flag=True, help="The time in front of each line, where it is known.")
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
    timestamps: bool,
    as_json: bool,
) -> None:
    """The learners' output, while the job runs and after.

    With several learners, each line names its own as [2]; with --attempt all, also its attempt: [attempt 1], or [1.2]
    for learner 2 of attempt 1.
    """

    if by_learner and follow:
        raise click.UsageError("--by-learner and --follow exclude each other: the first learner's output never ends")
    with open_client() as client, detachable([job_id], f"ffdl logs -f {job_id}"):
        job = client.get(job_id)
        names = LineNames(learner=job.learners > 1 and learner is None, attempt=attempt == "all")
        teller = AttemptTeller(job, attempt)
        wanted = range(1, job.learners + 1) if by_learner and learner is None else [learner]
        for which in wanted:
            lines = client.logs(
                job_id, follow=follow, learner=which, since=since, tail=tail, attempt=attempt or teller.shown
            )
            print_lines(teller.listen(lines), names, timestamps=timestamps, as_json=as_json)


def print_lines(lines: Iterable[LogLine], names: LineNames, *, timestamps: bool, as_json: bool) -> None:
    """Print as they come; a terminal gets no control characters, a pipe gets the lines as they are."""
    terminal = is_terminal()
    for line in lines:
        if as_json:
            print_json({"line": line})
            continue
        when = f"{format_time(line.at)} " if timestamps else ""
        click.echo(f"{when}{names.of(line)}{keep_colours(line.line) if terminal else line.line}", color=True)


def is_terminal() -> bool:
    """Whether standard output is a terminal."""
    return sys.stdout.isatty()


def keep_colours(text: str) -> str:
    """A log line for a terminal: its colours may stay, everything else that steers a terminal goes.

    A carriage return means that what follows overwrote the line (a progress bar): its last stage is shown.
    """
    last = text.rstrip("\r").rpartition("\r")[2]
    if "\x1b" not in last:
        return printable(last)
    parts = _COLOUR.split(last)
    if not is_colourful():
        return "".join(printable(part) for part in parts[::2])
    return "".join(part if odd % 2 else printable(part) for odd, part in enumerate(parts)) + "\x1b[0m"


@click.command(context_settings=_HELP)
@click.argument("job_id", metavar="ID")
@click.option("-f", "--follow", is_flag=True, help="Go on until the job has ended, over all attempts.")
@attempt_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON, one line per line.")
@click.option("--pagesize", type=click.IntRange(1), help="At most so many lines; all without it.")
@click.option("--pos", type=int, default=0, help="First line by number; a negative one counts from the end.")
@click.option("--since", metavar="MOMENT", callback=read_moment, help="Only lines since; --pos is not looked at then.")
@click.option("--learner", type=click.IntRange(1), default=1, show_default=True, help="Whose lines.")
def loglines(  # noqa: PLR0913  (one parameter per option)
    *,
    job_id: str,
    follow: bool,
    attempt: AttemptChoice,
    as_json: bool,
    pagesize: int | None,
    pos: int,
    since: float | None,
    learner: int,
) -> None:
    """One learner's output as FfDL prints it: number, time in milliseconds, line.

    Each attempt counts from 1. With --attempt all, [attempt N] stands in front, and --pos is of each attempt.
    """

    if follow and (pagesize is not None or pos < 0):
        raise click.UsageError("--follow goes with neither --pagesize nor a negative --pos")
    names = LineNames(learner=False, attempt=attempt == "all")
    with open_client() as client, detachable([job_id], f"ffdl loglines -f {job_id}"):
        teller = AttemptTeller(client.get(job_id), attempt)
        page = _page(client, job_id, learner, follow=follow, attempt=attempt, pagesize=pagesize, pos=pos, since=since)
        for line in teller.listen(page):
            if as_json:
                print_json({"line": line})
            else:
                milliseconds = "N/A" if line.at is None else str(round(line.at * 1000))
                text = keep_colours(line.line) if is_terminal() else line.line
                click.echo(f"{names.of(line)}{line.index} {milliseconds} {text}", color=True)


def _page(  # noqa: PLR0913  (FfDL's paging parameters)
    client: Client,
    job_id: str,
    learner: int,
    *,
    follow: bool,
    attempt: AttemptChoice,
    pagesize: int | None,
    pos: int,
    since: float | None,
) -> Iterator[LogLine]:
    """FfDL's paging: since wins; pos > 0 starts at that number, pos < 0 so many before the end."""
    tail = -pos if pos < 0 and since is None else None
    lines: Iterable[LogLine] = client.logs(
        job_id, follow=follow, learner=learner, since=since, tail=tail, attempt=attempt
    )
    if pos > 0 and since is None:
        lines = (line for line in lines if line.index >= pos)
    return iter(islice(lines, pagesize))
