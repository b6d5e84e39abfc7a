"""The form of tokens."""

from __future__ import annotations

import hashlib

import pytest

from ffdl_batch.domain.access import new_token, parse_token


def test_token_text_is_read_back_and_secret_is_not_in_representation() -> None:
    token = new_token()
    assert parse_token(token.text) == token
    assert (len(token.id), len(token.secret)) == (12, 43)
    assert token.digest == hashlib.sha256(token.secret.encode()).hexdigest()
    assert token.secret not in repr(token)
    assert new_token() != token


@pytest.mark.parametrize(
    "text",
    ["", "ffdl", "ffdl_a_b", "ffdl_" + "a" * 12 + "_" + "f" * 42, "ffdl_" + "a" * 12 + "_" + "f" * 43 + "\n",
     "FFDL_" + "a" * 12 + "_" + "f" * 43, "ffdl_" + "٣" * 12 + "_" + "f" * 43],
)  # fmt: skip
def test_other_text_is_no_token(text: str) -> None:
    assert parse_token(text) is None
