"""Tasks and lines of the staging program."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ffdl_batch.domain.data.staging_protocol import (
    EXIT_STATUS,
    Direction,
    Done,
    Failed,
    FaultClass,
    Line,
    Note,
    Progress,
    Retry,
    StageTask,
    StageTaskError,
    Transfer,
    decode_task,
    encode_task,
    fault_code,
    read_line,
    write_line,
)
from ffdl_batch.domain.data.store_kinds import StoreAddress, StoreKind

STORE = StoreAddress(StoreKind.S3, "http://store:9000", "eu", "bucket", {"path_style": "true"}, {"password": "name"})
TRANSFER = Transfer(STORE, "prefix", "/data", ("*.txt",))
TASK = StageTask(Direction.IN, (TRANSFER,), "/state", "/secrets.json")


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", "{}", '{"direction": "up"}', encode_task(TASK)[:-5]),
        encode_task(replace(TASK, state_dir="state")),
        encode_task(replace(TASK, parallel=0)),
        encode_task(replace(TASK, tries=0)),
        encode_task(replace(TASK, part_bytes=0)),
        encode_task(replace(TASK, transfers=(replace(TRANSFER, local="data"),))),
        encode_task(
            replace(TASK, transfers=(replace(TRANSFER, store=replace(STORE, endpoint="http://me:planted@s")),))
        ),
    ],
)
def test_decode_task_rejects_malformed_text_and_invalid_values_without_printing_credentials(text: str) -> None:
    assert decode_task(encode_task(TASK)) == TASK
    with pytest.raises(StageTaskError) as raised:
        decode_task(text)
    assert "planted" not in str(raised.value)


LINES: list[Line] = [
    Progress(1, 2, 3, 4, 5.5), Progress(1, 2, 3, 4, 5.5, early=True), Retry("why", 1.5), Note("what\nelse"),
    Done(1, 2, 3, 4.5, 1, 2), Failed("S302", "a sentence", FaultClass.FULL),
]  # fmt: skip


@pytest.mark.parametrize("line", LINES, ids=lambda line: type(line).__name__)
def test_stage_line_survives_round_trip_and_truncated_line_is_none(line: Line) -> None:
    text = write_line(line)
    assert text.count("\n") == 1
    assert text.endswith("\n")
    assert read_line(text) == line
    assert read_line(text[: len(text) // 2]) is None


@pytest.mark.parametrize("text", ["", "[]", "1", '{"event": "newer"}', '{"event": "done"}', '{"event": []}'])
def test_read_line_returns_none_for_unknown_or_malformed_line(text: str) -> None:
    assert read_line(text) is None


def test_fault_classes_have_distinct_exit_status_and_stable_json_key() -> None:
    assert '"class": "full"' in write_line(LINES[-1])
    assert set(EXIT_STATUS) == set(FaultClass)
    assert len(set(EXIT_STATUS.values())) == len(FaultClass)


@pytest.mark.parametrize(
    ("kind", "direction", "code"),
    [
        (FaultClass.CREDENTIALS, Direction.IN, "C103"),
        (FaultClass.MISSING, Direction.IN, "C103"),
        (FaultClass.FULL, Direction.IN, "S302"),
        (FaultClass.NETWORK, Direction.IN, "S302"),
        (FaultClass.CREDENTIALS, Direction.OUT, "S303"),
        (FaultClass.LIBRARY, Direction.IN, "S306"),
        (FaultClass.INTERNAL, Direction.IN, "S306"),
        (FaultClass.TASK, Direction.IN, "C103"),
        (FaultClass.INTERNAL, Direction.OUT, "S303"),
        (FaultClass.REFUSED, Direction.OUT, "S303"),
        (FaultClass.UNREADABLE, Direction.OUT, "C205"),
    ],
)
def test_fault_code_depends_on_fault_class_and_direction(kind: FaultClass, direction: Direction, code: str) -> None:
    assert fault_code(kind, direction) == code


@pytest.mark.parametrize(
    ("line", "left_s"),
    [
        (Progress(10, 10, 5, 10, 1.0), 5.0),
        (Progress(1000, 101_000, 1_000_000, 51_000_000, 50_000.0), 1000.0),
        (Progress(1000, 101_000, 1_000_000, 51_000_000, 50_000.0, files_rate=50.0), 2000.0),
        (Progress(1000, 101_000, 1_000_000, 51_000_000, 50_000.0, early=True, files_rate=50.0), None),
        # Large files were first, and small ones follow: nobody knows how fast those are.
        (Progress(2, 10_002, 10 << 30, (10 << 30) + 10_000, 1e8, files_rate=0.1), 10_000 / 1e8),
        (Progress(5, 10, 10, 10, 1.0, files_rate=1.0), None),
    ],
)
def test_progress_estimates_remaining_time_from_bytes_and_file_rate(line: Progress, left_s: float | None) -> None:
    assert line.left_s == left_s
    assert read_line(write_line(line)) == line
