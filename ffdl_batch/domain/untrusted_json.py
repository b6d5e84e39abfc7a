"""Parses JSON that a learner or a user may have written. Runs on Python 3.9."""

from __future__ import annotations

import json
import math
import re
from typing import Any

MAX_DEPTH = 64
"""Maximum depth of lists and objects. json recurses once a level, and so does code that walks over the value."""
MAX_DIGITS = 20
"""Maximum length of an integer. A 64-bit integer has at most 19 digits and a sign, and Python's conversion takes
quadratic time."""
MAX_WHOLE = 2**63 - 1
_LEVELS = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"?|[\[{]|[\]}]', re.DOTALL)
"""Matches a string, also one without an end. Otherwise each quote in it would start a search to the end of the text."""
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
_MAY_BE_UNSTORABLE = re.compile(r"\\u(?:0000|[dD][89a-fA-F])|[\ud800-\udfff]")


def parse_json(text: str | bytes, *, finite: bool = True) -> Any:
    """Return the value of a JSON text.

    NUL characters and lone surrogates become U+FFFD, because databases and UTF-8 files hold neither. Raises ValueError
    for a text that is not JSON in UTF-8, has more than MAX_DEPTH levels, an integer of more than 64 bits or, unless
    `finite` is false, a number that is not finite. Never raises RecursionError.
    """
    if isinstance(text, bytes):
        text = text.decode("utf-8")
    if text.count("[") + text.count("{") > MAX_DEPTH:
        _check_depth(text)
    value = (_STRICT if finite else _LENIENT).decode(text)
    return _storable(value) if _MAY_BE_UNSTORABLE.search(text) else value


def _check_depth(text: str) -> None:
    depth = 0
    for found in _LEVELS.finditer(text):
        sign = found.group()
        if sign in "[{":
            depth += 1
            if depth > MAX_DEPTH:
                raise ValueError(f"more than {MAX_DEPTH} nested levels")
        elif sign in "]}":
            depth -= 1


def _whole(digits: str) -> int:
    value = int(digits) if len(digits) <= MAX_DIGITS else MAX_WHOLE + 1
    if not -MAX_WHOLE - 1 <= value <= MAX_WHOLE:
        raise ValueError(f"integer {digits[:MAX_DIGITS]}... does not fit into 64 bits")
    return value


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError(f"number {digits[:MAX_DIGITS]} is out of range")
    return value


def _refuse(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number")


def _storable(value: Any) -> Any:
    if isinstance(value, str):
        return _UNSTORABLE.sub("�", value)
    if isinstance(value, list):
        return [_storable(one) for one in value]
    if isinstance(value, dict):
        return {_storable(key): _storable(one) for key, one in value.items()}
    return value


_STRICT = json.JSONDecoder(parse_int=_whole, parse_float=_finite, parse_constant=_refuse)
_LENIENT = json.JSONDecoder(parse_int=_whole)
