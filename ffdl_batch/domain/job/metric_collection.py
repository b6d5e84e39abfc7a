"""Translates `evaluation_metrics` of a job for its collector, and finds mistakes in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ffdl_batch.domain.job.spec import EvaluationMetrics, MetricGroup, MetricValue
from ffdl_batch.domain.metrics.patterns import MetricFinding, PatternError, check_metrics, compile_regex, reference
from ffdl_batch.domain.metrics.records import (
    LOGS_ONLY,
    TYPES,
    Collecting,
    ExtractionGroup,
    Measure,
    UnknownKind,
    kind_of,
    nearest_kind,
)

_WITHOUT_EFFECT = ("type", "meta", "time")
"""Last names of places where a mistake loses no metric, or where FfDL started an image: an unknown type was the name of
one. A type that is a misspelt known one is an error all the same."""


def collecting_of(metrics: EvaluationMetrics) -> Collecting | None:
    """Return the task of the job's collector; None if there is nothing to collect, or no way to do it."""
    try:
        kind = kind_of(metrics.type)
    except UnknownKind:
        return None
    found = Collecting(kind, tuple(_usable(group) for group in _groups(metrics)), metrics.line_lookahead)
    if kind == LOGS_ONLY or check_metrics(kind, found.groups, found.line_lookahead):
        return None
    return found


def find_metric_mistakes(metrics: EvaluationMetrics) -> tuple[tuple[MetricFinding, bool], ...]:
    """Return each mistake, and whether no collector can work with it."""
    found = check_metrics(metrics.type, _groups(metrics), metrics.line_lookahead)
    is_slip = bool(nearest_kind(metrics.type))
    return tuple((one, one.path[-1] not in _WITHOUT_EFFECT or (is_slip and one.path == ("type",))) for one in found)


def _groups(metrics: EvaluationMetrics) -> tuple[ExtractionGroup, ...]:
    return tuple(_group(label, group) for label, group in metrics.groups.items())


def _group(label: str, group: MetricGroup) -> ExtractionGroup:
    return ExtractionGroup(label, group.regex, group.meta_time, "", _measures(group.scalars), _measures(group.etimes))


def _measures(values: Mapping[str, MetricValue]) -> dict[str, Measure]:
    return {name: Measure(value.type.upper(), value.value) for name, value in values.items()}


def _usable(group: ExtractionGroup) -> ExtractionGroup:
    """Return the group without what FfDL's extractor ignores, too: a time that the expression does not find, unknown
    types."""
    try:
        names = compile_regex(group.regex).groupindex
    except PatternError:
        return group
    wanted = reference(group.time)
    return replace(
        group,
        time="" if wanted is not None and wanted not in names else group.time,
        scalars=_known(group.scalars),
        etimes=_known(group.etimes),
    )


def _known(measures: Mapping[str, Measure]) -> dict[str, Measure]:
    return {name: one if one.type in TYPES else Measure("", one.value) for name, one in measures.items()}
