"""TensorBoard's event files: records with checksums, each a protocol buffer `Event`.

Reads what a writer is still writing: a record that is not complete is no error. Of the messages only the fields that
scalars need are known here, under the numbers of TensorFlow's event.proto, summary.proto and tensor.proto; pictures and
graphs pass by unread. Needs the `protobuf` package (extra `tensorboard`) and nothing of TensorBoard's: its own loader
brings 80 MB of packages, takes half a second to import, and cannot continue in the middle of a file.
"""

from __future__ import annotations

import os
import struct
from typing import Any, NamedTuple

from ffdl_batch.domain.metrics.records import float_text

HEADER_BYTES, FOOTER_BYTES = 12, 4
CHECKED_BYTES = 16 * 1024
"""Larger records are pictures and graphs: their checksum would take longer than all else."""
MOST_BYTES = 64 * 1024 * 1024
"""Of still larger ones nothing is read."""
_SCALARS_PLUGIN = b"scalars"
_FLOAT, _HALF, _BFLOAT = 1, 19, 14
_TENSORS = {
    **{_FLOAT: ("float_val", "<f"), 2: ("double_val", "<d"), _HALF: ("half_val", "<e"), _BFLOAT: ("half_val", "<H")},
    **{3: ("int_val", "<i"), 4: ("int_val", "<B"), 5: ("int_val", "<h"), 6: ("int_val", "<b"), 17: ("int_val", "<H")},
    **{9: ("int64_val", "<q"), 10: ("bool_val", "<?"), 22: ("uint32_val", "<I"), 23: ("uint64_val", "<Q")},
}
"""DataType -> the field of TensorProto that has the value, and its form in `tensor_content`."""
_MESSAGES: dict[str, tuple[tuple[str, int, str], ...]] = {
    "Event": (("wall_time", 1, "double"), ("step", 2, "int64"), ("summary", 5, "Summary")),
    "Summary": (("value", 1, "*Value"),),
    "Value": (("tag", 1, "bytes"), ("simple_value", 2, "float"), ("tensor", 8, "Tensor"), ("metadata", 9, "Metadata")),
    "Metadata": (("plugin_data", 1, "PluginData"),),
    "PluginData": (("plugin_name", 1, "bytes"),),
    "Tensor": (
        *(("dtype", 1, "int32"), ("tensor_shape", 2, "Shape"), ("tensor_content", 4, "bytes")),
        *(("float_val", 5, "*float"), ("double_val", 6, "*double"), ("int_val", 7, "*int32")),
        *(("int64_val", 10, "*int64"), ("bool_val", 11, "*bool"), ("half_val", 13, "*int32")),
        *(("uint32_val", 16, "*uint32"), ("uint64_val", 17, "*uint64")),
    ),
    "Shape": (("dim", 2, "*Dim"),),
    "Dim": (("size", 1, "int64"),),
}
"""Name, number and type of the fields; `*` = repeated."""


class Damaged(Exception):
    """What lies there is no record; where the next one begins is not known."""


class Raw(NamedTuple):
    """A record's content, None where it is unreadable, and where the next record begins."""

    content: bytes | None
    end: int


class Event(NamedTuple):
    """Its time in seconds since the epoch, its step, and the texts of its scalars by tag."""

    wall_time: float
    step: int
    scalars: dict[str, str]


def read_record(descriptor: int, offset: int) -> Raw | None:
    """The record at `offset`; None where it is not complete yet. Raises :class:`Damaged`."""
    header = os.pread(descriptor, HEADER_BYTES, offset)
    if len(header) < HEADER_BYTES:
        return None
    length, check = struct.unpack("<QI", header)
    if _masked_crc(header[:8]) != check:
        raise Damaged
    end = offset + HEADER_BYTES + length + FOOTER_BYTES
    if length > MOST_BYTES:
        return Raw(b"", end) if os.fstat(descriptor).st_size >= end else None
    body = os.pread(descriptor, length + FOOTER_BYTES, offset + HEADER_BYTES)
    if len(body) < length + FOOTER_BYTES:
        return None
    content = body[:length]
    if length <= CHECKED_BYTES and _masked_crc(content) != struct.unpack("<I", body[length:])[0]:
        if os.fstat(descriptor).st_size == end:
            return None  # at the tail not all bytes need to have come
        return Raw(None, end)
    return Raw(content, end)


class EventReader:
    """Decodes events. Raises ImportError where `protobuf` is missing."""

    def __init__(self) -> None:
        from google.protobuf.message import DecodeError

        self._event = _event_class()
        self._errors = DecodeError

    def read(self, content: bytes) -> Event | None:
        """The event in a record's content; None where it is none."""
        message = self._event()
        try:
            message.ParseFromString(content)
        except self._errors:
            return None
        scalars = {}
        for value in message.summary.value:
            text = _scalar(value)
            if text is not None:
                scalars[value.tag.decode("utf-8", "replace")] = text
        return Event(message.wall_time, message.step, scalars)


def _scalar(value: Any) -> str | None:
    """The text of a scalar, old style or new; None for all else."""
    if value.HasField("simple_value"):
        return single_text(value.simple_value)
    if not value.HasField("tensor"):
        return None
    plugin = value.metadata.plugin_data.plugin_name  # writers may leave it out after a tag's first value
    if plugin not in (b"", _SCALARS_PLUGIN) or any(dim.size != 1 for dim in value.tensor.tensor_shape.dim):
        return None
    return _tensor_text(value.tensor)


def _tensor_text(tensor: Any) -> str | None:
    field, form = _TENSORS.get(tensor.dtype, ("", ""))
    if not field:
        return None
    held = getattr(tensor, field)
    number: float
    if held:
        number = held[0]
        if tensor.dtype == _HALF:
            (number,) = struct.unpack("<e", struct.pack("<H", held[0] & 0xFFFF))
    elif len(tensor.tensor_content) == struct.calcsize(form):
        (number,) = struct.unpack(form, tensor.tensor_content)
    else:
        return None
    if tensor.dtype == _BFLOAT:
        (number,) = struct.unpack("<f", struct.pack("<I", (int(number) & 0xFFFF) << 16))
    return single_text(number) if tensor.dtype in (_FLOAT, _HALF, _BFLOAT) else float_text(float(number))


def single_text(number: float) -> str:
    """The shortest text that is the same float32."""
    for digits in (6, 7, 8):
        short = float(f"{number:.{digits}g}")
        try:
            if struct.unpack("<f", struct.pack("<f", short))[0] == number:
                return float_text(short)
        except OverflowError:  # rounded up beyond the largest float32
            continue
    return float_text(float(f"{number:.9g}"))


def _event_class() -> Any:
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    package = "ffdl_batch.events"
    file = descriptor_pb2.FileDescriptorProto(name="ffdl_batch/events.proto", package=package, syntax="proto2")
    kinds = descriptor_pb2.FieldDescriptorProto
    for message, fields in _MESSAGES.items():
        described = file.message_type.add(name=message)
        for name, number, type_ in fields:
            field = described.field.add(name=name, number=number)
            field.label = kinds.LABEL_REPEATED if type_.startswith("*") else kinds.LABEL_OPTIONAL
            plain = type_.lstrip("*")
            if plain in _MESSAGES:
                field.type, field.type_name = kinds.TYPE_MESSAGE, f".{package}.{plain}"
            else:
                field.type = kinds.Type.Value(f"TYPE_{plain.upper()}")
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.Event"))


def _crc_table() -> list[int]:
    table = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
        table.append(crc)
    return table


_TABLE = _crc_table()


def _masked_crc(data: bytes) -> int:
    """CRC-32C, rotated and shifted as the record format has it."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
