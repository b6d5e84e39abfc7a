"""The launch file: round trip, formats, placeholders."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ffdl_batch.domain.data.staging_protocol import Transfer
from ffdl_batch.domain.data.store_kinds import StoreAddress, StoreKind
from ffdl_batch.domain.file_format import FORMAT, NewerFormat
from ffdl_batch.domain.launch.devices import DEVICE_OPTIONS
from ffdl_batch.domain.launch.launch_file import (
    RESTART_LEARNER,
    Copy,
    LaunchFile,
    LearnerCommand,
    Seat,
    Succession,
    decode,
    encode,
    succeed,
)
from ffdl_batch.domain.launch.placeholders import LaunchFileError, fill, literal
from ffdl_batch.domain.outcome.continuation import Budget, Spent

LAUNCH = LaunchFile(
    "training-000000000", 1, "training-000000000-1", job_dir="/j", attempt_dir="/j/attempt-1", doorbell="/d",
    learner=LearnerCommand(("bash", "-c", "x"), {"RANK": "{rank}"}), copies=(Copy("/a", "/b"),),
)  # fmt: skip
TRANSFER = Transfer(StoreAddress(StoreKind.S3, container="b", credentials={"user_name": "a-secret"}), "set", "/d")


@pytest.mark.parametrize("text", ["", "[]", "{", "null", '{"format": 0}', '{"format": "1"}', '{"format": 1}'])
def test_launch_file_decode_rejects_damaged_or_unknown_format(text: str) -> None:
    with pytest.raises(LaunchFileError, match=r"format|damaged"):
        decode(text)


def test_launch_file_decode_names_newer_release() -> None:
    newer = json.dumps({"format": FORMAT + 1, "written_by": "slurm 9.0"})
    said = rf"by slurm 9.0 in format {FORMAT + 1}, and this release reads format {FORMAT} .*as new"
    with pytest.raises(NewerFormat, match=said):
        decode(newer)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"seats": (Seat(0), Seat(0)), "learners": 2},
        {"restart": RESTART_LEARNER, "restarts_max": 3},
        {"learner": LearnerCommand(("x", DEVICE_OPTIONS), {"ADDRESS": "tcp://{address}:1"})},
        {"fetches": (TRANSFER,), "uploads": (TRANSFER,)},
    ],
)
def test_launch_file_decode_reverses_encode(changes: dict[str, Any]) -> None:
    launch = replace(LAUNCH, **changes)
    assert decode(encode(launch)) == launch


@given(st.text())
def test_fill_replaces_placeholder_and_keeps_literal_text(text: str) -> None:
    assert fill(literal(text), {}) == text
    assert fill("--rank={rank} {{not}}", {"rank": "3"}) == "--rank=3 {not}"


@pytest.mark.parametrize("text", ["{unknown}", "{rank!r}", "{rank:>9}", "{rank.real}", "{rank[0]}", "{}", "{", "}"])
def test_fill_rejects_anything_but_plain_names(text: str) -> None:
    with pytest.raises(LaunchFileError):
        fill(text, {"rank": "3"})


def test_launch_file_round_trips_exactly_with_and_without_continuation_settings() -> None:
    succession = Succession(
        template="/j/attempt-next", submit=("sbatch", "--dependency=afterany:{native_id}", "{script}"),
        requeue=("scontrol", "requeue", "{native_id}"), keep_env=("PATH", "SLURM_CONF"),
        budget=Budget(1, 2, 3, 4, 5.5, True), spent=Spent(1, 2, 3, 4, 5.5, 6), gpus=2.0, lead_s=70,
        deadline_variables=("SLURM_JOB_END_TIME",), limit_now=("squeue", "--jobs={native_id}"),
    )  # fmt: skip
    launch = replace(LAUNCH, succession=succession, checkpoints="/j/checkpoints", carry="/j/attempt-1/results")
    assert decode(encode(launch)) == launch
    assert decode(encode(LAUNCH)) == LAUNCH
    assert encode(decode(encode(LAUNCH))) == encode(LAUNCH)


def test_launch_file_of_older_release_has_no_continuation_settings() -> None:
    plain = json.loads(encode(LAUNCH))
    for name in ("succession", "checkpoints", "carry"):
        del plain[name]
    for name in ("lead_s", "store_s", "fence_s"):
        del plain["limits"][name]
    assert decode(json.dumps(plain)) == LAUNCH


JOB = "training-0a1b2c3d4"


@pytest.mark.parametrize(
    ("template", "text"),
    [
        (f"#SBATCH --job-name={JOB}-next\n", f"#SBATCH --job-name={JOB}-12\n"),
        (f"cd /r/jobs/{JOB}/attempt-next/logs", f"cd /r/jobs/{JOB}/attempt-12/logs"),
        (f"{JOB}-next {JOB}-next", f"{JOB}-12 {JOB}-12"),
        ("training-999999999-next attempt-next next", "training-999999999-next attempt-next next"),
        (f"/r/jobs/{JOB}/checkpoints {JOB} {JOB}-1", f"/r/jobs/{JOB}/checkpoints {JOB} {JOB}-1"),
    ],
)
def test_succeed_renames_only_template_names_of_next_attempt(template: str, text: str) -> None:
    assert succeed(template, JOB, 12) == text


def test_succeed_turns_template_launch_file_into_next_attempt() -> None:
    template = replace(LAUNCH, attempt=2, token=f"{LAUNCH.job_id}-next", attempt_dir=f"/j/{LAUNCH.job_id}/attempt-next")
    after = decode(succeed(encode(template), LAUNCH.job_id, 2))
    assert (after.token, after.attempt_dir) == (f"{LAUNCH.job_id}-2", f"/j/{LAUNCH.job_id}/attempt-2")


@given(st.text(), st.integers(2, 10**6))
def test_succeed_keeps_user_text_unchanged(text: str, attempt: int) -> None:
    before = f"{JOB}-next {text} {JOB}/attempt-next"
    assert succeed(before, JOB, attempt) == f"{JOB}-{attempt} {text} {JOB}/attempt-{attempt}"
