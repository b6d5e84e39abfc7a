"""Records of metrics and their lines, kinds of collectors, values, and macros of regular expressions."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from ffdl_batch.domain.codec import CodecError
from ffdl_batch.domain.metrics.patterns import MACROS, MetricFinding, PatternError, check_metrics, compile_regex, expand
from ffdl_batch.domain.metrics.records import (
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
    "training-1", 1700000000123, 7, "learner-2", "test",
    {"iteration": Measure("INT", "10"), "timestamp": Measure("STRING", "2026-01-02T03:04:05Z")},
    {"loss\n": Measure("FLOAT", "0.5"), "größe": Measure("JSONSTRING", '{"a":1}')},
)  # fmt: skip


def test_metric_record_round_trips_on_one_line_in_ffdl_format() -> None:
    line = encode_record(RECORD)
    assert decode_record(line) == RECORD
    assert line.endswith("\n") and line.count("\n") == 1 and line.isascii()
    body = json.loads(line)
    assert body["meta"] == {"training_id": "training-1", "time": 1700000000123, "rindex": 7, "subid": "learner-2"}
    assert body["grouplabel"] == "test"
    assert body["etimes"]["iteration"] == {"type": "INT", "value": "10"}


def test_decode_record_accepts_text_numbers_untyped_values_and_record_without_meta() -> None:
    found = decode_record(
        '{"meta":{"training_id":"t","time":"12","rindex":"3"},"grouplabel":"g",'
        '"etimes":{"step":{"value":"4"}},"values":{"a":{"value":0.25},"b":1,"c":"NaN","d":"word","e":[1],"f":{"type":"float","value":2}}}'
    )
    assert (found.time_ms, found.rindex, found.etimes["step"]) == (12, 3, Measure("INT", "4"))
    assert found.values == {
        "a": Measure("FLOAT", "0.25"), "b": Measure("INT", "1"), "c": Measure("FLOAT", "NaN"),
        "d": Measure("STRING", "word"), "e": Measure("JSONSTRING", "[1]"), "f": Measure("FLOAT", "2"),
    }  # fmt: skip
    plain = decode_record('{"values":{"a":1}}', training_id="t", time_ms=5)
    assert (plain.training_id, plain.time_ms, plain.rindex, plain.subid, plain.group) == ("t", 5, 0, "", "")


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("{", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("[]", "is not a JSON object"),
        ('{"values":{}}', "has no values"),
        ('{"values":[1]}', "values is not an object"),
        ('{"values":{"a":{"type":"FLOAT"}}}', "a has no value"),
        ('{"values":{"a":{"type":"DOUBLE","value":"1"}}}', "none of STRING"),
        ('{"values":{"a":1},"meta":[1]}', "meta is not an object"),
        ('{"values":{"a":1},"meta":{"time":"now"}}', "time is not a number"),
        ('{"values":{"a":1},"meta":{"time":Infinity}}', "time is not a number"),
        ('{"values":{"a":1},"grouplabel":{}}', "grouplabel is not a text"),
    ],
)
def test_decode_record_explains_invalid_line(line: str, why: str) -> None:
    with pytest.raises(RecordError, match=why):
        decode_record(line)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (LOGS_ONLY, ["", "null", "nil", "none", "logger", "log_collector"]),
        (TENSORBOARD, ["tensorboard", "tensorboard_extractor", "tensorboard_extract"]),
        (EMETRICS_FILE, ["emetrics_file", "file", "optivist", "emetrics_file_extractor"]),
        (REGEX, ["regex_extractor"]),
    ],
)
def test_kind_of_maps_ffdl_types_and_image_names_to_collectors(kind: str, words: list[str]) -> None:
    assert [kind_of(word) for word in words] == [kind] * len(words)


def test_kind_of_rejects_image_name_and_lists_known_types() -> None:
    known = r"'me/extractor:1'.*emetrics_file, .*file, log_collector, logger.*tensorboard"
    with pytest.raises(UnknownKind, match=known):
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
    found = [float_text(float(text)) for text in ("nan", "inf", "-inf", "0.1")]
    assert found == ["NaN", "Infinity", "-Infinity", "0.1"]
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


GOOD = ExtractionGroup(
    "loss", r"%{GLOG_STAMP:at} .* loss = %{FLOAT:loss}", "$at", "", {"loss": Measure("FLOAT", "$loss")}
)


@pytest.mark.parametrize(
    ("macro", "valid", "others"),
    [
        ("INT", ["0", "-12", "+3"], ["", "-", "1.5", "x"]),
        ("INT_ANY", ["0x1F", "017", "0b11", "0o17", "-9"], []),
        ("HEX", ["0xdeadBEEF", "ff"], ["0x", "g"]),
        ("FLOAT", ["1", "-1.", ".5", "1e5", "2.5E-03", "nan", "-inf", "Infinity", "NaN"],
         ["", ".", "e5", "nano", "information"]),
        ("TIMESTAMP", ["2026-01-02T03:04:05Z", "2026-01-02 03:04:05,123", "2026-01-02T03:04:05.5+01:00"],
         ["03:04:05", "2026-01-02"]),
        ("GLOG_STAMP", ["I0102 03:04:05.678901", "W1231  23:59:59"], ["X0102 03:04:05", "0102 03:04"]),
    ],
)  # fmt: skip
def test_metric_macro_matches_only_valid_texts(macro: str, valid: list[str], others: list[str]) -> None:
    assert [text for text in (*valid, *others) if re.fullmatch(MACROS[macro], text)] == valid


def test_expand_turns_macros_into_groups_and_compile_regex_isolates_their_alternatives() -> None:
    assert expand("%{INT:n} %{INT} 5%{2} 3%") == r"(?P<n>[-+]?\d+) (?:[-+]?\d+) 5%{2} 3%"
    found = compile_regex("a=%{FLOAT};b=%{INT_ANY:b}").match("a=nan;b=0x10")
    assert found is not None and found["b"] == "0x10"


@pytest.mark.parametrize(
    ("regex", "why"),
    [
        ("%{NUMBER:x}", "no macro %{NUMBER}"),
        ("%{INT:}", "cannot be a group's name"),
        ("%{INT:1a}", "cannot be a group's name"),
        ("(", "is not a regular expression"),
        ("a{" + "9" * 5000 + "}", "is not a regular expression"),
        ("(?P<a>x)(?P<a>y)", "is not a regular expression"),
        ("%{INT:a} %{INT:a}", "redefinition of group name 'a'"),
    ],
)
def test_compile_regex_explains_invalid_expression(regex: str, why: str) -> None:
    with pytest.raises(PatternError, match=why):
        compile_regex(regex)


def test_check_metrics_accepts_valid_groups_and_reports_only_unknown_type() -> None:
    assert check_metrics("regex_extractor", (GOOD,), 0) == ()
    assert check_metrics("tensorboard", (), 4) == ()
    (one,) = check_metrics("an/image", (ExtractionGroup("g", ""),), 4)
    assert isinstance(one, MetricFinding) and one.path == ("type",) and "tensorboard" in one.message


def found(group: ExtractionGroup) -> list[tuple[str, str]]:
    return [(".".join(one.path), one.message) for one in check_metrics("regex_extractor", (group,), 4)]


def test_check_metrics_reports_every_mistake_with_its_path() -> None:
    scalars = {"a": Measure("DOUBLE", "$n"), "b": Measure("INT", "$m"), "c": Measure("", "$5 a day")}
    assert found(ExtractionGroup("g", "%{INT:n}", "$t", "$s", scalars, {"i": Measure("INT", "$i")})) == [
        ("groups.g.meta.time", "the regex has no group t"),
        ("groups.g.meta.subid", "the regex has no group s"),
        ("groups.g.scalars.a.type", "there is no type 'DOUBLE'"),
        ("groups.g.scalars.b.value", "the regex has no group m"),
        ("groups.g.etimes.i.value", "the regex has no group i"),
    ]


def test_check_metrics_reports_groups_that_extract_nothing() -> None:
    assert found(ExtractionGroup("g", "")) == [("groups.g.regex", "a group without regex finds nothing")]
    assert found(ExtractionGroup("g", "x")) == [("groups.g.scalars", "a group without scalars measures nothing")]
    (one,) = check_metrics("regex_extractor", (ExtractionGroup("g", "%{X}"),), 4)
    assert (one.path, one.message) == (("groups", "g", "regex"), "there is no macro %{X}")
    assert one.cure == "macros are: FLOAT, GLOG_STAMP, HEX, INT, INT_ANY, TIMESTAMP"


@pytest.mark.parametrize(("lines", "paths"), [(-1, [("line_lookahead",)]), (100, []), (101, [("line_lookahead",)])])
def test_check_metrics_limits_line_lookahead(lines: int, paths: list[tuple[str, ...]]) -> None:
    assert [one.path for one in check_metrics("regex_extractor", (GOOD,), lines)] == paths
