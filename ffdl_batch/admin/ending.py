"""How ``ffdl-admin`` ends: exit codes, one sentence on standard error, no traceback."""

from __future__ import annotations

import os
import signal
import sys
from typing import NoReturn

import click

from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.domain.scarcity import explain_lack

_CLOSED_PIPE = 128 + signal.SIGPIPE
_STDOUT = 1


class Stop(Exception):
    """Ends the command with a code of ours; the message goes to standard error."""

    def __init__(self, code: ExitCode, message: str) -> None:
        super().__init__(message)
        self.code = code


def run(command: click.Command, program: str) -> NoReturn:
    """Run a command as the whole process; every way out goes through here."""
    sys.exit(_guard(command, program))


def _guard(command: click.Command, program: str) -> int:
    try:
        code = _invoke(command, program)
        sys.stdout.flush()
    except BrokenPipeError:
        _drop_output()
        return _CLOSED_PIPE
    except Stop as stop:
        return _say(program, str(stop), stop.code)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        return _say(program, "interrupted", ExitCode.INTERRUPTED)
    except OSError as error:
        _drop_output()
        return _say(program, str(error), ExitCode.FAILED)
    except Exception as error:  # noqa: BLE001  (the last line of defence: no traceback reaches a user)
        return _explain(error, program)
    return code if isinstance(code, int) else ExitCode.OK


def _invoke(command: click.Command, program: str) -> object:
    try:
        return command.main(prog_name=program, standalone_mode=False)
    except Exception as error:
        lack = explain_lack(error)
        if lack and os.environ.get("FFDL_DEBUG") != "1":
            raise Stop(ExitCode.TRY_AGAIN, lack) from error
        raise


def _explain(error: Exception, program: str) -> int:
    if os.environ.get("FFDL_DEBUG") == "1":
        raise error
    message = f"{type(error).__name__}: {error}".rstrip(": ")
    return _say(
        program, f"unexpected error: {message}; this is a defect; FFDL_DEBUG=1 shows where it happened", ExitCode.FAILED
    )


def _say(program: str, text: str, code: ExitCode) -> int:
    for line in text.splitlines():
        click.echo(f"{program}: {line}", err=True)
    return int(code)


def _drop_output() -> None:
    """Python flushes standard output once more at exit: give what is left somewhere to go."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, _STDOUT)
    os.close(null)
