"""Filters standard output and error of the commands, and reports failures of standard output as such.

Everything that a command writes to sys.stdout or sys.stderr, by any library, passes through :func:`printable`. So no
name, argument, message or traceback can control a terminal. This also applies in a pipe, because a terminal may show
that text later (ssh, tee, less, CI logs). Programs read --json, whose values are exact.

Two functions bypass the filter: :func:`echo_styled` for lines with our own colours, and :func:`data_output` for
documents and logs, which a pipe or a file gets byte for byte.
"""

from __future__ import annotations

import codecs
import errno
import io
import os
import sys
from typing import IO, TYPE_CHECKING, TextIO

import click

from ffdl_batch.domain.terminal_text import printable

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_STDOUT, _STDERR = 1, 2


class OutputLost(Exception):
    """Standard output could not be written. Not an OSError, so that callers do not mistake it for an error of a file or
    socket."""

    def __init__(self, error: OSError) -> None:
        closed = error.errno == errno.EBADF
        super().__init__(
            "standard output is closed" if closed else f"standard output cannot be written: {error.strerror}"
        )


class _Output(io.FileIO):
    """Reports failures of standard output as :class:`OutputLost`; a closed pipe stays a BrokenPipeError."""

    def write(self, data: ReadableBuffer, /) -> int:
        try:
            return super().write(data)
        except (BrokenPipeError, BlockingIOError):
            raise
        except OSError as error:
            raise OutputLost(error) from error


class _Filtered(io.TextIOWrapper):
    """A standard stream. Text is filtered unless :meth:`write_exactly` writes it."""

    def write(self, text: str, /) -> int:
        return super().write(printable(text))

    def write_exactly(self, text: str) -> int:
        """Write text with intended control characters."""
        return super().write(text)


class _Exact(io.TextIOBase):
    """Writes to a filtered stream without its filter."""

    def __init__(self, stream: _Filtered) -> None:
        self._stream = stream

    def write(self, text: str, /) -> int:
        return self._stream.write_exactly(text)

    def flush(self) -> None:
        self._stream.flush()


def watch_output() -> None:
    """Replace sys.stdout and sys.stderr by filtered streams. Failures of sys.stdout become :class:`OutputLost`.

    If the caller closed descriptor 1 (``>&-``), open a descriptor that cannot be written in its place. Otherwise the
    next file or socket would get that number and receive the output. Characters that the locale's encoding lacks (a
    curve in Latin-1) become a question mark.
    """
    old = sys.stdout
    if old is None:
        held = os.open(os.devnull, os.O_RDONLY)
        if held != _STDOUT:
            os.dup2(held, _STDOUT)
            os.close(held)
    sys.stdout = _filtered(_Output(_STDOUT, "w", closefd=False), old)
    if sys.stderr is not None:
        sys.stderr = _filtered(io.FileIO(_STDERR, "w", closefd=False), sys.stderr)


def _filtered(raw: io.FileIO, old: TextIO | None) -> _Filtered:
    """Return a stream on `raw` with the encoding of `old`. ASCII becomes UTF-8, because click would bypass an ASCII
    stream and write to the bytes below it."""
    named = (old and old.encoding) or "utf-8"
    encoding = "utf-8" if codecs.lookup(named).name == "ascii" else named
    errors = "replace" if old is None or old.errors in (None, "strict") else old.errors
    by_line = old is not None and bool(old.line_buffering)
    return _Filtered(io.BufferedWriter(raw), encoding=encoding, errors=errors, line_buffering=by_line)


def echo_styled(text: str, *, nl: bool = True, err: bool = False) -> None:
    """Print text that has our own control sequences. Everything else in it must have passed :func:`printable`."""
    stream = sys.stderr if err else sys.stdout
    click.echo(text, file=stream and _exactly(stream), nl=nl, err=err, color=True)


def data_output() -> IO[str]:
    """Return standard output for a document or a log: exact in a pipe or a file, filtered on a terminal."""
    return sys.stdout if sys.stdout.isatty() else _exactly(sys.stdout)


def _exactly(stream: IO[str]) -> IO[str]:
    return _Exact(stream) if isinstance(stream, _Filtered) else stream  # type: ignore[return-value]  # as IO[str]


def drop_output() -> None:
    """Redirect standard output to /dev/null, because Python flushes it once more at exit."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, _STDOUT)
    os.close(null)
