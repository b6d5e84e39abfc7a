"""``ffdl run``, and ``ffdl shell`` without a job: run a command of this terminal in a new allocation."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ffdl_batch.cli.connection import given_host, open_client
from ffdl_batch.cli.options.submission import (
    Manner,
    SbatchLike,
    build_submissions,
    collect_options,
    placement_options,
)
from ffdl_batch.cli.options.wrapped_command import image_options, manifest_for
from ffdl_batch.cli.render.job_messages import report_end
from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.exit_handling import Stop, complain
from ffdl_batch.host.terminal import raw_mode, window_size

if TYPE_CHECKING:
    from ffdl_batch.client import Client
    from ffdl_batch.client.attach import AttachRequest
    from ffdl_batch.domain.job.submission import Submission

AnyFunction = Callable[..., object]
_REFUSED = ("array", "begin", "deadline", "dependency", "hold", "learners", "requeue")
"""Options of jobs that do not start as soon as they can, or have several learners or attempts."""


def interactive_options(function: AnyFunction) -> AnyFunction:
    """Declare the options for :func:`run_interactively`."""
    for option in (
        click.option("-v", "--verbose", count=True, help="Print what is done."),
        click.option("-Q", "--quiet", is_flag=True, help="Print errors only."),
        click.option("--model", metavar="PATH", type=click.Path(), help="Directory or zip archive with your code. The "
                     "command runs in a copy of it.  [default: the current directory; no files if that is or contains "
                     "the home directory]"),
        image_options(),
        placement_options,
    ):  # fmt: skip
        function = option(function)
    return function


@click.command(cls=SbatchLike)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- COMMAND...")
@click.option(
    "--tty", "--pty", "with_tty", is_flag=True, help="Give the command a terminal, for editors and debuggers."
)
@interactive_options
def run(command: Sequence[str], with_tty: bool, **given: Any) -> int:
    """Run a command in a new allocation, on this terminal or in a pipe.

    Example: ffdl run --gpus 1 -- python3 train.py

    The job has one learner and one attempt. It ends with the command, and is cancelled if this program ends, the
    terminal is closed or the connection is lost. While the job is pending, the reason is printed on standard error, and
    Ctrl-C cancels the job. The exit code is that of the command, or 128 plus the number of the signal that killed it.
    """
    from ffdl_batch.client.attach import AttachRequest

    return run_interactively(AttachRequest(tuple(command)), given, with_tty=with_tty)


def run_interactively(request: AttachRequest, given: Mapping[str, Any], *, with_tty: bool) -> int:
    """Run a command in a job of its own. Return its exit code. Raises UsageError, Stop, ClientError."""
    from ffdl_batch.client.attach import follow
    from ffdl_batch.client.errors import RequestRefused
    from ffdl_batch.client.interactive import CancelAtEnd, await_learner, connect, ended_job

    if with_tty and not sys.stdin.isatty():
        raise Stop(ExitCode.USAGE, "standard input is not a terminal; leave out --tty")
    manner = Manner(quiet=given["quiet"], verbose=given["verbose"])
    submission = _build(given, manner)
    window: Callable[[], tuple[int, int]] | None = None
    host = given_host()
    with ExitStack() as stack, open_client(quiet=manner.quiet) as client:
        job_id = _submit(client, submission, given["model"], manner)
        guard = stack.enter_context(CancelAtEnd([] if host is None else ["--host", host], job_id))
        if ended := await_learner(client, job_id, lambda text: None if manner.quiet else complain(text)):
            report_end(ended, int(ExitCode.FAILED))
            return int(ExitCode.FAILED)
        if with_tty:
            window = window_size
            named = {"TERM": os.environ.get("TERM", "dumb"), **request.env}
            request = replace(request, env=named, window=window())
        session = stack.enter_context(ExitStack())
        try:
            helper = connect(client, job_id, _holding(request), session)
            if with_tty:
                session.enter_context(raw_mode(sys.stdin.fileno()))
            code = follow(helper, request, window)
        except RequestRefused:
            session.close()
            if ended := ended_job(client, job_id):
                report_end(ended, int(ExitCode.FAILED))
            raise
        guard.keep()
        return code


def _holding(request: AttachRequest) -> AttachRequest:
    from ffdl_batch.domain.launch.attach_protocol import HOLD

    return replace(request, env={**request.env, HOLD: "1"})


def _build(given: Mapping[str, Any], manner: Manner) -> Submission:
    from ffdl_batch.client.interactive import BATCH
    from ffdl_batch.domain.job.submission import Expected
    from ffdl_batch.domain.launch.attach_protocol import INTERACTIVE_COMMAND

    wanted = collect_options(given, os.environ, manner)
    if refused := [name for name in _REFUSED if name in wanted.options]:
        raise click.UsageError(f"--{refused[0]} is not for interactive jobs; use ffdl-submit")
    left = {name: value for name, value in wanted.environment_options.items() if name not in _REFUSED}
    manifest = manifest_for(INTERACTIVE_COMMAND, given, name="interactive", batch=BATCH)
    wanted = replace(wanted, environment_options=left, expected=Expected.JOB)
    (submission,) = build_submissions([], "", wanted, manifest)
    return submission


def _submit(client: Client, submission: Submission, model: str | None, manner: Manner) -> str:
    from ffdl_batch.client.errors import RequestRefused

    with _sent_model(model) as path:
        digest = client.upload(path, manner.print_verbose, manner.warn)
    (result,) = client.send([replace(submission, archive=digest)])
    for warning in result.warnings:
        manner.warn(warning)
    if result.problem:
        raise RequestRefused(result.problem)
    manner.print_verbose(f"{result.id}: submitted")
    return result.id


@contextmanager
def _sent_model(given: str | None) -> Iterator[Path]:
    """Yield the directory or archive to send. A home directory is not sent as a whole. A model must have a file."""
    import tempfile

    here = Path(given) if given is not None else Path.cwd()  # which has no links, as HOME may
    if given is not None or not Path.home().resolve().is_relative_to(here):
        yield here
        return
    with tempfile.TemporaryDirectory() as empty:
        Path(empty, ".nothing-sent").touch()
        yield Path(empty)
