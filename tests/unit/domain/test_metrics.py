"""Records of metrics and their lines, kinds of collectors, values."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ffdl_batch.domain.codec import CodecError
from ffdl_batch.domain.metrics import (
    EMETRICS_FILE,
    LOGS_ONLY,
    REGEX,
    TENSORBOARD,
    CollectorSpec,
    ExtractionGroup,
    Measure,
    MetricRecord,
    RecordError,
    UnknownKind,
    decode_record,
    decode_spec,
    encode_record,
    encode_spec,
    float_text,
    kind_of,
    measure,
    nearest_kind,
    typed,
)

RECORD = MetricRecord(
    "training-1",
    1700000000123,
    7,
    "learner-2",
    "test",
    {"iteration": Measure("INT", "10"), "timestamp": Measure("STRING", "2026-01-02T03:04:05Z")},
    {"loss\n": Measure("FLOAT", "0.5"), "größe": Measure("JSONSTRING", '{"a":1}')},
)


def test_metric_record_round_trips_on_one_line() -> None:
    line = encode_record(RECORD)
    assert decode_record(line) == RECORD
    assert line.endswith("\n") and line.count("\n") == 1 and line.isascii()


def test_metric_record_line_uses_ffdl_format() -> None:
    body = json.loads(encode_record(RECORD))
    assert body["meta"] == {"training_id": "training-1", "time": 1700000000123, "rindex": 7, "subid": "learner-2"}
    assert body["grouplabel"] == "test"
    assert body["etimes"]["iteration"] == {"type": "INT", "value": "10"}


def test_decode_record_accepts_text_numbers_and_untyped_values() -> None:
    found = decode_record(
        '{"meta":{"training_id":"t","time":"12","rindex":"3"},"grouplabel":"g",'
        '"etimes":{"step":{"value":"4"}},"values":{"a":{"value":0.25},"b":1,"c":"NaN","d":"word","e":[1],"f":{"type":"float","value":2}}}'
    )
    assert (found.time_ms, found.rindex, found.etimes["step"]) == (12, 3, Measure("INT", "4"))
    assert found.values == {
        "a": Measure("FLOAT", "0.25"),
        "b": Measure("INT", "1"),
        "c": Measure("FLOAT", "NaN"),
        "d": Measure("STRING", "word"),
        "e": Measure("JSONSTRING", "[1]"),
        "f": Measure("FLOAT", "2"),
    }


def test_decode_record_uses_given_id_and_time_without_meta() -> None:
    found = decode_record('{"values":{"a":1}}', training_id="t", time_ms=5)
    assert (found.training_id, found.time_ms, found.rindex, found.subid, found.group) == ("t", 5, 0, "", "")


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("{", "is no JSON"),
        ("[" * 100_000, "is no JSON"),
        ("[]", "is no JSON object"),
        ('{"values":{}}', "has no values"),
        ('{"values":[1]}', "values is no object"),
        ('{"values":{"a":{"type":"FLOAT"}}}', "a has no value"),
        ('{"values":{"a":{"type":"DOUBLE","value":"1"}}}', "none of STRING"),
        ('{"values":{"a":1},"meta":[1]}', "meta is no object"),
        ('{"values":{"a":1},"meta":{"time":"now"}}', "time is no number"),
        ('{"values":{"a":1},"meta":{"time":Infinity}}', "time is no number"),
        ('{"values":{"a":1},"grouplabel":{}}', "grouplabel is no text"),
    ],
)
def test_decode_record_explains_invalid_line(line: str, why: str) -> None:
    with pytest.raises(RecordError, match=why):
        decode_record(line)


def test_kind_of_maps_every_ffdl_type_to_its_collector() -> None:
    kinds = {word: kind_of(word) for word in ("", "null", "nil", "none", "logger")}
    assert set(kinds.values()) == {LOGS_ONLY}
    assert {kind_of("tensorboard"), kind_of("tensorboard_extractor")} == {TENSORBOARD}
    assert {kind_of("emetrics_file"), kind_of("file"), kind_of("optivist")} == {EMETRICS_FILE}
    assert kind_of("regex_extractor") == REGEX


def test_kind_of_rejects_image_name_and_lists_known_types() -> None:
    with pytest.raises(
        UnknownKind, match=r"'me/extractor:1'.*emetrics_file, .*file, log_collector, logger.*tensorboard"
    ):
        kind_of("me/extractor:1")


@pytest.mark.parametrize(
    ("word", "near"),
    [
        ("Tensorboard", "tensorboard"), ("tensorbord", "tensorboard"), ("tensor-board", "tensorboard"),
        ("regex-extractor", "regex_extractor"), ("regex", "regex_extractor"), ("emetrics_fil", "emetrics_file"),
        ("emetrics", "emetrics_file"), ("NONE", "none"), ("tensorboard", ""), ("me/tensorboard", ""),
        ("tensorboard:v2", ""), ("prometheus", ""), ("tb", ""), ("", ""),
    ],
)  # fmt: skip
def test_nearest_kind_suggests_known_type_for_typo(word: str, near: str) -> None:
    assert nearest_kind(word) == near


def test_kind_of_maps_ffdl_image_names_to_collectors() -> None:
    assert [kind_of(name) for name in ("log_collector", "tensorboard_extract", "emetrics_file_extractor")] == [
        "none", "tensorboard", "emetrics_file",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "text", "found"),
    [
        ("INT", "12", Measure("INT", "12")),
        ("INT", "-0x1f", Measure("INT", "-31")),
        ("INT", "12.0", Measure("INT", "12")),
        ("INT", "12.5", None),
        ("INT", "nan", None),
        ("INT", "inf", None),
        ("FLOAT", " 1e-3 ", Measure("FLOAT", "1e-3")),
        ("FLOAT", "word", None),
        ("JSONSTRING", '{"a": 1}', Measure("JSONSTRING", '{"a": 1}')),
        ("STRING", "3", Measure("STRING", "3")),
        ("", "3", Measure("INT", "3")),
        ("", "three", Measure("STRING", "three")),
    ],
)
def test_typed_converts_text_to_value_of_type(kind: str, text: str, found: Measure | None) -> None:
    assert typed(kind, text) == found


def test_float_text_uses_portable_names_for_nan_and_infinity() -> None:
    assert [float_text(float(text)) for text in ("nan", "inf", "-inf", "0.1")] == [
        "NaN",
        "Infinity",
        "-Infinity",
        "0.1",
    ]
    assert measure(float("inf")) == Measure("FLOAT", "Infinity")
    assert measure(True) == Measure("JSONSTRING", "true")


def test_collector_spec_round_trips_through_file_text(tmp_path: Path) -> None:
    group = ExtractionGroup("g", "a", "$t", "$s", {"x": Measure("INT", "$x")}, {"y": Measure("", "1")})
    spec = CollectorSpec("file", "t", 2, str(tmp_path), "/out", "/stop", (group,), 3, ("/more",))
    assert decode_spec(encode_spec(spec)) == spec


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"kind": 3}'])
def test_decode_spec_rejects_invalid_text(text: str) -> None:
    with pytest.raises(CodecError):
        decode_spec(text)
