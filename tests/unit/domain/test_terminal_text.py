"""Tests which characters reach a terminal, and how others are escaped."""

from __future__ import annotations

import json

import pytest

from ffdl_batch.domain.terminal_text import json_text, printable, quoted


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x00\x07\x08\r\x1b[31m\x7f", r"\x00\x07\x08\x0d\x1b[31m\x7f"),
        ("\x85\x90\x9b2J", r"\x85\x90\x9b2J"),
        ("\u202a\u202e\u2066\u2069\u200e\u200f\u061c", r"\u202a\u202e\u2066\u2069\u200e\u200f\u061c"),
        ("\u200b\u200d\u2060\ufeff\u00ad\u3164\u2028\u2029", r"\u200b\u200d\u2060\ufeff\xad\u3164\u2028\u2029"),
        ("\udc80\ud800\U000e0041", r"\x80\ud800\U000e0041"),
        ("a\tb\nc \u00e9 \u4e2d \u26a0\ufe0f \\x1b", "a\tb\nc \u00e9 \u4e2d \u26a0\ufe0f \\x1b"),
    ],
)
def test_printable_escapes_characters_that_terminals_do_not_print(text: str, shown: str) -> None:
    assert printable(text) == shown
    assert printable(shown) == shown


def test_printable_keeps_text_on_one_line_if_asked() -> None:
    assert printable("a\nb\t\x1b", one_line=True) == r"a\nb\t\x1b"


def test_json_text_is_printable_and_exact() -> None:
    value = {"a": "".join(map(chr, range(0x300))) + "\u202e\ufeff\U000e0041"}
    assert json.loads(printable(json_text(value))) == value


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a b", "'a b'"),
        ("M\udcfcller\n", r"'M\xfcller\n'"),
        ("it's \x1b[2J", r"'it's \x1b[2J'"),
        ("x" * 60, f"'{'x' * 60}'"),
        ("x" * 61, f"'{'x' * 57}...'"),
        ("", "''"),
    ],
)
def test_quoted_shows_escapes_and_beginning_of_long_text(text: str, shown: str) -> None:
    assert quoted(text) == shown
