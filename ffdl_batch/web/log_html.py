"""Turns the text of a log into HTML: colours and weights of ECMA-48 (SGR), everything else as text."""

from __future__ import annotations

import re
from collections.abc import Iterator

from markupsafe import Markup, escape

from ffdl_batch.domain.terminal_text import printable

_SEQUENCE = re.compile(r"\x1b(?:\[([0-?]*)[ -/]*([@-~])|\][^\x07\x1b]*(?:\x07|\x1b\\)|[ -/]*[0-Z\\^-~])")
_WEIGHTS = {"1": "b", "2": "d", "3": "i", "4": "u"}
_OFF = {"22": ("b", "d"), "23": ("i",), "24": ("u",)}


def to_html(line: str) -> Markup:
    r"""Return one line. Of a line with carriage returns, as progress bars print it, the last part is shown, as on a
    terminal."""
    shown = next((part for part in reversed(line.split("\r")) if part), "")
    return Markup("").join(_spans(shown))


def _spans(text: str) -> Iterator[Markup]:
    classes: dict[str, str] = {}
    at = 0
    for found in _SEQUENCE.finditer(text):
        yield _span(text[at : found.start()], classes)
        at = found.end()
        if found[2] == "m":
            _apply(found[1], classes)
    yield _span(text[at:], classes)


def _span(text: str, classes: dict[str, str]) -> Markup:
    shown = escape(printable(text))
    return Markup('<span class="{}">{}</span>').format(" ".join(classes.values()), shown) if classes and text else shown


def _apply(parameters: str, classes: dict[str, str]) -> None:
    """Apply the parameters of one sequence to the current classes, by what they set: weight, fg or bg."""
    codes = iter(parameters.replace(":", ";").split(";"))
    for given in codes:
        code = given or "0"
        if code == "0":
            classes.clear()
        elif code in _WEIGHTS:
            classes[code] = _WEIGHTS[code]
        elif code in _OFF:
            for key in [key for key, name in classes.items() if name in _OFF[code]]:
                del classes[key]
        elif code in ("38", "48"):
            _set(classes, "fg" if code == "38" else "bg", _extended(codes))
        elif code in ("39", "49"):
            classes.pop("fg" if code == "39" else "bg", None)
        elif code.isdecimal() and len(code) <= 3:
            _set_basic(classes, int(code))


def _set_basic(classes: dict[str, str], code: int) -> None:
    for first, key, offset in ((30, "fg", 0), (40, "bg", 0), (90, "fg", 8), (100, "bg", 8)):
        if first <= code <= first + 7:
            _set(classes, key, code - first + offset)


def _set(classes: dict[str, str], key: str, colour: int | None) -> None:
    if colour is not None:
        classes[key] = f"{key}{colour}"


def _extended(codes: Iterator[str]) -> int | None:
    """Return the nearest of the 16 colours to that of ``5;N`` or ``2;R;G;B``; None if the rest is something else."""
    kind = next(codes, "")
    if kind == "5":
        number = _byte(next(codes, ""))
        return None if number is None else number if number < 16 else _nearest(*_of_256(number))
    if kind == "2":
        red, green, blue = (_byte(next(codes, "")) for _ in range(3))
        if red is not None and green is not None and blue is not None:
            return _nearest(red, green, blue)
    return None


def _byte(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 3 and int(text) < 256 else None


def _of_256(number: int) -> tuple[int, int, int]:
    """Return red, green and blue of a colour of xterm's palette, from 16."""
    if number >= 232:
        grey = 8 + 10 * (number - 232)
        return grey, grey, grey
    red, rest = divmod(number - 16, 36)
    green, blue = divmod(rest, 6)
    return tuple(55 + 40 * part if part else 0 for part in (red, green, blue))  # type: ignore[return-value]


def _nearest(red: int, green: int, blue: int) -> int:
    """Return the number of the nearest of the 16 colours: a bit for each strong part, and 8 if it is bright."""
    strongest = max(red, green, blue)
    if strongest - min(red, green, blue) < 32:
        return (0, 8, 7, 15)[strongest // 64]
    bits = sum(1 << place for place, part in enumerate((red, green, blue)) if part > strongest // 2)
    return bits + (8 if strongest >= 192 else 0)
