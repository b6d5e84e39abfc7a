"""Tests the limits of the parser for JSON that a user wrote."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ffdl_batch.domain.untrusted_json import MAX_DEPTH, MAX_WHOLE, parse_json

_TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))
_WHOLE, _FLOAT = st.integers(-MAX_WHOLE - 1, MAX_WHOLE), st.floats(allow_nan=False, allow_infinity=False)
_VALUES = st.recursive(
    st.none() | st.booleans() | _WHOLE | _FLOAT | _TEXT,
    lambda inner: st.lists(inner) | st.dictionaries(_TEXT, inner),
    max_leaves=20,
)


@given(_VALUES, st.booleans())
def test_parse_json_returns_what_was_written(value: object, ascii_only: bool) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only)
    assert parse_json(text) == value
    assert parse_json(text.encode()) == value


@pytest.mark.parametrize("pair", ["[]", "{}"])
def test_parse_json_limits_nested_levels(pair: str) -> None:
    def nested(levels: int) -> str:
        return pair[0].join(["", *(['"[":'] if pair == "{}" else [""]) * (levels - 1), ""]) + pair[1] * levels

    deepest = nested(MAX_DEPTH)
    assert parse_json(deepest) == json.loads(deepest)
    for levels in (MAX_DEPTH + 1, 50_000):
        with pytest.raises(ValueError, match=f"more than {MAX_DEPTH} nested levels"):
            parse_json(nested(levels))


def test_parse_json_does_not_count_brackets_in_strings_or_side_by_side() -> None:
    text = json.dumps([r"\"[{" * 100, *([{}] * 100)])
    assert parse_json(text) == json.loads(text)


def test_parse_json_refuses_many_quotes_in_string_without_end_in_linear_time() -> None:
    """In quadratic time this takes hours."""
    with pytest.raises(ValueError, match="Unterminated string"):
        parse_json("[[], " + '"' + "[" * MAX_DEPTH + r"\"" * 1_000_000)


@pytest.mark.parametrize(
    "text", [str(2**63), str(-(2**63) - 1), "9" * 400, "9" * 100_000, "1e400", "-1e400", "NaN", "Infinity", "-Infinity"]
)
def test_parse_json_refuses_number_out_of_range(text: str) -> None:
    with pytest.raises(ValueError, match=r"64 bits|out of range|not a JSON number"):
        parse_json(f"[{text}]")


@pytest.mark.parametrize("text", [str(2**63 - 1), str(-(2**63)), "1e308", "-0", "1.5"])
def test_parse_json_accepts_number_at_limit(text: str) -> None:
    assert parse_json(text) == json.loads(text)


def test_parse_json_accepts_any_float_if_allowed() -> None:
    found = parse_json("[NaN, Infinity, 1e400]", finite=False)
    assert math.isnan(found[0])
    assert found[1:] == [math.inf, math.inf]
    with pytest.raises(ValueError, match="64 bits"):
        parse_json(str(2**63), finite=False)


@pytest.mark.parametrize("text", ["", "{", b"\xff", "[1,]", "'a'", "[" * 100 + '"'])
def test_parse_json_refuses_text_that_is_not_json(text: str | bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_json(text)


def test_parse_json_replaces_characters_that_no_database_holds() -> None:
    text = r'{"a\u0000": ["\ud800", "\ud83d\ude00", "\uDBff"]}'
    assert parse_json(text) == {"a�": ["�", "\U0001f600", "�"]}
    assert parse_json('"\udcfc"') == "�"
