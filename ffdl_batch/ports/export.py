"""Exporters write a job for a scheduler, as a script or objects that need no ffdl installation.

They are found by the name of the backend, like converters (:mod:`ffdl_batch.ports.converters`), and are pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from ffdl_batch.domain.job.spec import JobSpec
from ffdl_batch.ports.conversion import Fate, Judged, Origin

_GIVEN = re.compile(r"manifest:(\d+)")


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


@runtime_checkable
class ExportsJobs(Protocol):
    """An exporter."""

    @property
    def pulls_images(self) -> bool:
        """Whether images are references of registries, never files."""
        ...

    def export(self, request: ExportRequest) -> ExportedJob:
        """Write the job. Raises CannotConvert for a job that cannot be expressed, InvalidRequest for bad settings."""
        ...


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
    """Whether the keys below it are reported, each by itself."""
    return any(other.startswith((f"{path}.", f"{path}[")) for other in spec.sources)


def _fate_of(path: str, fates: Mapping[str, KeyFate]) -> KeyFate:
    plain = re.sub(r"\[\d+\]", "", path)
    while plain:
        if plain in fates:
            return fates[plain]
        plain = plain.rpartition(".")[0]
    return KeyFate(Fate.DROPPED, "", "nothing but this software knows it")
