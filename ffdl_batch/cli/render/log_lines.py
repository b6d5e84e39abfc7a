"""Print lines of logs on a terminal or in a pipe."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

import click

from ffdl_batch.cli.render.formatting import format_time
from ffdl_batch.domain.job.views import SCHEMA
from ffdl_batch.domain.job_state import TERMINAL, JobState
from ffdl_batch.domain.terminal_text import escape_delete, printable
from ffdl_batch.exit_handling import complain
from ffdl_batch.output import echo_styled

if TYPE_CHECKING:
    from ffdl_batch.cli.options.selection import LineNames
    from ffdl_batch.domain.job.log_text import LogText
    from ffdl_batch.domain.job.views import AttemptChoice, JobView


encode_json = json.JSONEncoder(ensure_ascii=True).encode
_quoted = json.encoder.encode_basestring_ascii
_COLOUR = re.compile(r"(\x1b\[[0-9;:]*m)")
"""Matches SGR sequences of ECMA-48 8.3.117; the colons are those of ISO 8613-6."""
_AGAIN = "\r\x1b[K"
"""Moves the cursor to the start of the terminal's line and clears it."""


class LinePrinter:
    """Prints lines as they arrive. A terminal gets no control characters; a pipe gets the lines unchanged.

    The pieces of a line are printed on one line. With `separate`, ``--`` is printed where lines of a learner were left
    out. With `colours`, a terminal gets the colours of the lines.
    """

    def __init__(
        self, names: LineNames, *, timestamps: bool, as_json: bool, separate: bool = False, colours: bool = False
    ) -> None:
        self._names, self._timestamps, self._as_json, self._separate = names, timestamps, as_json, separate
        self._colours = colours
        self._terminal = is_terminal()
        self._open: tuple[str, int, int, int] | None = None
        """The line that the last piece belongs to, if more of it follows."""
        self._shown: dict[tuple[str, int, int], int] = {}

    def print(self, texts: Iterable[LogText]) -> None:
        """Print all of them."""
        self.print_array((None, text) for text in texts)

    def print_array(self, texts: Iterable[tuple[JobView | None, LogText]]) -> None:
        """Print lines, each with the job of an array that it belongs to; None = it needs no name."""
        for job, text in texts:
            if self._as_json:
                click.echo(json_lines(text, "" if job is None else job.id), nl=False)
            else:
                self._print(text, job)
        if self._open is not None:
            click.echo()
            self._open = None

    def _print(self, text: LogText, job: JobView | None) -> None:
        of = "" if job is None else job.id
        whose = (of, text.attempt, text.learner, text.index)
        continues = self._open == whose
        if self._open is not None and not continues:
            click.echo()
        if self._separate and not continues and self._shown and self._is_apart(text, of):
            click.echo("--")
        self._shown[of, text.attempt, text.learner] = text.index + text.count - 1
        self._open = whose if text.partial else None
        when = f"{format_time(text.at)} " if self._timestamps else ""
        head, shown = f"{when}{self._names.of(text, job)}", text.text
        if self._terminal:
            is_bar = continues and "\r" in shown
            shown = "\n".join(terminal_line(line, colours=self._colours) for line in shown.split("\n"))
            first = "" if continues and not is_bar else (_AGAIN if is_bar else "") + head
        else:
            first = "" if continues else head
        if head and "\n" in shown:
            shown = shown.replace("\n", f"\n{head}")
        echo_styled(first + shown, nl=not text.partial)

    def _is_apart(self, text: LogText, of: str) -> bool:
        before = self._shown.get((of, text.attempt, text.learner))
        return before is None or text.index > before + 1


def json_lines(text: LogText, job: str = "") -> str:
    """Return the lines for `--json`: each :class:`LogLine` with `schema`, and with `job` if it is not "".

    There may be millions of lines. So the values that are the same for all lines of `text` are encoded once.
    """
    whose = f', "job": {_quoted(job)}' if job else ""
    head = f'{{"schema": {SCHEMA}{whose}, "line": {{"learner": {text.learner}, "index": '
    shared = f', "at": {encode_json(text.at)}, "attempt": {text.attempt}, "offset": '
    tail = f', "partial": {encode_json(text.partial)}}}}}\n'
    return escape_delete(
        "".join(
            [
                f'{head}{index}, "line": {_quoted(line)}{shared}{offset}, "end": {end}{tail}'
                for index, (line, offset, end) in enumerate(text.spans(), text.index)
            ]
        )
    )


def warn_of_lost_lines(lines: Iterable[LogText]) -> Iterator[LogText]:
    """Yield the lines, and warn on standard error if the first lines of a learner are missing."""
    seen = set()
    for line in lines:
        whose = (line.attempt, line.learner)
        if whose not in seen:
            seen.add(whose)
            if line.index > 1:
                what = "the first line" if line.index == 2 else f"the first {line.index - 1} lines"
                gone = f"{what} of learner {line.learner} {'is' if line.index == 2 else 'are'} gone"
                complain(f"{gone}: the log was too long, or the job shortened it")
        yield line


def is_terminal() -> bool:
    """Return whether standard output is a terminal."""
    return sys.stdout.isatty()


def terminal_line(text: str, *, colours: bool = False) -> str:
    """Return a log line for a terminal. Colours (SGR sequences) are removed, or kept if `colours`. Every other control
    character is shown as an escape.

    A carriage return means that the following text overwrote the line (a progress bar), so the last state is shown.
    """
    last = text.rstrip("\r").rpartition("\r")[2]
    if "\x1b" not in last:
        return printable(last)
    parts = _COLOUR.split(last)
    if not colours:
        return "".join(printable(part) for part in parts[::2])
    return "".join(part if odd % 2 else printable(part) for odd, part in enumerate(parts)) + "\x1b[0m"


def raw_option(command: Callable[..., object]) -> Callable[..., object]:
    """Add the option that keeps colours."""
    text = "Keep colours on a terminal. Other control characters are always escaped."
    return click.option("--raw", is_flag=True, help=text)(command)


def print_pending_reason(job: JobView) -> None:
    """Print that the job has no output yet, before the command waits for it."""
    if not _has_run(job) and job.state not in TERMINAL:
        complain(f"{job.id} is {job.state} and has no output yet; waiting for it")


def explain_no_lines(explain: Callable[[], str], texts: Iterable[LogText]) -> Iterator[LogText]:
    """Yield the lines. If there are none, print what `explain` returns then."""
    is_empty = True
    for text in texts:
        is_empty = False
        yield text
    if is_empty:
        complain(explain())


def explain_none(job: JobView, attempt: AttemptChoice, find_lost: Callable[[], str]) -> str:
    """Return why a job, or one attempt of it, has no output. `find_lost` returns why its log no longer exists, and ""
    if the log exists and is empty."""
    is_earlier = isinstance(attempt, int) and attempt < job.attempt
    who = f"attempt {attempt} of {job.id} has ended" if is_earlier else f"{job.id} is {job.state}"
    has_ended = is_earlier or job.state in TERMINAL
    if not _has_run(job, attempt):
        return f"{who}, and none of its learners started" if has_ended else f"{who} and has no output yet; -f waits"
    if not has_ended:
        return f"{who} and has printed nothing" + ("" if job.state == JobState.STORING else " yet")
    lost = find_lost()
    if not lost:
        return f"{who} and has printed nothing"
    kept = job.stored_in or ("" if f"{job.results}/".startswith(f"{job.job_dir}/") else job.results)
    if not kept:
        return lost
    stored = f"{kept}/learner-1/training-log.txt"
    return f"{lost}; the stored log is {stored}" if job.state == JobState.COMPLETED else f"{lost}; look for {stored}"


def _has_run(job: JobView, attempt: AttemptChoice = None) -> bool:
    return any(one.logs for one in job.attempts if attempt in (None, "all", one.number))
