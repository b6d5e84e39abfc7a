"""Keys and names: nothing leads out, and nothing is both."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ffdl_batch.staging.faults import Skip
from ffdl_batch.staging.object_names import is_wanted, key_of, parts_of


@pytest.mark.parametrize(
    "name",
    [
        "", "/", "/etc/passwd", "a//b", "a/", "..", "../a", "a/../b", "a/..", ".", "./a", "nul\0", "x" * 256,
        "a/" + "é" * 128, "\udcff", ".ffdl-0123456789abcdef01234567.part",
    ],
)  # fmt: skip
def test_parts_of_rejects_invalid_file_name(name: str) -> None:
    with pytest.raises(Skip):
        parts_of(name)


@pytest.mark.parametrize(
    "name", ["a", "...", "..a", "a..", "new\nline", "\x01", "x" * 255, "a/b/c", ".hidden", "C:\\a"]
)
def test_parts_of_accepts_valid_file_name(name: str) -> None:
    assert "/".join(parts_of(name)) == name


@given(st.text(alphabet=st.sampled_from("ab./\0\n\udcff"), max_size=12))
def test_parts_of_never_returns_empty_or_parent_parts(name: str) -> None:
    try:
        parts = parts_of(name)
    except Skip:
        return
    assert "/".join(parts) == name
    assert not {"", ".", ".."} & set(parts)


def test_key_of_joins_prefix_and_name_and_rejects_invalid_keys() -> None:
    assert key_of("", "a/b") == "a/b"
    assert key_of("job", "a") == key_of("job/", "a") == "job/a"
    with pytest.raises(Skip, match="UTF-8"):
        key_of("job", "\udcff")
    with pytest.raises(Skip, match="1024"):
        key_of("job", "x" * 1021)


def test_is_wanted_matches_name_against_patterns() -> None:
    assert is_wanted("deep/a.txt", ())
    assert is_wanted("deep/a.txt", ("*.bin", "*.txt"))
    assert not is_wanted("deep/a.TXT", ("*.txt",))
