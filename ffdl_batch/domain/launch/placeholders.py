"""Placeholders in the texts of a launch file (:mod:`ffdl_batch.domain.launch.launch_file` lists them). Runs on Python
3.9."""

from __future__ import annotations

import string
from typing import FrozenSet, Mapping


class LaunchFileError(ValueError):
    """A launch file that this release cannot use."""


def fill(text: str, values: Mapping[str, str]) -> str:
    """Replace the placeholders of `text`; an unknown one raises :class:`LaunchFileError`.

    Only plain names are placeholders: no attribute access, no indexes, no format specifications.
    """
    parts = []
    try:
        for literal, name, spec, conversion in string.Formatter().parse(text):
            parts.append(literal)
            if name is None:
                continue
            if spec or conversion or name not in values:
                raise LaunchFileError(f"{{{name}}} is not a placeholder of this release")
            parts.append(values[name])
    except ValueError as error:
        raise LaunchFileError(f"{text!r}: {error}") from error
    return "".join(parts)


def placeholders(text: str) -> FrozenSet[str]:
    """Return the names that :func:`fill` would replace; none for a text that it refuses."""
    try:
        return frozenset(name for _, name, _, _ in string.Formatter().parse(text) if name)
    except ValueError:
        return frozenset()


def literal(text: str) -> str:
    """Return `text` so that :func:`fill` returns it unchanged."""
    return text.replace("{", "{{").replace("}", "}}")
