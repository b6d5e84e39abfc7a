"""Writes values of a configuration file as TOML, for messages: ``true``, ``'text'``, ``{a = 1}``."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def toml_text(value: object) -> str:
    """Return a value as a TOML file has it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, Mapping):
        pairs = (f"{_key(str(key))} = {toml_text(one)}" for key, one in value.items())
        return "{" + ", ".join(pairs) + "}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(toml_text(one) for one in value)}]"
    return str(value)


def _quoted(text: str) -> str:
    """Return a literal string, or a basic string if the text has characters that a literal string cannot have."""
    return f"'{text}'" if text.isprintable() and "'" not in text else json.dumps(text)


def _key(key: str) -> str:
    return key if _BARE_KEY.fullmatch(key) else _quoted(key)
