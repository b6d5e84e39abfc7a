"""What the core asks of those who write a job for a scheduler without this software: for those who want to leave.

Found like converters (:mod:`ffdl_batch.ports.converters`), by the name of the backend. Pure, as they are.
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
class Leaving:
    """A job that is to run without us. `file` is what the manifest is called, `image` what it runs in, and `settings`
    are the backend's, as the configuration has them. `secrets_file` is a file beside the script that exports the values
    of secrets ("" = whoever submits it exports them), `model` the directory beside it that the model is in ("" = its
    own)."""

    spec: JobSpec
    file: str
    image: str
    settings: Mapping[str, object] = field(default_factory=dict)
    secrets_file: str = ""
    model: str = ""


@dataclass(frozen=True, slots=True)
class Left:
    """The text of a script or of objects, and what became of each key of the manifest. `undone` are stores whose data
    nobody moves before the text is completed."""

    text: str
    judged: tuple[Judged, ...]
    undone: tuple[str, ...] = ()


@runtime_checkable
class WritesJobs(Protocol):
    """Who writes a job for a scheduler alone."""

    @property
    def pulls_images(self) -> bool:
        """Whether images are references of registries, never files."""
        ...

    def leave(self, leaving: Leaving) -> Left:
        """Raises CannotConvert for a job that cannot be expressed, InvalidRequest for settings that cannot be used."""
        ...


@dataclass(frozen=True, slots=True)
class Word:
    """What becomes of a key."""

    fate: Fate
    to: str = ""
    reason: str = ""


def judge_keys(spec: JobSpec, words: Mapping[str, Word]) -> tuple[Judged, ...]:
    """What became of each key that the manifest gives, by line. `words` has the longest beginning of a key that counts;
    a key that none begins is dropped, and is told so."""
    found = []
    for path, source in spec.sources.items():
        given = _GIVEN.fullmatch(source)
        if given is None or _is_block(path, spec):
            continue
        word = _word(path, words)
        found.append(Judged(Origin.SCRIPT, int(given[1]), path, word.fate, word.to, word.reason))
    return tuple(sorted(found, key=lambda one: (one.line, one.text)))


def _is_block(path: str, spec: JobSpec) -> bool:
    """Whether the keys below it are told, each by itself."""
    return any(other.startswith((f"{path}.", f"{path}[")) for other in spec.sources)


def _word(path: str, words: Mapping[str, Word]) -> Word:
    plain = re.sub(r"\[\d+\]", "", path)
    while plain:
        if plain in words:
            return words[plain]
        plain = plain.rpartition(".")[0]
    return Word(Fate.DROPPED, "", "nothing but this software knows it")
