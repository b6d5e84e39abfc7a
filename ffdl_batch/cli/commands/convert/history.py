"""``ffdl convert --history``: which past jobs would run where, with what loss, and at what price. Asks the scheduler's
accounting, and no daemon."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ffdl_batch.cli.exit_handling import Stop, complain
from ffdl_batch.cli.options.output_file import writing
from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.domain.terminal_text import json_text
from ffdl_batch.output import data_output

if TYPE_CHECKING:
    from ffdl_batch.config import Settings
    from ffdl_batch.domain.job.past_job import PastJobs, Place, Unread
    from ffdl_batch.domain.metrics.rates import Rates

FORMATS = ("text", "json", "csv", "markdown", "html")
_SHOWN = 5
"""So many rows that could not be read are named on standard error; the report has more of them, JSON all."""


def tell_history(
    *, user: str, account: str, since: float, backends: Sequence[str], form: str, output: str
) -> int:  # fmt: skip
    """Ask, judge, and write the report."""
    from ffdl_batch.cli.commands.config import settings_or_stop

    if user and account:
        raise click.UsageError("--user and --account: give one of them")
    settings = settings_or_stop()
    day = time.strftime("%Y-%m-%d", time.localtime(since))
    past, places = _ask(settings, user, account, day, backends)
    whose = f"user {user}" if user else f"account {account}" if account else "yours"
    lines = render(past, places, settings.rates, form, (whose, day))
    if output == "-":
        for line in lines:
            click.echo(line, file=data_output())
    else:
        with writing(output) as name:
            Path(name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    _tell_unread(past.unread)
    for odd in (one for place in places for one in place.unread):
        complain(f"warning: nodes are left out, a row of which cannot be read: {odd.why}".replace("\n", " "))
    return ExitCode.OK


def _tell_unread(unread: Sequence[Unread]) -> None:
    """What the report leaves out, on standard error."""
    from ffdl_batch.cli.commands.convert.history_report import unread_sentence

    if not unread:
        return
    complain(f"warning: {unread_sentence(unread)}")
    for one in unread[:_SHOWN]:
        complain(f"warning: {one.row}: {one.why}".replace("\n", " "))
    if len(unread) > _SHOWN:
        complain(f"warning: and {len(unread) - _SHOWN} more; --format json names them all")


def _ask(
    settings: Settings, user: str, account: str, day: str, backends: Sequence[str]
) -> tuple[PastJobs, list[Place]]:
    """The jobs, and all places of the named backends; of none named, those of each that is configured."""
    from ffdl_batch.ports.job_history import (
        HistoryMissing,
        HistoryUnknown,
        KnowsJobs,
        KnowsPlaces,
        Period,
        history_names,
    )

    wanted = backends or [name for name in history_names() if name == "slurm" or name in settings.backends]
    past: PastJobs | None = None
    places: list[Place] = []
    try:
        for name in wanted:
            found = _opened(settings, name)
            if isinstance(found, KnowsPlaces):
                places += found.places()
        for name in history_names():
            found = _opened(settings, name)
            if past is None and isinstance(found, KnowsJobs):
                past = found.past_jobs(Period(day, user, account))
    except HistoryMissing as error:
        raise Stop(ExitCode.UNAVAILABLE, f"the history cannot be told: {error}") from None
    except HistoryUnknown as error:
        raise Stop(ExitCode.TRY_AGAIN, f"the history cannot be told: {error}") from None
    if past is None:
        raise Stop(ExitCode.FAILED, "no installed backend keeps a history of jobs")
    return past, places


def _opened(settings: Settings, name: str) -> object:
    """What the backend of that name knows."""
    from ffdl_batch.cli.commands.config import unusable_table
    from ffdl_batch.ports.job_history import open_history
    from ffdl_batch.ports.scheduler import InvalidRequest

    try:
        return open_history(name, settings.backend_settings(name))
    except InvalidRequest as error:
        raise unusable_table(settings, name, error) from None


def render(
    past: PastJobs, places: Sequence[Place], rates: Rates, form: str, about: tuple[str, str]
) -> Iterator[str]:  # fmt: skip
    """The report's lines in one of FORMATS. `about` is whose jobs, and since which day."""
    from ffdl_batch.cli.commands.convert.history_report import Weighed, csv_lines, document_of, plain_of, weigh
    from ffdl_batch.cli.render.document_html import html_page
    from ffdl_batch.cli.render.document_text import markdown_lines, text_lines

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
