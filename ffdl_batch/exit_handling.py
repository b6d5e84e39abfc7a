"""Run a command as the whole process: exit codes, messages on standard error, Ctrl-C and closed pipes."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NoReturn

import click

from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.domain.terminal_text import quoted
from ffdl_batch.host.resource_exhaustion import explain_disk, explain_lack
from ffdl_batch.option_types import describe
from ffdl_batch.output import OutputLost, drop_output, watch_output

_CLOSED_PIPE = 128 + signal.SIGPIPE
"""What a shell reports for a program that SIGPIPE ended; `ffdl logs | head` looks like any other filter."""


class Stop(Exception):
    """Ends the command with an exit code; the message is printed on standard error."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = int(code)


class Detached(Exception):
    """Ctrl-C while following or waiting; the message says that the job continues."""


def complain(text: str) -> None:
    """Print a message on standard error, with the name of the program before each line."""
    context = click.get_current_context(silent=True)
    program = context.find_root().info_name if context else "ffdl"
    _print_error(program or "ffdl", text)


@contextmanager
def detachable(job_ids: Sequence[str], again: str) -> Iterator[None]:
    """Turn Ctrl-C inside into :class:`Detached`: the jobs continue. `again` is the command that continues this one."""
    try:
        yield
    except KeyboardInterrupt:
        jobs = f"{job_ids[0]} continues" if len(job_ids) == 1 else f"{len(job_ids)} jobs continue"
        raise Detached(f"detached; {jobs}. To follow again: {again}. To end: ffdl cancel {job_ids[0]}") from None


def run(
    command: click.Command,
    program: str,
    *,
    expected: type[Exception] = Stop,
    find_log: Callable[[], str] | None = None,
) -> NoReturn:
    """Run a command as the whole process. Every exit of the process passes through this function.

    Errors of the type `expected` are reported by their message; other ones are defects. `find_log` returns the path of
    the daemon's log, which the report of a defect names.
    """
    watch_output()
    code = run_guarded(command, program, expected, find_log)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # no traceback while the interpreter ends
    sys.exit(code)


def _invoke(command: click.Command, program: str) -> object:
    """Invoke the command as click's own `main` does, without its exit codes."""
    asked = os.environ.get(f"_{program.replace('-', '_').upper()}_COMPLETE")
    if asked:
        from click.shell_completion import shell_complete

        return shell_complete(command, {}, program, f"_{program.replace('-', '_').upper()}_COMPLETE", asked)
    try:
        # click must not strip escape sequences from text in a pipe, because the streams show them as escapes
        with command.make_context(program, sys.argv[1:], color=True) as context:
            return command.invoke(context)
    except Exception as error:
        lack = explain_lack(error) or explain_disk(error)
        if lack and not _debugs():
            raise Stop(ExitCode.TRY_AGAIN, lack) from error
        raise


def run_guarded(
    command: click.Command,
    program: str,
    expected: type[Exception] = Stop,
    find_log: Callable[[], str] | None = None,
) -> int:
    """Run a command, print its error if it raises one, and return the exit code of the process; see :func:`run`."""
    try:
        code = _invoke(command, program)
        sys.stdout.flush()
        return code if isinstance(code, int) else ExitCode.OK
    except (BrokenPipeError, OutputLost) as error:
        return _end_without_output(error, program)
    except click.exceptions.Exit as end:
        return end.exit_code
    except Detached as detached:
        click.echo(f"\n{program}: {detached}", err=True)
        return ExitCode.INTERRUPTED
    except (KeyboardInterrupt, click.Abort):
        click.echo(f"\n{program}: interrupted", err=True)
        return ExitCode.INTERRUPTED
    except Stop as stop:
        _print_error(program, str(stop))
        return stop.code
    except click.ClickException as error:
        describe(error).show()
        return error.exit_code
    except Exception as error:  # noqa: BLE001  (no traceback reaches a user)
        return _explain(error, program, expected, find_log)


def _end_without_output(error: BrokenPipeError | OutputLost, program: str) -> int:
    drop_output()
    if isinstance(error, BrokenPipeError):
        return _CLOSED_PIPE
    _print_error(program, str(error))
    return ExitCode.FAILED


def _print_error(program: str, text: str) -> None:
    for line in text.rstrip().split("\n") if text else ():
        click.echo(f"{program}: {line}", err=True, color=True)


def _explain(error: Exception, program: str, expected: type[Exception], find_log: Callable[[], str] | None) -> int:
    if _debugs() or isinstance(error, MemoryError):  # the entry point reports lack of memory with less code
        raise error
    problem = getattr(error, "problem", None)
    if problem is not None:  # a ClientError, without importing the client for commands that never use it
        _print_error(program, str(error))
        return int(problem.exit_code)
    if (found := _no_text(error)) is not None:
        _print_error(program, f"{quoted(found)} is not UTF-8; it is in an argument, a name or a file")
        return ExitCode.USAGE
    if isinstance(error, expected):
        _print_error(program, str(error))
        return ExitCode.FAILED
    message = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    _print_error(program, f"unexpected error: {message}")
    log = f"; the daemon's log is {find_log()}" if find_log else ""
    _print_error(program, f"this is a defect; FFDL_DEBUG=1 shows where it happened{log}")
    return ExitCode.FAILED


def _debugs() -> bool:
    return os.environ.get("FFDL_DEBUG") == "1"


def _no_text(error: Exception) -> str | None:
    """Return the bytes that are not UTF-8, as Python has them in text (PEP 383), if the error is about an argument or
    a name."""
    if not isinstance(error, UnicodeEncodeError) or error.encoding != "utf-8":
        return None
    found = error.object[error.start : error.end]
    return found if all("\udc80" <= one <= "\udcff" for one in found) else None
