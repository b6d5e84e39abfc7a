"""What commands printed, made fit for a message: one line, short, and without what would steer a terminal. Pure."""

from __future__ import annotations

import re

SHORT, LONG = 120, 400
"""Characters. A refusal may be long: sites explain their rules in it (job_submit plugins)."""
_ENOUGH = 16
"""So many times what is kept is looked at: a command that prints a whole file costs little."""
_SEQUENCE = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")


def clean(text: str) -> str:
    """`text` on one line, without terminals' control sequences, control characters, and bytes that were no text."""
    plain = _SEQUENCE.sub(" ", text)
    kept = (c if c.isprintable() and c != "\N{REPLACEMENT CHARACTER}" else " " for c in plain)
    return " ".join("".join(kept).split())


def shorten(text: str, characters: int = SHORT) -> str:
    """`text` on one clean line. Of a long one the end: commands complain and greet first, and fail last."""
    text = text.strip()
    line = clean(text[-_ENOUGH * characters :])
    return line if len(line) <= characters and len(text) <= _ENOUGH * characters else f"... {line[-characters:]}"


def begin(text: str, characters: int = SHORT) -> str:
    """The same, of a long one the beginning: it says what was printed in the place of an answer."""
    text = text.strip()
    line = clean(text[: _ENOUGH * characters])
    return line if len(line) <= characters and len(text) <= _ENOUGH * characters else f"{line[:characters]} ..."
