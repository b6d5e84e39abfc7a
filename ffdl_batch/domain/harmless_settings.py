"""Marks the settings that an ``ffdl.toml`` in the working directory may change.

Such a file may come from another person, for example in a cloned repository. So a setting is harmless only if a hostile
value cannot execute a program, reach a file or a host, or weaken a protection. As a rule, a manifest in the same
directory could request the same. A setting without the mark is not accepted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from types import MappingProxyType
from typing import Any

HARMLESS: Mapping[str, bool] = MappingProxyType({"harmless": True})
"""The mark, in the metadata of a dataclass field."""


def harmless_keys(settings: type[Any]) -> frozenset[str]:
    """Return the names of the fields of a settings dataclass that have the mark."""
    return frozenset(one.name for one in fields(settings) if one.metadata.get("harmless"))
