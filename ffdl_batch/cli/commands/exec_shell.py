"""``ffdl exec`` and ``ffdl shell``: commands inside a running learner."""

from __future__ import annotations

import os
import sys
import termios
import tty
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from ffdl_batch.cli.connection import open_client
from ffdl_batch.cli.exit_handling import Stop
from ffdl_batch.domain.exit_codes import ExitCode

if TYPE_CHECKING:
    from ffdl_batch.domain.launch.attach_protocol import AttachPlan

_HELP = {"help_option_names": ["-h", "--help"]}
learner_option = click.option(
    "--learner", type=click.IntRange(1), default=1, show_default=True, help="In which learner, from 1."
)


@click.command(name="exec", context_settings=_HELP)
@click.argument("job_id", metavar="ID")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- COMMAND...")
@learner_option
@click.option(
    "-t", "--tty", "with_tty", is_flag=True, help="Give the command a terminal, as for editors and debuggers."
)
def exec_(job_id: str, command: Sequence[str], learner: int, with_tty: bool) -> int:
    """Run a command inside a running learner, in its container, with its environment, network, devices and limits.

    The command starts in $MODEL_DIR, as the learner's own did. Its exit code is this command's; 128 and the number of
    the signal where one ended it. Ctrl-C goes to it, a second one gives it up. What it leaves running is ended with it,
    and all of it when this command ends, however that happens, or the learner does. Standard input is passed on: give
    `</dev/null` in loops of a shell.
    """
    return _enter(job_id, learner, tuple(command), with_tty=with_tty)


@click.command(context_settings=_HELP)
@click.argument("job_id", metavar="ID")
@learner_option
def shell(job_id: str, learner: int) -> int:
    """A shell inside a running learner: bash, on this terminal, where `ffdl exec` runs its commands.

    It ends with the learner. With a pipe or a file as standard input it runs what comes from there.
    """
    with_tty = sys.stdin.isatty() and sys.stdout.isatty()
    words = ("bash", "-i") if with_tty else ("bash",)
    return _enter(job_id, learner, words, with_tty=with_tty, env={"PS1": r"[learner " + str(learner) + r" \w]\$ "})


def _enter(
    job_id: str, learner: int, command: tuple[str, ...], *, with_tty: bool, env: Mapping[str, str] | None = None
) -> int:
    from ffdl_batch.client.attach import AttachRequest, Helper, run

    plan = plan_of(job_id, learner)
    if not with_tty:
        with Helper(plan) as helper:
            return run(helper, AttachRequest(command))
    if not sys.stdin.isatty():
        raise Stop(ExitCode.USAGE, "standard input is no terminal: leave out --tty")
    named = {"TERM": os.environ.get("TERM", "dumb"), **(env or {})}
    with Helper(plan) as helper, _raw():
        return run(helper, AttachRequest(command, named, window_size()), window_size)


def plan_of(job_id: str, learner: int) -> AttachPlan:
    """How to get to one learner; the connection to the daemon is not kept."""
    with open_client() as client:
        (plan,) = client.attach_plans(job_id, learner)
    return plan


def window_size() -> tuple[int, int]:
    """Rows and columns of the terminal."""
    columns, rows = os.get_terminal_size(sys.stdin.fileno())
    return rows, columns


@contextmanager
def _raw() -> Iterator[None]:
    """Every key goes to the other side; the terminal is as before afterwards."""
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    tty.setraw(descriptor, termios.TCSADRAIN)  # what was typed meanwhile is not lost
    try:
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
