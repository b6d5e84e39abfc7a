"""Event files as real writers write them: TensorBoard's own (PyTorch's and TensorFlow's format) and tensorboardX."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
import tensorboardX
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c
from tensorboard.plugins.scalar.summary import scalar_pb as new_style_pb
from tensorboard.summary.writer.event_file_writer import EventFileWriter
from tensorboard.util.tensor_util import make_ndarray

BEGAN_S = 1_700_000_000.0


def record(content: bytes) -> bytes:
    """One record, by the checksums of TensorBoard's own code."""
    length = len(content).to_bytes(8, "little")
    parts = [length, _crc(length), content, _crc(content)]
    return b"".join(parts)


def _crc(data: bytes) -> bytes:
    return int(masked_crc32c(data)).to_bytes(4, "little")


def write(
    directory: Path, values: list[tuple[int, dict[str, float]]], *, began_s: float = BEGAN_S, new_style: bool = False
) -> Path:
    """A file by TensorBoard's writer: for each step its scalars, a second apart; `new_style` are TensorFlow 2's."""
    before = set(directory.glob("*")) if directory.exists() else set()
    writer = EventFileWriter(str(directory), filename_suffix=f".{len(before)}")
    for number, (step, scalars) in enumerate(values):
        if new_style:
            for tag, value in scalars.items():
                writer.add_event(Event(wall_time=began_s + number, step=step, summary=new_style_pb(tag, value)))
        else:
            summary = Summary(value=[Summary.Value(tag=tag, simple_value=value) for tag, value in scalars.items()])
            writer.add_event(Event(wall_time=began_s + number, step=step, summary=summary))
    writer.close()
    (path,) = set(directory.glob("*")) - before
    return path


def write_x(directory: Path, values: list[tuple[int, str, float]]) -> Path:
    """A file by tensorboardX, like PyTorch's SummaryWriter: each scalar an event, and things that are no scalars."""
    writer = tensorboardX.SummaryWriter(str(directory), write_to_disk=True)
    for number, (step, tag, value) in enumerate(values):
        writer.add_scalar(tag, value, step, walltime=BEGAN_S + number / 10)
        if number % 50 == 0:
            writer.add_histogram("weights", np.arange(100.0), step, walltime=BEGAN_S + number / 10)
            writer.add_text("note", "a text", step, walltime=BEGAN_S + number / 10)
    writer.close()
    (path,) = directory.glob("*tfevents*")
    return path


def truth(path: Path) -> list[tuple[float, int, str, float]]:
    """What TensorBoard's own loader has: wall time, step, tag and value of each scalar."""
    return [
        (event.wall_time, event.step, value.tag, float(make_ndarray(value.tensor).item()))
        for event in EventFileLoader(os.fspath(path)).Load()
        for value in event.summary.value
        if value.metadata.plugin_data.plugin_name == "scalars"
    ]


def copied(source: Path, target: Path, *, pieces: int) -> None:
    """The file as a reader sees it who comes while it is written: in pieces that end anywhere."""
    data = source.read_bytes()
    size = len(data) // pieces + 1
    with target.open("wb") as file:
        for start in range(0, len(data), size):
            file.write(data[start : start + size])
            file.flush()
            time.sleep(0.02)
