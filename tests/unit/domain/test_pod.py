"""Lines that a pod's controller says."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ffdl_batch.domain.launch.pod_protocol import (
    LINE_BYTES,
    PREFIX,
    Frame,
    FrameKind,
    decode_frame,
    encode_frame,
    pieces,
)


@pytest.mark.parametrize("data", [b"", b"line\n", "ä€\n".encode(), b"\xff\x00\n", b"\x01" * 1900, b"\xff" * 1900])
@pytest.mark.parametrize("kind", [FrameKind.APPEND, FrameKind.CELL, FrameKind.LOG])
def test_pod_frame_survives_encode_decode_round_trip_within_line_limit(kind: FrameKind, data: bytes) -> None:
    frame = Frame(2, 7, kind, "events/node-0.jsonl", 41, data, 1000 if kind is FrameKind.CELL else 0)
    line = encode_frame(frame)
    assert decode_frame(line) == frame
    assert "\n" not in line and len(line.encode()) <= LINE_BYTES


def test_pod_sizes_frame_survives_encode_decode_round_trip() -> None:
    frame = Frame(1, 2, FrameKind.SIZES, sizes={"events/head.jsonl": 12})
    assert decode_frame(encode_frame(frame)) == frame


@pytest.mark.parametrize(
    "line", ["", "a warning", PREFIX, PREFIX + "[]", PREFIX + '{"run":1,"n":2,"kind":"later"}', PREFIX + '{"run":"x"}']
)
def test_decode_frame_returns_none_for_foreign_or_malformed_line(line: str) -> None:
    assert decode_frame(line) is None


@pytest.mark.parametrize(
    "frame", [Frame(1, 1, FrameKind.LOG, "logs/learner-1"), Frame(9, 10**9, FrameKind.LOG, "logs/learner-100", 10**15)]
)
@pytest.mark.parametrize(
    "data",
    [
        b"", b"short", "€".encode() * 5000, b"\x80" * 5000, b"a" * 100_000, bytes(range(256)) * 300, b"\x01" * 50_000,
        "😀".encode() * 9000, b"\xff" + b"a" * 40_000,
    ],
)  # fmt: skip
def test_pieces_rebuild_the_data_and_fill_at_least_a_quarter_of_each_line(frame: Frame, data: bytes) -> None:
    lines = [encode_frame(replace(frame, data=part)) for part in pieces(data)]
    assert b"".join(decoded.data for line in lines if (decoded := decode_frame(line))) == data
    assert all(len(line) <= LINE_BYTES for line in lines)
    assert all(len(line) > LINE_BYTES / 4 for line in lines[:-1])


def test_pieces_never_split_utf8_characters() -> None:
    for part in pieces("€".encode() * 5000):
        part.decode()
