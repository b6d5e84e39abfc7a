"""The kinds of single values in a manifest: each is one annotated type with its reader and its JSON Schema.

Readers get raw text, or None for YAML's nothing. A refusal carries two sentences: what is wrong, what is right.
Numbers follow YAML 1.1 as FfDL's reader took it (``_`` separators, ``0x``, ``0b``, octal with a leading zero) and
also the spellings that FfDL refused: quoted, ``1e3``, ``5.``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal
from typing import Annotated

from pydantic import BeforeValidator, WithJsonSchema
from pydantic_core import PydanticCustomError

from ffdl_batch.domain.quantity import WHOLE_NODE, parse_decimal, parse_requested_time, parse_size

MAX_COUNT = 2**31 - 1


def any_case(word: str) -> str:
    """Return a pattern for a word in upper and lower case; JSON Schema has no flags."""
    return "".join(f"[{letter.lower()}{letter.upper()}]" for letter in word)


MAX_AMOUNT = 1_000_000
_RADIX = re.compile(r"(?P<sign>[+-]?)(?P<digits>0[xX][0-9a-fA-F_]+|0[bB][01_]+|0[oO][0-7_]+)")
_DECIMAL = re.compile(r"[+-]?(\d[\d_]*\.?[\d_]*|\.\d[\d_]*)([eE][+-]?\d{1,4})?", re.ASCII)
_OCTAL = re.compile(r"[+-]?0[0-7_]*[1-7][0-7_]*", re.ASCII)
_CONTROL = re.compile("[\x00-\x1f\x7f\x85\u2028\u2029]")
_TRUE = frozenset({"true", "yes", "on", "y", "1"})
_FALSE = frozenset({"false", "no", "off", "n", "0"})
NUMBER_PATTERN = (
    r"^\s*\+?((\d[\d_]*\.?[\d_]*|\.\d[\d_]*)([eE][+-]?\d{1,4})?|0[xX][0-9a-fA-F_]+|0[bB][01_]+|0[oO][0-7_]+)?\s*$"
)
SIZE_PATTERN = r"^\s*((\d+(\.\d+)?|\.\d+)\s*([bB]|[kKmMgGtTpP][iI]?[bB]?)\s*)?$"
MEMORY_PATTERN = SIZE_PATTERN.replace("(", f"({any_case('all')}\\s*|", 1)
TIME_PATTERN = (
    rf"^\s*({any_case('unlimited')}|{any_case('infinite')}|-1|"
    r"\d+(:\d+){0,2}|\d+-\d+(:\d+){0,2}|(?=\d)(\d+w)?(\d+d)?(\d+h)?(\d+m(in)?)?(\d+s)?)?\s*$"
)
ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


def refusal(message: str, cure: str = "") -> PydanticCustomError:
    """The exception of a reader. The texts travel as context, so braces in them mean nothing."""
    return PydanticCustomError("refused", "{message}", {"message": message, "cure": cure})


def shown(text: str) -> str:
    """Return `text` in quotes on one line, shortened."""
    return repr(text if len(text) <= 60 else text[:57] + "...")


def is_octal(text: str) -> bool:
    """Return whether YAML 1.1 reads `text` as an octal number that differs from the decimal one."""
    return _OCTAL.fullmatch(text.strip()) is not None and len(text.strip().lstrip("+-").lstrip("0_")) > 1


def read_text(value: object) -> str:
    """Return the raw text; "" for null."""
    if value is None:
        return ""
    if not isinstance(value, str):
        raise refusal(f"one text is needed here, not {kind_of(value)}", "put text that contains : - { or [ in quotes")
    if "\0" in value:
        raise refusal("the text contains a NUL character", "delete it")
    return value


def kind_of(value: object) -> str:
    """Return what a wrong value is, for messages."""
    if value is None:
        return "nothing"
    if isinstance(value, dict):
        return "a mapping"
    return "a list" if isinstance(value, list) else "a single value"


def read_label(value: object) -> str:
    """Return text of one line: schedulers and file names of records get it."""
    text = read_text(value).rstrip("\r\n")
    bad = _CONTROL.search(text)
    if bad is not None:
        name = "a line break" if bad[0] in "\n\r\x85\u2028\u2029" else f"the control character U+{ord(bad[0]):04X}"
        raise refusal(f"{shown(text)} contains {name}", "write it as one line of plain text")
    return text.strip()


def read_number(value: object) -> Decimal | None:
    """Return a finite number; None for null."""
    text = read_text(value).strip()
    if not text:
        return None
    radix = _RADIX.fullmatch(text)
    try:
        if radix is not None:
            number = Decimal(int(radix["digits"].replace("_", ""), 0))
            return -number if radix["sign"] == "-" else number
        if _OCTAL.fullmatch(text):
            return Decimal(int(text.replace("_", ""), 8))
        if _DECIMAL.fullmatch(text):
            return parse_decimal(text)
    except ValueError:
        pass  # "0x_" and its like look right to the pattern; they are refused as everything else is
    raise refusal(f"{shown(text)} is not a number", "write a number such as 2 or 0.5")


def _count(least: int) -> Callable[[object], int | None]:
    def read(value: object) -> int | None:
        number = read_number(value)
        if number is None:
            return None
        if not -(MAX_AMOUNT**2) < number < MAX_AMOUNT**2 or number > MAX_COUNT:
            raise refusal(f"{shown(str(value))} is too large", f"write a whole number up to {MAX_COUNT}")
        if number != number.to_integral_value():
            raise refusal(f"{shown(str(value))} is not a whole number", f"write a whole number from {least} up")
        if number < least:
            raise refusal(f"{shown(str(value))} is too small", f"write a whole number from {least} up")
        return int(number)

    return read


def _needed_count(value: object) -> int:
    number = _count(1)(value)
    if number is None:
        raise refusal("not set")
    return number


def read_weight(value: object) -> float | None:
    """Return a weight; None for null."""
    number = read_number(value)
    if number is None:
        return None
    if not 0 < number <= MAX_AMOUNT:
        raise refusal(f"{shown(str(value))} is not a weight", f"write a number above 0, up to {MAX_AMOUNT}")
    return float(number)


def _amount(name: str, zero: bool, most: float = MAX_AMOUNT) -> Callable[[object], float | None]:
    def read(value: object) -> float | None:
        number = read_number(value)
        if number is None:
            return None
        if number < 0 or (number == 0 and not zero):
            least = "0 or more" if zero else "more than 0"
            raise refusal(
                f"{shown(str(value))} is not a valid number of {name}",
                f"write a number of {least}, or leave the line out",
            )
        if number > most:
            raise refusal(f"{shown(str(value))} {name} are more than any machine has", "correct the number")
        return float(number)

    return read


def read_size(value: object) -> int | None:
    """Return bytes; None for null."""
    text = read_text(value)
    return _quantity(parse_size, text) if text.strip() else None


def read_memory(value: object) -> int | None:
    """Return bytes, or WHOLE_NODE for ``all``; None for null."""
    return WHOLE_NODE if isinstance(value, str) and value.strip().lower() == "all" else read_size(value)


def read_time(value: object) -> int | None:
    """Return seconds; None for null. A number without unit is minutes, as in Slurm."""
    text = read_text(value)
    return _quantity(parse_requested_time, text) if text.strip() else None


SHARE_SCHEMA: dict[str, object] = {"type": ["string", "number"], "pattern": r"^\s*[0-9]+([.][0-9]+)?\s*%?\s*$"}


def read_share(value: object) -> float:
    """Return a share from 0 to 1, written in per cent: ``5%`` or 5."""
    text = read_text(value).strip()
    number = text.removesuffix("%").strip()
    if not re.fullmatch(r"[0-9]{1,3}([.][0-9]{1,9})?", number) or not 0 < float(number) <= 100:
        raise refusal(f"{shown(text)} is not a percentage above 0 and up to 100", "write it as 5%")
    return float(number) / 100


def _quantity(parse: Callable[[str], int], text: str) -> int:
    """Split the parser's sentence into what is wrong and the advice after its semicolon."""
    try:
        amount = parse(text)
    except ValueError as error:
        message, _, cure = str(error).partition("; ")
        raise refusal(message, cure) from None
    if amount >= 2**63:
        raise refusal(f"{shown(text.strip())} is more than any machine has", "correct the number or its unit")
    return amount


def read_flag(value: object) -> bool | None:
    """Return true or false from YAML's many spellings; None for null."""
    text = read_text(value).strip()
    if not text:
        return None
    if text.lower() not in _TRUE | _FALSE:
        raise refusal(f"{shown(text)} is neither true nor false", "write true or false")
    return text.lower() in _TRUE


def one_of(words: tuple[str, ...], default: str = "") -> Callable[[object], str]:
    """Return a reader of one word of a closed set, in any case."""

    def read(value: object) -> str:
        text = read_label(value).lower() or default
        if text not in words:
            raise refusal(f"{shown(text)} is not known here", f"write one of {', '.join(words)}")
        return text

    return read


def word_schema(*words: str) -> WithJsonSchema:
    """Return the JSON Schema of a closed set of words (lower case; readers accept any case), or null."""
    return WithJsonSchema({"enum": [*words, None]})


def _numeric_schema(**limits: object) -> WithJsonSchema:
    number = {"type": "number", **limits}
    return WithJsonSchema({"anyOf": [number, {"type": "string", "pattern": NUMBER_PATTERN}, {"type": "null"}]})


def _count_schema(least: int) -> WithJsonSchema:
    number = {"type": "integer", "minimum": least, "maximum": MAX_COUNT}
    return WithJsonSchema({"anyOf": [number, {"type": "string", "pattern": NUMBER_PATTERN}, {"type": "null"}]})


_TEXT_TYPES = ["string", "number", "boolean", "null"]
_ONE_LINE = r"^[^\u0000-\u001f\u007f]*[\r\n]*$"

TEXT_SCHEMA = WithJsonSchema({"type": _TEXT_TYPES, "pattern": r"^[^\u0000]*$"})
Text = Annotated[str, BeforeValidator(read_text), TEXT_SCHEMA]
"""Any text, raw: `version: 1.10` is "1.10", `yes` is "yes"."""
Label = Annotated[str, BeforeValidator(read_label), WithJsonSchema({"type": _TEXT_TYPES, "pattern": _ONE_LINE})]
"""Text of one line."""
Count = Annotated[int | None, BeforeValidator(_count(1)), _count_schema(1)]
"""A whole number from 1 up."""
CountFromZero = Annotated[int | None, BeforeValidator(_count(0)), _count_schema(0)]
"""A whole number from 0 up."""
NeededCount = Annotated[
    int,
    BeforeValidator(_needed_count),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "minimum": 1, "maximum": MAX_COUNT},
                {"type": "string", "allOf": [{"pattern": NUMBER_PATTERN}, {"pattern": r"\S"}]},
            ]
        }
    ),
]
"""A whole number from 1 up, which must be given."""
Weight = Annotated[float | None, BeforeValidator(read_weight), _numeric_schema(exclusiveMinimum=0, maximum=MAX_AMOUNT)]
"""A number above 0."""
Cpus = Annotated[float | None, BeforeValidator(_amount("CPUs", zero=False)), _numeric_schema(exclusiveMinimum=0)]
"""CPUs, fractions allowed."""
Gpus = Annotated[float | None, BeforeValidator(_amount("GPUs", zero=True)), _numeric_schema(minimum=0)]
GpuHours = Annotated[
    float | None, BeforeValidator(_amount("GPU-hours", zero=True, most=1000 * MAX_AMOUNT)), _numeric_schema(minimum=0)
]
"""GPUs, none and fractions allowed."""
Size = Annotated[
    int | None, BeforeValidator(read_size), WithJsonSchema({"type": ["string", "null"], "pattern": SIZE_PATTERN})
]
"""Bytes, written with a unit."""
Memory = Annotated[
    int | None, BeforeValidator(read_memory), WithJsonSchema({"type": ["string", "null"], "pattern": MEMORY_PATTERN})
]
"""Bytes of memory, written with a unit, or ``all``: the node's."""
TimeLimit = Annotated[
    int | None,
    BeforeValidator(read_time),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "minimum": 1},
                {"const": -1},
                {"type": "string", "pattern": TIME_PATTERN},
                {"type": "null"},
            ]
        }
    ),
]
"""Seconds, written as Slurm writes time limits or as 2h30m; UNLIMITED for none."""
FLAG_SCHEMA: dict[str, object] = {
    "anyOf": [
        {"type": ["boolean", "null"]},
        {"enum": [0, 1]},
        {"type": "string", "pattern": r"^\s*([Tt]rue|[Ff]alse|[Yy]es|[Nn]o|[Oo]n|[Oo]ff|[Yy]|[Nn]|0|1)?\s*$"},
    ]
}
Flag = Annotated[bool | None, BeforeValidator(read_flag), WithJsonSchema(FLAG_SCHEMA)]
"""true or false."""
