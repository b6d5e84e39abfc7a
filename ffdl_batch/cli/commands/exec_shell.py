"""``ffdl exec`` and ``ffdl shell``: commands inside a running learner."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import click

from ffdl_batch.cli.connection import open_client
from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.exit_handling import Stop

if TYPE_CHECKING:
    from ffdl_batch.domain.launch.attach_protocol import AttachPlan

learner_option = click.option(
    "--learner", type=click.IntRange(1), default=1, show_default=True, help="Learner, from 1."
)


@click.command(name="exec")
@click.argument("job_id", metavar="ID")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- COMMAND...")
@learner_option
@click.option("-t", "--tty", "with_tty", is_flag=True, help="Give the command a terminal, for editors and debuggers.")
def exec_(job_id: str, command: Sequence[str], learner: int, with_tty: bool) -> int:
    """Run a command inside a running learner, in its container, with its environment, network, devices and limits.

    The command starts in $MODEL_DIR, as the learner's own did. Its exit code is the exit code of this command, or 128
    plus the number of the signal that killed it. The first Ctrl-C is sent to the command, the second one stops waiting
    for it. The command and its child processes are killed when this command or the learner ends. Standard input is
    passed on; use `</dev/null` in shell loops.
    """
    return _enter(job_id, learner, tuple(command), with_tty=with_tty)


@click.command()
@click.argument("job_id", metavar="ID")
@learner_option
def shell(job_id: str, learner: int) -> int:
    """Start bash inside a running learner, on this terminal, where `ffdl exec` runs its commands.

    The shell ends when the learner ends. If standard input is a pipe or a file, the shell runs its commands.
    """
    with_tty = sys.stdin.isatty() and sys.stdout.isatty()
    words = ("bash", "-i") if with_tty else ("bash",)
    return _enter(job_id, learner, words, with_tty=with_tty, env={"PS1": r"[learner " + str(learner) + r" \w]\$ "})


def _enter(
    job_id: str, learner: int, command: tuple[str, ...], *, with_tty: bool, env: Mapping[str, str] | None = None
) -> int:
    from ffdl_batch.client.attach import AttachRequest, Helper, run
    from ffdl_batch.host.terminal import raw_mode

    (plan,) = plans_of(job_id, learner)
    if not with_tty:
        with Helper(plan) as helper:
            return run(helper, AttachRequest(command))
    if not sys.stdin.isatty():
        raise Stop(ExitCode.USAGE, "standard input is not a terminal; leave out --tty")
    named = {"TERM": os.environ.get("TERM", "dumb"), **(env or {})}
    with Helper(plan) as helper, raw_mode(sys.stdin.fileno()):
        return run(helper, AttachRequest(command, named, window_size()), window_size)


def plans_of(job_id: str, learner: int | None) -> Sequence[AttachPlan]:
    """Ask the daemon how to reach one learner, or all. The connection to the daemon is not kept."""
    with open_client() as client:
        return client.attach_plans(job_id, learner)


def window_size() -> tuple[int, int]:
    """Return the rows and columns of the terminal."""
    columns, rows = os.get_terminal_size(sys.stdin.fileno())
    return rows, columns
