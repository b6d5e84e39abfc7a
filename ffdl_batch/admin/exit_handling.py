"""Turn errors of ``ffdl-admin`` into exit codes and one line on standard error, without a traceback."""

from __future__ import annotations

import os
import signal
import sys
from typing import NoReturn

import click

from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.host.resource_exhaustion import explain_lack
from ffdl_batch.output import OutputLost, drop_output, watch_output

_CLOSED_PIPE = 128 + signal.SIGPIPE


class Stop(Exception):
    """End the command with an exit code; the message goes to standard error."""

    def __init__(self, code: ExitCode, message: str) -> None:
        super().__init__(message)
        self.code = code


def run(command: click.Command, program: str) -> NoReturn:
    """Run a command as the whole process, and exit."""
    watch_output()
    sys.exit(_guard(command, program))


def _guard(command: click.Command, program: str) -> int:
    try:
        code = _invoke(command, program)
        sys.stdout.flush()
    except BrokenPipeError:
        drop_output()
        return _CLOSED_PIPE
    except OutputLost as lost:
        drop_output()
        return _print_error(program, str(lost), ExitCode.FAILED)
    except Stop as stop:
        return _print_error(program, str(stop), stop.code)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        return _print_error(program, "interrupted", ExitCode.INTERRUPTED)
    except OSError as error:
        return _print_error(program, str(error), ExitCode.FAILED)
    except Exception as error:  # noqa: BLE001  (the last line of defence: no traceback reaches a user)
        return _explain(error, program)
    return code if isinstance(code, int) else ExitCode.OK


def _invoke(command: click.Command, program: str) -> object:
    try:
        return command.main(prog_name=program, standalone_mode=False, color=True)  # the streams show escape sequences
    except Exception as error:
        lack = explain_lack(error)
        if lack and os.environ.get("FFDL_DEBUG") != "1":
            raise Stop(ExitCode.TRY_AGAIN, lack) from error
        raise


def _explain(error: Exception, program: str) -> int:
    if os.environ.get("FFDL_DEBUG") == "1":
        raise error
    message = f"{type(error).__name__}: {error}".rstrip(": ")
    return _print_error(
        program, f"unexpected error: {message}; this is a defect; FFDL_DEBUG=1 shows where it happened", ExitCode.FAILED
    )


def _print_error(program: str, text: str, code: ExitCode) -> int:
    for line in text.rstrip().split("\n") if text else ():
        click.echo(f"{program}: {line}", err=True, color=True)
    return int(code)
