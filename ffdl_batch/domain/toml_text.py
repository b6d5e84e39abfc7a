"""Reads TOML, and writes values of a configuration file as TOML for messages: ``true``, ``'text'``, ``{a = 1}``."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

MAX_DEPTH = 64
"""Maximum depth of lists and inline tables. tomllib recurses once a level."""
MAX_DIGITS = 4300
"""Maximum length of an integer that Python converts."""
MAX_SHOWN = 100
"""Maximum length of a value in a message."""
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_PARTS = re.compile(
    r"""\"{3}.*?\"{3}|'{3}.*?'{3}|"(?:[^"\\\n]|\\.)*"|'[^'\n]*'|\#[^\n]*|[\[{]|[\]}]"""
    rf"""|\b\d[\d_]{{{MAX_DIGITS},}}""",
    re.DOTALL,
)
"""Matches texts and comments, in which brackets and digits do not count, brackets, and integers that are too long."""


def parse_toml(raw: bytes) -> dict[str, Any]:
    """Return the table of a TOML file, which may begin with a byte order mark. Raises ValueError with the line and the
    cure, never RecursionError."""
    import tomllib

    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise ValueError(
            f"line {line} has the byte \\x{raw[error.start]:02x}, which is not UTF-8; save it as UTF-8"
        ) from None
    depth = 0
    for part in _PARTS.finditer(text):
        sign = part[0]
        depth += (sign in ("[", "{")) - (sign in ("]", "}"))
        line = text.count("\n", 0, part.start()) + 1 if depth > MAX_DEPTH or sign[0].isdigit() else 0
        if depth > MAX_DEPTH:
            raise ValueError(f"line {line} has lists or tables in more than {MAX_DEPTH} levels; use fewer levels")
        if sign[0].isdigit():
            raise ValueError(f"line {line} has an integer of more than {MAX_DIGITS} digits; write a smaller number")
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("it has lists or tables in too many levels; use fewer levels") from None


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


def shown_toml(value: object) -> str:
    """Return a value for a message: the beginning, with ``...`` at its end, of one that is long."""
    text = toml_text(value)
    return text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 3]}..."


def _quoted(text: str) -> str:
    """Return a literal string, or a basic string if the text has characters that a literal string cannot have."""
    return f"'{text}'" if text.isprintable() and "'" not in text else json.dumps(text)


def _key(key: str) -> str:
    return key if _BARE_KEY.fullmatch(key) else _quoted(key)
