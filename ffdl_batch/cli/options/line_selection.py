"""FfDL's way of choosing lines, the same for ``ffdl loglines`` and ``ffdl emetrics``: options, and what they mean."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

import click

from ffdl_batch.cli.render.formatting import read_moment

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
