"""``ffdl exec``, ``shell``, ``top`` and ``stack``: commands, processes and Python stacks inside running learners."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from ffdl_batch.cli.commands.interactive import interactive_options, run_interactively
from ffdl_batch.cli.connection import open_client
from ffdl_batch.cli.options.output import json_option
from ffdl_batch.cli.options.submission import SbatchLike
from ffdl_batch.cli.render.formatting import print_json, print_table, read_span
from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.domain.launch.attach_protocol import LOOK, STACK, TABLE, TOP
from ffdl_batch.domain.number_text import counted
from ffdl_batch.domain.quantity import format_size
from ffdl_batch.domain.terminal_text import quoted
from ffdl_batch.exit_handling import Stop, complain
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.option_types import WholeNumber
from ffdl_batch.output import echo_styled

if TYPE_CHECKING:
    from ffdl_batch.client import ClientError
    from ffdl_batch.client.attach import AttachRequest, Helper

_one_learner = click.option("--learner", type=WholeNumber(1), default=1, show_default=True, help="Learner, from 1.")


@click.command(name="exec")
@click.argument("job_id", metavar="ID")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- COMMAND...")
@_one_learner
@click.option("-t", "--tty", "with_tty", is_flag=True, help="Give the command a terminal, for editors and debuggers.")
def exec_(job_id: str, command: Sequence[str], learner: int, with_tty: bool) -> int:
    """Run a command inside a running learner, in its container, with its environment, network, devices and limits.

    The command starts in $MODEL_DIR, as the learner's own did. Its exit code is the exit code of this command, or 128
    plus the number of the signal that killed it. The first Ctrl-C is sent to the command, the second one stops waiting
    for it. The command and its child processes are killed when this command or the learner ends. Standard input is
    passed on; use `</dev/null` in shell loops.
    """
    return _enter(job_id, learner, tuple(command), with_tty=with_tty)


@click.command(cls=SbatchLike)
@click.argument("job_id", required=False, metavar="[ID]")
@click.option("--learner", type=WholeNumber(1), help="Learner of ID, from 1.  [default: 1]")
@interactive_options
def shell(job_id: str | None, learner: int | None, **given: Any) -> int:
    """Start bash inside a running learner, on this terminal, where `ffdl exec` runs its commands.

    Without an ID, start it in a new allocation, as `ffdl run` does: ffdl shell --gpus 1

    The shell ends when the learner ends. If standard input is a pipe or a file, the shell runs its commands.
    """
    from ffdl_batch.client.attach import AttachRequest

    with_tty = sys.stdin.isatty() and sys.stdout.isatty()
    words = ("bash", "-i") if with_tty else ("bash",)
    env = {"PS1": r"[learner " + str(learner or 1) + r" \w]\$ "}
    if job_id is None:
        if learner is not None:
            raise click.UsageError("--learner selects a learner of a running job; give the ID of the job")
        return run_interactively(AttachRequest(words, env), given, with_tty=with_tty)
    context = click.get_current_context()
    if any(context.get_parameter_source(name) is ParameterSource.COMMANDLINE for name in given):
        raise click.UsageError(f"options of a new job cannot change {job_id}; leave out the ID to start a job")
    return _enter(job_id, learner or 1, words, with_tty=with_tty, env=env)


def _enter(
    job_id: str, learner: int, command: tuple[str, ...], *, with_tty: bool, env: Mapping[str, str] | None = None
) -> int:
    from ffdl_batch.client.attach import AttachRequest, run
    from ffdl_batch.host.terminal import raw_mode, window_size

    if with_tty and not sys.stdin.isatty():
        raise Stop(ExitCode.USAGE, "standard input is not a terminal; leave out --tty")
    with ExitStack() as stack:
        (helper,) = _open(stack, job_id, learner)
        if not with_tty:
            return run(helper, AttachRequest(command))
        named = {"TERM": os.environ.get("TERM", "dumb"), **(env or {})}
        stack.enter_context(raw_mode(sys.stdin.fileno()))
        return run(helper, AttachRequest(command, named, window_size()), window_size)


def _open(stack: ExitStack, job_id: str, learner: int | None) -> list[Helper]:
    """Start a helper beside one learner, or on each node, all at once. The connection to the daemon is not kept."""
    with open_client() as client:
        return [stack.enter_context(helper) for helper in client.open_helpers(job_id, learner)]


@dataclass(frozen=True, slots=True)
class Block:
    """The size of a table."""

    head: int
    """Lines above the rows, which are always shown."""
    rows: int


def rows_that_fit(blocks: Sequence[Block], height: int) -> list[int]:
    """Return how many rows of each table are shown on `height` lines. The last line is kept for a note about the rest.

    Every table gets one row before any gets two, and so on. If there is no space for one row of each, the last tables
    are left out, so that the list is shorter. It always has at least one table.
    """
    if sum(block.head + block.rows for block in blocks) <= height:
        return [block.rows for block in blocks]
    left = height - 1
    shown: list[int] = []
    for block in blocks:
        first = min(block.rows, 1)
        if shown and block.head + first > left:
            break
        left -= block.head + first
        shown.append(first)
    wanting = [at for at, rows in enumerate(shown) if rows < blocks[at].rows]
    while left > 0 and wanting:
        for at in wanting[:left]:
            shown[at] += 1
        left -= len(wanting[:left])
        wanting = [at for at in wanting if shown[at] < blocks[at].rows]
    return shown


_COLUMNS = ("PID", "IN IT", "CPU %", "MEMORY", "GPU MEMORY", "THREADS", "STATE", "COMMAND")
_HEAD = 2
"""Lines above a learner's processes, without those of its GPUs."""
_CLEAR = "\x1b[H\x1b[2J"
_any_learner = click.option(
    "--learner", type=WholeNumber(1), help="Show only this learner, from 1.  [default: all that run]"
)
Fields = Mapping[str, Any]
_LEAST_S, _EVERY_S = 0.1, 2.0
"""The shortest and the default time between two tables."""


def _read_every(context: click.Context, parameter: click.Parameter, value: str | None) -> float | None:
    """Read a time span, which must not be too short for the nodes. Callback of an option."""
    every_s = read_span(context, parameter, value)
    if every_s is not None and every_s < _LEAST_S:
        message = f"{quoted(value or '')} is not a time span of {_LEAST_S:g} s or more"
        raise click.BadParameter(message, context, parameter)
    return every_s


@click.command()
@click.argument("job_id", metavar="ID")
@_any_learner
@click.option("--once", is_flag=True, help="Print one table and exit; the default if standard output is no terminal.")
@click.option("--every", metavar="SPAN", callback=_read_every,
              help="Interval between tables, also without a terminal.  [default: 2s]")  # fmt: skip
@json_option("Print JSON, one line per table.")
def top(job_id: str, learner: int | None, once: bool, every: float | None, as_json: bool) -> int:
    """Show the processes of running learners: CPU, memory, and GPUs if the learner has nvidia-smi or rocm-smi.

    The nodes are read only while this command runs; Ctrl-C ends it. CPU is in percent of one core. A terminal shows as
    many processes as it has lines, those with the highest use first; --once shows all.
    """
    from ffdl_batch.client.attach import AttachRequest

    once = once or (every is None and not sys.stdout.isatty())
    with ExitStack() as stack:
        helpers = _open(stack, job_id, learner)
        ready = [helper for helper in helpers if _begins(helper, AttachRequest(do=TOP), alone=len(helpers) == 1)]
        while ready:
            tables = [table for helper in list(ready) if (table := _look(helper, ready)) is not None]
            learners = sorted((one for table in tables for one in _named(table)), key=lambda one: int(one["learner"]))
            if as_json:
                print_json({"learners": learners})
            elif not once and sys.stdout.isatty():
                echo_styled(_CLEAR, nl=False)
                _print_screen(learners)
            else:
                _print(learners, [len(one["processes"]) for one in learners])
            if once:
                break
            sys.stdout.flush()
            time.sleep(_EVERY_S if every is None else every)
    return 0 if ready else int(ExitCode.FAILED)


@click.command()
@click.argument("job_id", metavar="ID")
@_any_learner
def stack(job_id: str, learner: int | None) -> int:
    """Show the Python stacks of running learners, as py-spy prints them.

    py-spy is searched on the node, beside the Python of the controller, then on PATH. If there is none, or the node
    forbids it, the threads are listed with the kernel function that each waits in, and the exit code is 1. The learner
    is paused while its stacks are read.
    """
    from ffdl_batch.client import ClientError
    from ffdl_batch.client.attach import AttachRequest, run

    code = 0
    with ExitStack() as opened:
        helpers = _open(opened, job_id, learner)
        for helper in helpers:
            try:
                code = max(code, run(helper, AttachRequest(do=STACK)))
            except ClientError as error:
                code = max(code, _print_error(error, alone=len(helpers) == 1))
    return code


def _begins(helper: Helper, request: AttachRequest, *, alone: bool) -> bool:
    from ffdl_batch.client import ClientError

    try:
        helper.begin(request)
    except ClientError as error:
        _print_error(error, alone=alone)
        return False
    return True


def _print_error(error: ClientError, *, alone: bool) -> int:
    """Report a node that cannot be read. Raises the error if it is the only node."""
    if alone:
        raise error
    complain(str(error))
    return error.problem.exit_code


def _look(helper: Helper, ready: list[Helper]) -> Fields | None:
    """Return a node's table; None if its learners have ended. The node is then removed from `ready`."""
    from ffdl_batch.client import ClientError

    helper.send(LOOK)
    try:
        while True:
            for kind, payload in helper.take():
                if kind == TABLE:
                    return dict(json.loads(payload))
    except ClientError as error:
        _print_error(error, alone=len(ready) == 1)
        ready.remove(helper)
        return None


def _named(table: Fields) -> list[dict[str, Any]]:
    return [{"host": table["host"], **one} for one in table["learners"]]


def _print_screen(learners: Sequence[Fields]) -> None:
    """Print as many rows as the terminal has lines for, above the cursor."""
    blocks = [Block(_HEAD + len(one["gpus"]), len(one["processes"])) for one in learners]
    shown = rows_that_fit(blocks, shutil.get_terminal_size().lines - 1)
    _print(learners, shown)
    processes = sum(block.rows for block in blocks) - sum(shown)
    if processes:
        others = len(learners) - len(shown)
        whose = f", {others} of {counted(len(learners), 'learner')}" if others else ""
        click.echo(
            f"not shown{whose}: {counted(processes, 'process', 'processes')}; to show them: --learner N or --once"
        )


def _print(learners: Sequence[Fields], shown: Sequence[int]) -> None:
    """Print the first processes of each learner, those with the highest use; `shown` has their numbers."""
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    for one, count in zip(learners, shown, strict=False):
        click.echo(f"learner {one['learner']} on {one['host']}:")
        for gpu in one["gpus"]:
            click.echo(f"  GPU {gpu['index']}, {gpu['name']}: {_gpu(gpu)}")
        rows = [_row(process) for process in one["processes"][:count]]
        kept = [at for at, name in enumerate(_COLUMNS) if name != "GPU MEMORY" or any(row[at] for row in rows)]
        print_table([_COLUMNS[at] for at in kept], [[row[at] for at in kept] for row in rows], width=width)


def _row(one: Fields) -> list[str]:
    gpu = one["gpu_memory_bytes"]
    figures = [f"{one['cpu_percent']:.1f}", format_size(one["memory_bytes"]), format_size(gpu) if gpu else ""]
    return [str(one["pid"]), str(one["pid_inside"]), *figures, str(one["threads"]), one["state"], one["command"]]


def _gpu(gpu: Fields) -> str:
    busy = "N/A" if gpu["busy_percent"] is None else f"{gpu['busy_percent']} %"
    used, total = ("N/A" if gpu[key] is None else format_size(gpu[key]) for key in ("used_bytes", "total_bytes"))
    return f"{busy} busy, {used} of {total}"
