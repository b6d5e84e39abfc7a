"""Macros of regular expressions, and what is wrong with a manifest's groups."""

from __future__ import annotations

import re

import pytest

from ffdl_batch.domain.metric_patterns import MACROS, MetricFinding, PatternError, check_metrics, compile_regex, expand
from ffdl_batch.domain.metrics import ExtractionGroup, Measure

GOOD = ExtractionGroup(
    "loss", r"%{GLOG_STAMP:at} .* loss = %{FLOAT:loss}", "$at", "", {"loss": Measure("FLOAT", "$loss")}
)


@pytest.mark.parametrize(
    ("macro", "texts"),
    [
        ("INT", ["0", "-12", "+3"]),
        ("INT_ANY", ["0x1F", "017", "0b11", "0o17", "-9"]),
        ("HEX", ["0xdeadBEEF", "ff"]),
        ("FLOAT", ["1", "-1.", ".5", "1e5", "2.5E-03", "nan", "-inf", "Infinity", "NaN"]),
        ("TIMESTAMP", ["2026-01-02T03:04:05Z", "2026-01-02 03:04:05,123", "2026-01-02T03:04:05.5+01:00"]),
        ("GLOG_STAMP", ["I0102 03:04:05.678901", "W1231  23:59:59"]),
    ],
)
def test_metric_macro_matches_valid_texts(macro: str, texts: list[str]) -> None:
    assert [text for text in texts if not re.fullmatch(MACROS[macro], text)] == []


@pytest.mark.parametrize(
    ("macro", "texts"),
    [
        ("INT", ["", "-", "1.5", "x"]),
        ("FLOAT", ["", ".", "e5", "nano", "information"]),
        ("HEX", ["0x", "g"]),
        ("TIMESTAMP", ["03:04:05", "2026-01-02"]),
        ("GLOG_STAMP", ["X0102 03:04:05", "0102 03:04"]),
    ],
)
def test_metric_macro_rejects_other_texts(macro: str, texts: list[str]) -> None:
    assert [text for text in texts if re.fullmatch(MACROS[macro], text)] == []


def test_expand_turns_macros_into_named_and_unnamed_groups() -> None:
    assert expand("%{INT:n} %{INT} 5%{2} 3%") == r"(?P<n>[-+]?\d+) (?:[-+]?\d+) 5%{2} 3%"


def test_compile_regex_isolates_alternatives_of_macro() -> None:
    found = compile_regex("a=%{FLOAT};b=%{INT_ANY:b}").match("a=nan;b=0x10")
    assert found is not None and found["b"] == "0x10"


@pytest.mark.parametrize(
    ("regex", "why"),
    [
        ("%{NUMBER:x}", "no macro %{NUMBER}"),
        ("%{INT:}", "cannot be a group's name"),
        ("%{INT:1a}", "cannot be a group's name"),
        ("(", "is no regular expression"),
        ("%{INT:a} %{INT:a}", "redefinition of group name 'a'"),
    ],
)
def test_compile_regex_explains_invalid_expression(regex: str, why: str) -> None:
    with pytest.raises(PatternError, match=why):
        compile_regex(regex)


def test_check_metrics_accepts_valid_groups() -> None:
    assert check_metrics("regex_extractor", (GOOD,), 0) == ()
    assert check_metrics("tensorboard", (), 4) == ()


def found(group: ExtractionGroup) -> list[tuple[str, str]]:
    return [(".".join(one.path), one.message) for one in check_metrics("regex_extractor", (group,), 4)]


def test_check_metrics_reports_every_mistake_with_its_path() -> None:
    scalars = {"a": Measure("DOUBLE", "$n"), "b": Measure("INT", "$m"), "c": Measure("", "$5 a day")}
    assert found(ExtractionGroup("g", "%{INT:n}", "$t", "$s", scalars, {"i": Measure("INT", "$i")})) == [
        ("groups.g.meta.time", "the regex has no group t"),
        ("groups.g.meta.subid", "the regex has no group s"),
        ("groups.g.scalars.a.type", "there is no type DOUBLE"),
        ("groups.g.scalars.b.value", "the regex has no group m"),
        ("groups.g.etimes.i.value", "the regex has no group i"),
    ]


def test_check_metrics_reports_groups_that_extract_nothing() -> None:
    assert found(ExtractionGroup("g", "")) == [("groups.g.regex", "a group without regex finds nothing")]
    assert found(ExtractionGroup("g", "x")) == [("groups.g.scalars", "a group without scalars measures nothing")]
    assert [one.path for one in check_metrics("regex_extractor", (), 4)] == [("groups",)]
    (one,) = check_metrics("regex_extractor", (ExtractionGroup("g", "%{X}"),), 4)
    assert (one.path, one.message) == (("groups", "g", "regex"), "there is no macro %{X}")
    assert one.cure == "macros are: FLOAT, GLOG_STAMP, HEX, INT, INT_ANY, TIMESTAMP"


@pytest.mark.parametrize(("lines", "paths"), [(-1, [("line_lookahead",)]), (100, []), (101, [("line_lookahead",)])])
def test_check_metrics_limits_line_lookahead(lines: int, paths: list[tuple[str, ...]]) -> None:
    assert [one.path for one in check_metrics("regex_extractor", (GOOD,), lines)] == paths


def test_check_metrics_reports_only_unknown_type() -> None:
    (one,) = check_metrics("an/image", (ExtractionGroup("g", ""),), 4)
    assert isinstance(one, MetricFinding) and one.path == ("type",) and "tensorboard" in one.message
