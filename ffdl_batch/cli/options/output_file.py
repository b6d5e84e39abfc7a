"""Check the names of files that commands write before anything is asked, and write each file as a whole."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from ffdl_batch.cli.exit_handling import Stop
from ffdl_batch.domain.exit_codes import ExitCode


def check_written(_: click.Context, __: click.Parameter, value: str | None) -> str | None:
    """The callback of options that name a file to be written, or ``-``."""
    if value is not None and value != "-":
        wrong = _wrong(Path(value))
        if wrong:
            raise click.BadParameter(wrong)
    return value


def check_picture(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """Likewise, for a picture: its ending decides the format."""
    if value is not None and Path(value).suffix.lower() != ".png":
        raise click.BadParameter(f"{value!r} does not end with .png, which is what is written")
    return check_written(context, parameter, value)


def _wrong(path: Path) -> str:
    parent = path.parent
    if path.is_dir():
        return f"{str(path)!r} is a directory; name a file"
    if not parent.is_dir():
        return f"there is no directory {str(parent)!r}; make it first"
    if path.exists() and not os.access(path, os.W_OK):
        return f"{str(path)!r} may not be written"
    if not path.exists() and not os.access(parent, os.W_OK | os.X_OK):
        return f"nothing may be written in the directory {str(parent)!r}"
    return ""


@contextmanager
def writing(path: str) -> Iterator[str]:
    """The name to write to, in the place of `path`, which is replaced when all is written: what was there stays where
    something fails. Pipes and devices are written to themselves. Raises Stop where the file cannot be written."""
    if path == "-":
        yield path
        return
    replaces = _is_plain(path)
    name = f"{Path(path).resolve()}.{os.getpid()}.part" if replaces else path
    try:
        yield name
        if replaces:
            Path(name).replace(Path(path).resolve())
    except OSError as error:
        raise Stop(ExitCode.FAILED, f"{path} cannot be written: {error.strerror or error}") from error
    finally:
        if replaces:
            Path(name).unlink(missing_ok=True)


def _is_plain(path: str) -> bool:
    """A file that can be replaced: in a directory that can be written to."""
    try:
        found = Path(path).stat()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return stat.S_ISREG(found.st_mode) and found.st_nlink == 1 and os.access(Path(path).resolve().parent, os.W_OK)
