"""Records and events of TensorBoard's files, written by real writers."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tensorboard.compat.proto.event_pb2 import Event as RealEvent
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.util.tensor_util import make_tensor_proto

from ffdl_batch.collectors import tensorboard_events
from ffdl_batch.collectors.tensorboard_events import Damaged, EventReader, Raw, read_record, single_text
from tests.unit.collectors.writers import record


@pytest.fixture
def file(tmp_path: Path) -> Iterator[int]:
    descriptor = os.open(tmp_path / "events", os.O_RDWR | os.O_CREAT)
    yield descriptor
    os.close(descriptor)


def test_read_record_waits_for_complete_record(file: int) -> None:
    data = record(b"one") + record(b"second")
    for written in range(len(data) + 1):
        os.ftruncate(file, 0)
        os.pwrite(file, data[:written], 0)
        assert (read_record(file, 0) is not None) == (written >= 19)
        assert (read_record(file, 19) is not None) == (written == len(data))
    assert read_record(file, 0) == Raw(b"one", 19)
    assert read_record(file, len(data)) is None


def test_read_record_skips_bad_checksum_only_if_data_follows(file: int) -> None:
    data = record(b"one")
    os.pwrite(file, data[:-1] + b"\0", 0)
    assert read_record(file, 0) is None
    os.pwrite(file, record(b"two"), 19)
    assert read_record(file, 0) == Raw(None, 19)
    assert read_record(file, 19) == Raw(b"two", 38)


def test_read_record_rejects_invalid_length(file: int) -> None:
    os.pwrite(file, b"\0" * 20, 0)
    with pytest.raises(Damaged):
        read_record(file, 0)


def test_read_record_skips_content_of_oversized_record(file: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensorboard_events, "MOST_BYTES", 10)
    os.pwrite(file, record(b"x" * 11), 0)
    assert read_record(file, 0) == Raw(b"", 27)


def test_event_reader_returns_none_for_invalid_event() -> None:
    assert EventReader().read(b"\xff\xff\xff") is None
    empty = EventReader().read(b"")
    assert empty is not None and empty.scalars == {}


TYPES = [np.float32, np.float64, np.float16, np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32]


def scalar_of(tensor: TensorProto, plugin: str) -> str | None:
    event = RealEvent(wall_time=1.5, step=-3)
    value = event.summary.value.add(tag="größe", tensor=tensor)
    value.metadata.plugin_data.plugin_name = plugin
    found = EventReader().read(event.SerializeToString())
    assert found is not None and (found.wall_time, found.step) == (1.5, -3)
    return found.scalars.get("größe")


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("shape", [(), (1,)])
def test_event_reader_reads_scalar_tensors_of_all_types(kind: type[np.generic], shape: tuple[int, ...]) -> None:
    assert scalar_of(make_tensor_proto(np.full(shape, 3, kind)), "scalars") == "3.0"
    assert scalar_of(make_tensor_proto(np.full(shape, 3, kind)), "") == "3.0"


@pytest.mark.parametrize("kind", TYPES)
def test_event_reader_reads_tensor_content_of_all_types(kind: type[np.generic]) -> None:
    tensor = make_tensor_proto(np.array(7, kind))
    content = TensorProto(dtype=tensor.dtype, tensor_content=np.array(7, kind).tobytes())
    assert scalar_of(content, "scalars") == "7.0"


def test_event_reader_reads_bfloat16() -> None:
    assert scalar_of(TensorProto(dtype="DT_BFLOAT16", half_val=[0x3FC0]), "scalars") == "1.5"
    assert scalar_of(TensorProto(dtype="DT_BFLOAT16", tensor_content=b"\xc0\x3f"), "scalars") == "1.5"


def test_event_reader_ignores_texts_histograms_and_other_plugins() -> None:
    assert scalar_of(make_tensor_proto("text"), "scalars") is None
    assert scalar_of(make_tensor_proto(np.zeros((2, 3))), "scalars") is None
    assert scalar_of(make_tensor_proto(np.float32(1)), "hparams") is None
    assert scalar_of(TensorProto(dtype="DT_FLOAT", tensor_content=b"abc"), "scalars") is None
    assert scalar_of(TensorProto(dtype="DT_FLOAT"), "scalars") is None


@pytest.mark.parametrize(
    ("number", "text"),
    [(0.1, "0.1"), (16777216.0, "16777216.0"), (1 / 3, "0.33333334"), (3.4028234663852886e38, "3.4028235e+38")],
)
def test_single_text_prints_shortest_float32(number: float, text: str) -> None:
    (single,) = struct.unpack("<f", struct.pack("<f", number))
    assert single_text(single) == text
    assert np.float32(text) == np.float32(number)


def test_single_text_prints_nan_and_infinity() -> None:
    assert [single_text(float(word)) for word in ("nan", "inf", "-inf")] == ["NaN", "Infinity", "-Infinity"]
