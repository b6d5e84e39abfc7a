"""Shows characters that control a terminal or deceive its reader as escapes. No other module defines them."""

from __future__ import annotations

import json
import re

_HIDDEN = re.compile(
    "["
    "\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 but tab and line feed, DEL, C1
    "\u2028\u2029"  # line and paragraph separators
    "\ud800-\udfff"  # bytes of a name or argument that are not UTF-8 (PEP 383)
    # Default_Ignorable_Code_Point of Unicode 16, DerivedCoreProperties.txt: zero-width and invisible characters, marks
    # and overrides of the writing direction. Without U+FE0E and U+FE0F, which choose how the sign before them looks.
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164"
    "\ufe00-\ufe0d\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
    "]"
)


def printable(text: str, *, one_line: bool = False) -> str:
    r"""Return `text` with every character that a terminal does not print as a Python escape: ``\x1b``, ``\u202e``.

    A byte that is not UTF-8, which Python has as a lone surrogate, is shown as the byte: ``\xfc``.
    Line feeds and tabs are kept. With `one_line` they become ``\n`` and ``\t``. A backslash in the text stays one
    backslash, because programs that need the exact value read JSON.
    """
    if one_line:
        text = text.replace("\n", "\\n").replace("\t", "\\t")
    return _HIDDEN.sub(_escape, text)


def quoted(text: str, *, most: int = 60) -> str:
    """Return `text` in single quotes on one line, as :func:`printable` shows it. Of a text of more than `most`
    characters return the beginning, with ``...`` at its end."""
    short = text if len(text) <= most else f"{text[: most - 3]}..."
    return f"'{printable(short, one_line=True)}'"


def _escape(found: re.Match[str]) -> str:
    code = ord(found[0])
    if 0xDC80 <= code <= 0xDCFF:
        code -= 0xDC00
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def json_text(value: object, *, indent: int | None = None) -> str:
    """Return `value` as JSON that :func:`printable` does not change: ASCII without DEL, which json does not escape."""
    return escape_delete(json.dumps(value, indent=indent))


def escape_delete(text: str) -> str:
    """Return ASCII JSON with DEL, which can occur only in its strings, as an escape."""
    return text.replace("\x7f", "\\u007f")
