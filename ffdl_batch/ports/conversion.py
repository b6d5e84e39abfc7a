"""What the core asks of those who read another system's job scripts, and write such scripts again.

Values and a Protocol; :mod:`ffdl_batch.ports.converters` finds who can do it. A converter is pure: it is handed texts
and gives texts back, opens no file and asks no scheduler.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol, runtime_checkable

from ffdl_batch.domain.job.spec import JobSpec


class Fate(StrEnum):
    """What became of a directive or of a line."""

    MAPPED = "mapped"
    """The job does the same."""
    APPROXIMATED = "approximated"
    """The job does something near, and the reason says what differs."""
    DROPPED = "dropped"
    """Nothing of it is in the manifest."""


class Origin(StrEnum):
    """Where something was said."""

    COMMAND = "command line"
    ENVIRONMENT = "environment"
    SCRIPT = "script"
    BODY = "body"


@dataclass(frozen=True, slots=True)
class Judged:
    """One directive, or one line of a body. `line` counts from 1, 0 where it is in no file. `to` is the key of the
    manifest, "" where there is none; `reason` is needed where it is not simply mapped."""

    origin: Origin
    line: int
    text: str
    fate: Fate
    to: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Source:
    """What is to be converted. `name` is what messages call it, and what the script is called in the model's directory.
    `options` are those of the submitting command, in argv form, `arguments` those of the script itself."""

    text: str
    name: str
    options: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    environ: Mapping[str, str] = field(default_factory=dict)
    image: str = ""
    """The image to run in where the script names none."""


@dataclass(frozen=True, slots=True)
class Conversion:
    """A manifest as plain mappings, lists, texts and numbers, in the order in which they are to be written, and what
    became of each piece. `wrapped`: why the script runs whole, as it is ("" = it was understood)."""

    manifest: Mapping[str, object]
    judged: tuple[Judged, ...]
    wrapped: str = ""
    contained: bool = False
    """Whether the script names the image itself."""


class CannotConvert(ValueError):
    """A script that its own system would not take either, or that no manifest can stand for. `line` counts from 1, 0
    where none is at fault."""

    def __init__(self, message: str, cure: str = "", line: int = 0) -> None:
        super().__init__(f"{message} ({cure})" if cure else message)
        self.line = line


@runtime_checkable
class ReadsScripts(Protocol):
    """A converter that makes manifests of job scripts."""

    def recognises(self, text: str) -> bool:
        """Whether the text is such a script, by its content alone."""
        ...

    def convert(self, source: Source) -> Conversion:
        """The manifest, and what became of each directive and line. Raises CannotConvert."""
        ...

    def differences(self, source: Source, script: str) -> tuple[str, ...]:
        """What `script`, written by :meth:`WritesScripts.write`, asks of its system otherwise than `source`: lines for
        people, those of `source` after ``-``, those of `script` after ``+``. Raises CannotConvert."""
        ...


@runtime_checkable
class WritesScripts(Protocol):
    """A converter that makes a job script of a manifest, which needs this software no more."""

    def write(self, spec: JobSpec, *, contained: bool = True) -> str:
        """The script; `contained`: learners run in their image, else as plain processes of the node. Raises
        CannotConvert for a job that it cannot express."""
        ...
