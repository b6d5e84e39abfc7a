"""The search of the tests finds what it is to find."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.secret_search import BLOCK, Search

VALUE = "plänted \"x\" 'y' \\ $HOME %+/?&\nsecond line-0f3a"


@pytest.mark.parametrize("before", range(4))
@pytest.mark.parametrize("encode", [base64.b64encode, base64.urlsafe_b64encode])
def test_secret_search_finds_base64_value_at_any_offset(before: int, encode: object) -> None:
    assert callable(encode)
    assert Search({"v": VALUE}).within(encode(b"x" * before + VALUE.encode() + b"behind")) == {"v"}
    assert Search({"v": VALUE}).within(encode(b"x" * before + b"something else altogether")) == set()


@pytest.mark.parametrize("text", [VALUE, json.dumps({"a": VALUE}), quote(VALUE), repr(VALUE), VALUE.encode().hex()])
def test_secret_search_finds_value_in_common_encodings(text: str) -> None:
    assert Search({"v": VALUE, "w": "another-value"}).within(f"before {text} behind".encode()) == {"v"}


def test_secret_search_finds_values_in_file_content_and_names(tmp_path: Path) -> None:
    search = Search({"a": "value-of-a", "b": "value-of-b"})
    (tmp_path / "large").write_bytes(b"x" * (BLOCK - 4) + b"value-of-a" + b"y" * 10)
    (tmp_path / "value-of-b").touch()
    (tmp_path / "link").symlink_to(tmp_path / "large")
    (tmp_path / "other").write_text("value-of-c")
    assert search.below(tmp_path) == {str(tmp_path / "large"): {"a"}, str(tmp_path / "value-of-b"): {"b"}}
