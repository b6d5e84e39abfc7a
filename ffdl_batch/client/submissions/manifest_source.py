"""Reads what a client needs of a manifest: its text, name and owner, and the directory of relative paths."""

from __future__ import annotations

import errno
import os
import stat
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from ffdl_batch.client.errors import InputUnusable
from ffdl_batch.domain.exit_codes import ExitCode

MAX_BYTES = 1 << 20
"""A manifest is a page; a megabyte is a mistake (a data file, an archive), and is not sent."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a manifest comes from."""

    base_dir: str
    """The absolute directory to which relative paths refer."""
    real_dir: str
    """The real path, without links, of the manifest's directory."""
    owner: int | None = None
    """The user id of the file's owner; None for standard input that is not a file, or if the caller passed the text
    itself."""


@dataclass(frozen=True, slots=True)
class ManifestText:
    """A manifest as it is sent. `name` is used in messages."""

    text: str
    name: str
    origin: Origin


def read_source(source: str | Path) -> tuple[bytes, Origin]:
    """Read the file `source` (``-``: standard input). Read at most one byte more than a manifest may have.

    Raises OSError.
    """
    if str(source) == "-":
        return sys.stdin.buffer.read(MAX_BYTES + 1), replace(_here(), owner=_owner_of_input())
    path = Path(source)
    with path.open("rb") as file:
        data, found = file.read(MAX_BYTES + 1), os.fstat(file.fileno())
    base = path.absolute().parent
    if not stat.S_ISREG(found.st_mode) or not found.st_nlink:  # a pipe, or the shell's file behind /dev/stdin
        return data, Origin(str(base), os.path.realpath(base), found.st_uid)
    real = Path(os.path.realpath(path))
    if not os.path.samestat(found, real.stat()):
        raise OSError(errno.ESTALE, "the file was replaced while it was read; try again")
    return data, Origin(str(base), str(real.parent), found.st_uid)


def read_manifest(source: str | Path) -> ManifestText:
    """Read the manifest in a file (``-``: standard input), or `source` itself if it is a text of several lines.

    Raises :class:`InputUnusable`: exit code 66 if it cannot be read, 78 if it is too large or not text.
    """
    if isinstance(source, str) and "\n" in source:
        return ManifestText(source, "manifest", _here())
    name = "standard input" if str(source) == "-" else str(source)
    try:
        data, origin = read_source(source)
    except OSError as error:
        reason = "there is no such file" if isinstance(error, FileNotFoundError) else error.strerror
        raise InputUnusable(f"manifest {name}: {reason}", code="C101") from error
    if len(data) > MAX_BYTES:
        raise _unusable(name, f"has more than {MAX_BYTES >> 20} MiB; this is no manifest")
    try:
        return ManifestText(data.decode("utf-8-sig"), name, origin)
    except UnicodeDecodeError as error:
        raise _unusable(name, f"is not UTF-8 text: byte {error.start} is 0x{data[error.start]:02x}") from error


def _owner_of_input() -> int | None:
    """Return the owner of the file that the shell opened as standard input; None if it is not a file."""
    try:
        found = os.fstat(sys.stdin.fileno())
    except OSError:  # a program put another object in its place
        return None
    return found.st_uid if stat.S_ISREG(found.st_mode) else None


def _here() -> Origin:
    return Origin(str(Path.cwd()), os.path.realpath("."))


def _unusable(name: str, what: str) -> InputUnusable:
    return InputUnusable(f"manifest {name} {what}", code="C101", exit_code=ExitCode.BAD_MANIFEST)
