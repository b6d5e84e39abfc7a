"""Options for what commands print and write: JSON, formats of reports, and files, which are written as a whole."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import click

from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.domain.terminal_text import quoted
from ffdl_batch.exit_handling import Stop
from ffdl_batch.output import data_output

FORMATS = ("text", "json", "csv", "markdown", "html")
"""Formats of reports."""

AnyFunction = Callable[..., object]


def json_option(text: str = "Print JSON.") -> Callable[[AnyFunction], AnyFunction]:
    """Return the option for JSON. The command gets it as `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help=text)


def chosen_format(form: str, *, as_json: bool) -> str:
    """Return the format that --format and --json select. Raises UsageError if they exclude each other."""
    if as_json and form not in ("text", "json"):
        raise click.UsageError(f"--json and --format {form} exclude each other")
    return "json" if as_json else form


def check_written(_: click.Context, __: click.Parameter, value: str | None) -> str | None:
    """Check the name of a file to write, or ``-``. Callback of an option."""
    if value is not None and value != "-":
        try:
            wrong = _wrong(Path(value))
        except PermissionError as error:
            wrong = f"{quoted(value, most=4096)} is not accessible: {error.strerror}"
        if wrong:
            raise click.BadParameter(wrong)
    return value


def check_picture(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """Check the name of a picture to write: its extension decides the format. Callback of an option."""
    if value is not None and Path(value).suffix.lower() != ".png":
        raise click.BadParameter(f"{quoted(value, most=4096)} does not end with .png, the only format")
    return check_written(context, parameter, value)


def _wrong(path: Path) -> str:
    parent = path.parent
    if path.is_dir():
        return f"{quoted(str(path), most=4096)} is a directory; name a file"
    if not parent.is_dir():
        return f"there is no directory {quoted(str(parent), most=4096)}; create it first"
    if path.exists() and not os.access(path, os.W_OK):
        return f"{quoted(str(path), most=4096)} is not writable"
    if not path.exists() and not os.access(parent, os.W_OK | os.X_OK):
        return f"the directory {quoted(str(parent), most=4096)} is not writable"
    return ""


@contextmanager
def writing(path: str) -> Iterator[str]:
    """Yield the name to write to instead of `path`, which is replaced afterwards, so that a failure leaves the old
    file. Pipes and devices are written directly. Raises Stop if the file cannot be written."""
    if path == "-":
        yield path
        return
    try:
        if _is_plain(path):
            with replacing(path) as name:
                yield name
        else:
            yield path
    except OSError as error:
        raise Stop(ExitCode.FAILED, f"{path} cannot be written: {error.strerror or error}") from error


@contextmanager
def replacing(path: str) -> Iterator[str]:
    """Yield the name of a file that replaces the user's file `path` afterwards. Raises OSError.

    Unlike :mod:`ffdl_batch.attempt.file_writer` it follows links and the umask, moves no directory away, and lets
    libraries write that need a name.
    """
    target = Path(path).resolve()
    name = target.with_name(f"{target.name}.{os.getpid()}.part")
    try:
        yield str(name)
        with name.open("rb") as file:
            os.fsync(file.fileno())
        name.replace(target)
    finally:
        name.unlink(missing_ok=True)


@contextmanager
def open_output(output: str) -> Iterator[IO[str]]:
    """Open standard output (``-``), or a text file that appears as a whole. Raises Stop as :func:`writing`."""
    with writing(output) as path:
        if path == "-":
            yield data_output()
        else:
            with open(path, "w", encoding="utf-8", newline="") as file:  # noqa: PTH123
                yield file


def _is_plain(path: str) -> bool:
    """Return whether it is a file, or no file yet, that can be replaced in its directory."""
    try:
        found = Path(path).stat()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return stat.S_ISREG(found.st_mode) and found.st_nlink == 1 and os.access(Path(path).resolve().parent, os.W_OK)
