"""Standard output and error of our commands: what they print is filtered here, and failures are told apart.

Everything that a command writes to sys.stdout or sys.stderr, by whatever library, passes through :func:`printable`, so
that no name, argument, message or traceback steers a terminal. This is also so in a pipe: what is printed there is
shown by a terminal later (ssh, tee, less, logs of CI). Programs read --json, whose values are exact.

Two functions pass the filter: :func:`echo_styled` for lines with colours of our own, and :func:`data_output` for
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
    """Standard output took nothing. No OSError, so that nobody mistakes it for one of a file or a socket."""

    def __init__(self, error: OSError) -> None:
        closed = error.errno == errno.EBADF
        super().__init__(
            "standard output is closed" if closed else f"standard output cannot be written: {error.strerror}"
        )


class _Output(io.FileIO):
    """Tells failures of standard output from those of everything else; a closed pipe stays what it is."""

    def write(self, data: ReadableBuffer, /) -> int:
        try:
            return super().write(data)
        except (BrokenPipeError, BlockingIOError):
            raise
        except OSError as error:
            raise OutputLost(error) from error


class _Filtered(io.TextIOWrapper):
    """A standard stream; text reaches it filtered, unless it is written by :meth:`write_exactly`."""

    def write(self, text: str, /) -> int:
        return super().write(printable(text))

    def write_exactly(self, text: str) -> int:
        """Write text whose control characters are meant."""
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
    """Replace sys.stdout and sys.stderr by filtered ones; failures of sys.stdout become :class:`OutputLost`.

    If the caller closed descriptor 1 (``>&-``), it is held by something that cannot be written: otherwise the next file
    or socket would get that number, and output would go there. Characters that the locale's encoding lacks (a curve in
    Latin-1) become a question mark.
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
    """A stream on `raw` with the encoding of `old`. ASCII becomes UTF-8, as click has it: it would pass a stream in
    ASCII by, and write to the bytes below."""
    named = (old and old.encoding) or "utf-8"
    encoding = "utf-8" if codecs.lookup(named).name == "ascii" else named
    errors = "replace" if old is None or old.errors in (None, "strict") else old.errors
    by_line = old is not None and bool(old.line_buffering)
    return _Filtered(io.BufferedWriter(raw), encoding=encoding, errors=errors, line_buffering=by_line)


def echo_styled(text: str, *, nl: bool = True, err: bool = False) -> None:
    """Print text that holds control sequences of our own; everything else in it has gone through `printable`."""
    stream = sys.stderr if err else sys.stdout
    click.echo(text, file=stream and _exactly(stream), nl=nl, err=err, color=True)


def data_output() -> IO[str]:
    """Return standard output for a document or a log: exact in a pipe or a file, filtered on a terminal."""
    return sys.stdout if sys.stdout.isatty() else _exactly(sys.stdout)


def _exactly(stream: IO[str]) -> IO[str]:
    return _Exact(stream) if isinstance(stream, _Filtered) else stream  # type: ignore[return-value]  # as IO[str]


def drop_output() -> None:
    """Python flushes standard output once more at exit: give what is left somewhere to go."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, _STDOUT)
    os.close(null)
