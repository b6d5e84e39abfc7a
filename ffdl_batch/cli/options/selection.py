"""Select attempts, learners and lines of logs by options."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

import click

from ffdl_batch.cli.exit_handling import complain
from ffdl_batch.cli.render.formatting import read_moment

if TYPE_CHECKING:
    from ffdl_batch.domain.job.log_text import LogText
    from ffdl_batch.domain.job.views import AttemptChoice, JobView, LogLine

    Lines = TypeVar("Lines", LogLine, LogText)

_NUMBER = re.compile("[1-9][0-9]{0,8}", re.ASCII)


def read_attempt(ctx: click.Context, param: click.Parameter, value: str | None) -> AttemptChoice:
    """The callback of options that choose an attempt."""
    if value is None:
        return None
    if value.lower() == "all":
        return "all"
    if not _NUMBER.fullmatch(value):
        raise click.BadParameter(f"{value[:60]!r} is neither the number of an attempt nor 'all'", ctx, param)
    return int(value)


attempt_option = click.option(
    "--attempt",
    metavar="N|all",
    callback=read_attempt,
    help="Of this attempt, with -f and those after it; all: of every one in order. By default the newest with output.",
)


@dataclass(frozen=True, slots=True)
class LineNames:
    """What a line is named by."""

    learner: bool
    attempt: bool

    def of(self, line: LogLine | LogText) -> str:
        """What stands in front of the line."""
        if self.attempt:
            return f"[{line.attempt}.{line.learner}] " if self.learner else f"[attempt {line.attempt}] "
        return f"[{line.learner}] " if self.learner else ""


@dataclass(slots=True)
class AttemptTeller:
    """Says which attempt the output is of, where there are others, and when the next one begins.

    `job` is as it was before, `asked` what the user chose. `shown` is the attempt of the latest line: None before the
    first one, and with a daemon that does not say it.
    """

    job: JobView
    asked: AttemptChoice
    shown: int | None = None

    def listen(self, lines: Iterable[Lines]) -> Iterator[Lines]:
        """The lines, as they are."""
        for line in lines:
            if line.attempt and line.attempt != self.shown:
                self._print(line.attempt)
                self.shown = line.attempt
            yield line

    def _print(self, attempt: int) -> None:
        if self.asked == "all":  # each line says it
            return
        if self.shown is not None:
            complain(f"attempt {attempt} has begun")
        elif self.asked is None:
            self._hint(attempt)

    def _hint(self, attempt: int) -> None:
        has_earlier = any(other.logs for other in self.job.attempts if other.number < attempt)
        silent = range(attempt + 1, self.job.attempt + 1)
        if not silent and not has_earlier:
            return
        said = [f"this is the output of attempt {attempt}"]
        if silent:
            many = len(silent) > 1
            said.append(f"attempts {silent[0]} to {silent[-1]} have none" if many else f"attempt {silent[0]} has none")
        if has_earlier:
            said.append("for earlier ones: --attempt N, or --attempt all")
        complain("; ".join(said))


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Page:
    """Which lines of one learner: since wins; pos > 0 starts at that number, pos < 0 so many before the end."""

    learner: int
    follow: bool = False
    pagesize: int | None = None
    pos: int = 0
    since: float | None = None

    @property
    def tail(self) -> int | None:
        """How many lines before the end it begins; None where it does not count from there."""
        return -self.pos if self.pos < 0 and self.since is None else None

    def cut(self, lines: Iterable[T], number_of: Callable[[T], int]) -> Iterator[T]:
        """Of `lines`, which have been chosen by `tail` and `since`, those from `pos` on, and no more than asked for."""
        if self.pos > 0 and self.since is None:
            lines = (line for line in lines if number_of(line) >= self.pos)
        return islice(lines, self.pagesize)


def page_options(noun: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """The options; `noun` is what they choose from. The command gets them as `page`."""

    def adorned(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def wrapped(
            *, follow: bool, pagesize: int | None, pos: int, since: float | None, learner: int, **rest: object
        ) -> None:
            if follow and (pagesize is not None or pos < 0):
                raise click.UsageError("--follow goes with neither --pagesize nor a negative --pos")
            command(page=Page(learner, follow, pagesize, pos, since), **rest)

        options = (
            click.option("-f", "--follow", is_flag=True, help="Go on until the job has ended, over all attempts."),
            click.option("--pagesize", type=click.IntRange(1), help=f"At most so many {noun}s; all without it."),
            click.option(
                "--pos", type=int, default=0, help=f"First {noun} by number; a negative one counts from the end."
            ),
            click.option(
                "--since",
                metavar="MOMENT",
                callback=read_moment,
                help=f"Only {noun}s since; --pos is not looked at then.",
            ),
            click.option("--learner", type=click.IntRange(1), default=1, show_default=True, help=f"Whose {noun}s."),
        )
        made: Callable[..., None] = wrapped
        for option in reversed(options):
            made = option(made)
        return made

    return adorned
