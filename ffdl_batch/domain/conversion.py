"""Values that converters of job scripts take and return: scripts, manifests, and what became of each of their parts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field
from enum import StrEnum

from ffdl_batch.domain.job.spec import JobSpec
from ffdl_batch.host.fast_dataclass import dataclass

_GIVEN = re.compile(r"manifest:(\d+)")


class Fate(StrEnum):
    """What became of a directive or of a line."""

    MAPPED = "mapped"
    """The job does the same."""
    APPROXIMATED = "approximated"
    """The job does something similar, and the reason says what differs."""
    DROPPED = "dropped"
    """The manifest has nothing of it."""


class Origin(StrEnum):
    """Where a directive is from."""

    COMMAND = "command line"
    ENVIRONMENT = "environment"
    SCRIPT = "script"
    BODY = "body"


@dataclass(frozen=True, slots=True)
class Judged:
    """One directive, or one line of a body."""

    origin: Origin
    line: int
    """From 1; 0 = it is in no file."""
    text: str
    fate: Fate
    to: str = ""
    """Key of the manifest; "" = none."""
    reason: str = ""
    """Required unless it is simply mapped."""


@dataclass(frozen=True, slots=True)
class Source:
    """A script to convert."""

    text: str
    name: str
    """Name in messages, and of the script in the model's directory."""
    options: tuple[str, ...] = ()
    """Options of the submitting command, in argv form."""
    arguments: tuple[str, ...] = ()
    """Arguments of the script itself."""
    environ: Mapping[str, str] = field(default_factory=dict)
    image: str = ""
    """Image to use if the script names none."""


@dataclass(frozen=True, slots=True)
class Conversion:
    """A manifest, and what became of each part of the script."""

    manifest: Mapping[str, object]
    """Plain mappings, lists, texts and numbers, in the order in which they are written."""
    judged: tuple[Judged, ...]
    wrapped: str = ""
    """Why the script runs as a whole, unchanged; "" = it was understood."""
    contained: bool = False
    """Whether the script names the image itself."""


class CannotConvert(ValueError):
    """A script that its own system would not accept either, or that no manifest can express."""

    def __init__(self, message: str, cure: str = "", line: int = 0) -> None:
        super().__init__(f"{message} ({cure})" if cure else message)
        self.line = line


@dataclass(frozen=True, slots=True)
class ExportRequest:
    """A job to write."""

    spec: JobSpec
    file: str
    """The name of the manifest."""
    image: str
    settings: Mapping[str, object] = field(default_factory=dict)
    """The table of the backend in the configuration."""


@dataclass(frozen=True, slots=True)
class ExportedJob:
    """The text of a script or of objects, and what became of each key of the manifest."""

    text: str
    judged: tuple[Judged, ...]


@dataclass(frozen=True, slots=True)
class KeyFate:
    """What becomes of a key."""

    fate: Fate
    to: str = ""
    reason: str = ""


def judge_keys(spec: JobSpec, fates: Mapping[str, KeyFate]) -> tuple[Judged, ...]:
    """Return what becomes of each key of the manifest, by line. The longest beginning of a key in `fates` decides;
    without one, the key is dropped."""
    found = []
    for path, source in spec.sources.items():
        given = _GIVEN.fullmatch(source)
        if given is None or _is_block(path, spec):
            continue
        key = _fate_of(path, fates)
        found.append(Judged(Origin.SCRIPT, int(given[1]), path, key.fate, key.to, key.reason))
    return tuple(sorted(found, key=lambda one: (one.line, one.text)))


def _is_block(path: str, spec: JobSpec) -> bool:
    """Return whether the keys below it are reported one by one."""
    return any(other.startswith((f"{path}.", f"{path}[")) for other in spec.sources)


def _fate_of(path: str, fates: Mapping[str, KeyFate]) -> KeyFate:
    plain = re.sub(r"\[\d+\]", "", path)
    while plain:
        if plain in fates:
            return fates[plain]
        plain = plain.rpartition(".")[0]
    return KeyFate(Fate.DROPPED, "", "nothing but this software knows it")
