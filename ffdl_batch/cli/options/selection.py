"""Select attempts, learners and lines of logs by options."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

import click

from ffdl_batch.cli.render.formatting import read_moment
from ffdl_batch.domain.terminal_text import quoted
from ffdl_batch.exit_handling import complain
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.option_types import WholeNumber

if TYPE_CHECKING:
    from ffdl_batch.domain.job.log_text import LogText
    from ffdl_batch.domain.job.views import AttemptChoice, JobView, LogLine

    Lines = TypeVar("Lines", LogLine, LogText)

_RUNNING = ("DOWNLOADING", "PROCESSING", "STORING")
_SLURM_STATES = {
    "RUNNING": _RUNNING,
    "R": _RUNNING,
    "PD": ("PENDING", "DEPLOYING", "QUEUED"),
    "CD": ("COMPLETED",),
    "F": ("FAILED",),
    "CA": ("CANCELLED",),
}
"""The states that a name of squeue's stands for."""
_NUMBER = re.compile("[1-9][0-9]{0,8}", re.ASCII)


def read_states(texts: Sequence[str], option: str) -> tuple[str, ...]:
    """Return the states of ``-t A,b -t c`` of `option`; none for 'all', which means no restriction, as in squeue.

    Slurm's names for several states are replaced by them.
    """
    from ffdl_batch.domain.job_state import JobState

    names = [word.strip().upper() for text in texts for word in text.split(",") if word.strip()]
    if "ALL" in names:
        return ()
    known = {state.value: (state.value,) for state in JobState}
    found: list[str] = []
    for name in names:
        if name not in known and name not in _SLURM_STATES:
            raise click.BadParameter(
                f"{quoted(name)} is not a state; states are {', '.join(known)}, RUNNING", param_hint=option
            )
        found += known.get(name) or _SLURM_STATES[name]
    return tuple(dict.fromkeys(found))


def read_attempt(ctx: click.Context, param: click.Parameter, value: str | None) -> AttemptChoice:
    """Read the number of an attempt, or 'all'. Callback of an option."""
    if value is None:
        return None
    if value.lower() == "all":
        return "all"
    if not _NUMBER.fullmatch(value):
        raise click.BadParameter(f"{quoted(value)} is neither the number of an attempt nor 'all'", ctx, param)
    return int(value)


attempt_option = click.option(
    "--attempt",
    metavar="N|all",
    callback=read_attempt,
    help="Attempt, or all in order. With -f, later attempts follow.  [default: the newest with output]",
)


@dataclass(frozen=True, slots=True)
class LineNames:
    """The label of a line: its learner, its attempt, or both, and before them its job if it is one of an array."""

    learner: bool
    attempt: bool

    def of(self, line: LogLine | LogText, job: JobView | None = None) -> str:
        """Return the label, with a blank after it."""
        element = "" if job is None else f"[_{job.array_index}] "
        if self.attempt:
            return element + (f"[{line.attempt}.{line.learner}] " if self.learner else f"[attempt {line.attempt}] ")
        return element + (f"[{line.learner}] " if self.learner else "")


@dataclass(slots=True)
class AttemptNotes:
    """Prints which attempt the output belongs to if there are others, and when the next one begins."""

    job: JobView
    """The job before its output was read."""
    asked: AttemptChoice
    """The user's choice."""
    shown: int | None = None
    """The attempt of the latest line; None before the first line."""

    def watch(self, lines: Iterable[Lines]) -> Iterator[Lines]:
        """Yield the lines unchanged."""
        for line in lines:
            if line.attempt and line.attempt != self.shown:
                self._print(line.attempt)
                self.shown = line.attempt
            yield line

    def _print(self, attempt: int) -> None:
        if self.asked == "all":  # each line has it
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
        parts = [f"this is the output of attempt {attempt}"]
        if silent:
            many = len(silent) > 1
            parts.append(f"attempts {silent[0]} to {silent[-1]} have none" if many else f"attempt {silent[0]} has none")
        if has_earlier:
            parts.append("for earlier ones: --attempt N, or --attempt all")
        complain("; ".join(parts))


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Page:
    """Which lines of one learner are shown."""

    learner: int
    follow: bool = False
    pagesize: int | None = None
    pos: int = 0
    """The number of the first line; a negative number counts from the end."""
    since: float | None = None
    """The time of the first line. It overrides `pos`."""

    @property
    def tail(self) -> int | None:
        """Return the number of last lines; None if the page does not count from the end."""
        return -self.pos if self.pos < 0 and self.since is None else None

    def cut(self, lines: Iterable[T], number_of: Callable[[T], int]) -> Iterator[T]:
        """Yield at most `pagesize` of the lines, which were selected by `tail` and `since`, from `pos` on."""
        if self.pos > 0 and self.since is None:
            lines = (line for line in lines if number_of(line) >= self.pos)
        return islice(lines, self.pagesize)


def page_options(noun: str) -> Callable[[Callable[..., object]], Callable[..., object]]:
    """Return the options that select lines; `noun` names a line. The command gets them as `page`."""

    def adorned(command: Callable[..., object]) -> Callable[..., object]:
        @functools.wraps(command)
        def wrapped(
            *, follow: bool, pagesize: int | None, pos: int, since: float | None, learner: int, **rest: object
        ) -> None:
            if follow and (pagesize is not None or pos < 0):
                raise click.UsageError("--follow goes with neither --pagesize nor a negative --pos")
            command(page=Page(learner, follow, pagesize, pos, since), **rest)

        options = (
            click.option("-f", "--follow", is_flag=True, help="Follow until the job ends, over all attempts."),
            click.option("--pagesize", type=WholeNumber(1), help=f"Maximum number of {noun}s."),
            click.option(
                "--pos",
                type=WholeNumber(),
                default=0,
                help=f"Number of the first {noun}; a negative number counts from the end.",
            ),
            click.option(
                "--since",
                metavar="MOMENT",
                callback=read_moment,
                help=f"Show only {noun}s since then; --pos is ignored.",
            ),
            click.option("--learner", type=WholeNumber(1), default=1, show_default=True, help="Learner, from 1."),
        )
        made: Callable[..., object] = wrapped
        for option in reversed(options):
            made = option(made)
        return made

    return adorned
