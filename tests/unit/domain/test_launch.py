"""The launch file: round trip, formats, placeholders."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ffdl_batch.domain.launch import (
    FORMAT,
    Copy,
    LaunchFile,
    LaunchFileError,
    LearnerCommand,
    decode,
    encode,
    fill,
    literal,
)

LAUNCH = LaunchFile(
    job_id="training-000000000",
    attempt=1,
    token="training-000000000-1",
    job_dir="/j",
    attempt_dir="/j/attempt-1",
    doorbell="/d",
    learner=LearnerCommand(("bash", "-c", "x"), {"RANK": "{rank}"}),
    copies=(Copy("/a", "/b"),),
)


def test_round_trip_is_exact_and_stable() -> None:
    assert decode(encode(LAUNCH)) == LAUNCH
    assert encode(decode(encode(LAUNCH))) == encode(LAUNCH)


@pytest.mark.parametrize(
    "text", ["", "[]", "{", "null", json.dumps({"format": FORMAT + 1}), json.dumps({"format": FORMAT})]
)
def test_what_cannot_be_obeyed_says_why(text: str) -> None:
    with pytest.raises(LaunchFileError, match=r"format|damaged"):
        decode(text)


def test_placeholders() -> None:
    assert fill("--rank={rank} {{not}}", {"rank": "3"}) == "--rank=3 {not}"


@pytest.mark.parametrize("text", ["{unknown}", "{rank!r}", "{rank:>9}", "{rank.real}", "{rank[0]}", "{}", "{", "}"])
def test_nothing_but_plain_names_is_a_placeholder(text: str) -> None:
    with pytest.raises(LaunchFileError):
        fill(text, {"rank": "3"})


@given(st.text())
def test_literal_text_is_never_a_placeholder(text: str) -> None:
    assert fill(literal(text), {}) == text
