"""Reads manifests as far as a client must: the text, its name, and where relative paths start."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from ffdl_batch.client.errors import InputUnusable
from ffdl_batch.domain.exit_codes import ExitCode

MAX_BYTES = 1 << 20
"""A manifest is a page; a megabyte is a mistake (a data file, an archive), and is not sent."""


@dataclass(frozen=True, slots=True)
class ManifestText:
    """A manifest as it is sent. `base_dir` is absolute."""

    text: str
    name: str
    base_dir: str


def read_manifest(source: str | Path) -> ManifestText:
    """The manifest in a file (``-``: standard input), or `source` itself where it is a text of several lines.

    Raises :class:`InputUnusable`: exit 66 where it cannot be read, 78 where it is too large or no text.
    """
    if isinstance(source, str) and "\n" in source:
        return ManifestText(source, "manifest", str(Path.cwd()))
    path = Path(source)
    try:
        if str(path) == "-":
            data, name, base = sys.stdin.buffer.read(MAX_BYTES + 1), "standard input", Path.cwd()
        else:
            with path.open("rb") as file:
                data, name, base = file.read(MAX_BYTES + 1), str(path), path.absolute().parent
    except OSError as error:
        reason = "there is no such file" if isinstance(error, FileNotFoundError) else error.strerror
        raise InputUnusable(f"manifest {path}: {reason}", code="C101") from error
    if len(data) > MAX_BYTES:
        raise _unusable(name, f"has more than {MAX_BYTES >> 20} MiB; this is no manifest")
    try:
        return ManifestText(data.decode("utf-8-sig"), name, str(base))
    except UnicodeDecodeError as error:
        raise _unusable(name, f"is not UTF-8 text: byte {error.start} is 0x{data[error.start]:02x}") from error


def _unusable(name: str, what: str) -> InputUnusable:
    return InputUnusable(f"manifest {name} {what}", code="C101", exit_code=ExitCode.BAD_MANIFEST)
