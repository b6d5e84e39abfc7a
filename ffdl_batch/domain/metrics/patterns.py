"""The regular expressions of `evaluation_metrics.groups`: their macros, and a check for mistakes.

`%{NAME}` and `%{NAME:group}` stand for the patterns of MACROS, the latter as a named group. Runs on Python 3.9.
"""

from __future__ import annotations

import re
from typing import List, Mapping, Optional, Pattern, Sequence, Tuple

from ffdl_batch.domain.metrics.records import (
    LEAST_LOOKAHEAD,
    MOST_LOOKAHEAD,
    REGEX,
    TYPES,
    ExtractionGroup,
    Measure,
    UnknownKind,
    kind_of,
    nearest_kind,
)
from ffdl_batch.domain.terminal_text import quoted
from ffdl_batch.host.fast_dataclass import dataclass

MACROS: Mapping[str, str] = {
    "INT": r"[-+]?\d+",
    "INT_ANY": r"[-+]?(?:0[xX][0-9a-fA-F]+|0[oO][0-7]+|0[bB][01]+|\d+)",
    "HEX": r"(?:0[xX])?[0-9a-fA-F]+",
    "FLOAT": r"[-+]?(?:(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|(?i:inf(?:inity)?|nan)\b)",
    "TIMESTAMP": r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?(?: ?(?:Z\b|[-+]\d\d:?\d\d))?",
    "GLOG_STAMP": r"[DIWEF]\d{4} \s*\d\d?:\d\d:\d\d(?:\.\d+)?",
}
FLAGS = re.MULTILINE | re.DOTALL
_MACRO = re.compile(r"%\{([A-Za-z_]\w*)(?::(\w*))?\}")
_REFERENCE = re.compile(r"\$(\w+)\Z")


class PatternError(ValueError):
    """An expression that cannot be used; the message says why."""


@dataclass(frozen=True)
class MetricFinding:
    """What is wrong at `path`, a place below `evaluation_metrics`, and what the user can do."""

    path: Tuple[str, ...]
    message: str
    cure: str = ""


def expand(regex: str) -> str:
    """Return the expression with its macros replaced. Raises :class:`PatternError`."""

    def full(found: re.Match[str]) -> str:
        name, group = found.groups()
        if name not in MACROS:
            raise PatternError(f"there is no macro %{{{name}}}")
        if group is None:
            return f"(?:{MACROS[name]})"
        if not group.isidentifier():
            raise PatternError(f"{found.group()}: {group!r} cannot be a group's name")
        return f"(?P<{group}>{MACROS[name]})"

    return _MACRO.sub(full, regex)


def compile_regex(regex: str) -> Pattern[str]:
    """Return the compiled expression. Raises :class:`PatternError`."""
    expanded = expand(regex)
    try:
        return re.compile(expanded, FLAGS)
    except (re.error, OverflowError, RecursionError, ValueError) as error:  # ValueError: a count of over 4300 digits
        raise PatternError(f"is not a regular expression of Python's: {error}") from None


def reference(text: str) -> Optional[str]:
    """Return the group that `$group` names; None if the text is literal."""
    found = _REFERENCE.match(text)
    return found.group(1) if found else None


def check_metrics(kind: str, groups: Sequence[ExtractionGroup], line_lookahead: int) -> Tuple[MetricFinding, ...]:
    """Return every mistake that prevents the collection of `evaluation_metrics`, in the order of the groups. Without
    groups, only the learner's own reports are collected (:mod:`ffdl_batch.domain.metrics.learner_reports`)."""
    try:
        known = kind_of(kind)
    except UnknownKind as error:
        near = nearest_kind(kind)
        if near:
            return (MetricFinding(("type",), f"there is no collector {quoted(kind)}", f"did you mean {near}?"),)
        return (MetricFinding(("type",), str(error), "write one of them, or none"),)
    if known != REGEX:
        return ()
    findings: List[MetricFinding] = []
    if not LEAST_LOOKAHEAD <= line_lookahead <= MOST_LOOKAHEAD:
        words = f"{line_lookahead} lines are not looked at together"
        cure = f"write a number from {LEAST_LOOKAHEAD} to {MOST_LOOKAHEAD}"
        findings.append(MetricFinding(("line_lookahead",), words, cure))
    for group in groups:
        findings.extend(_check_group(group))
    return tuple(findings)


def _check_group(group: ExtractionGroup) -> List[MetricFinding]:
    place = ("groups", group.label)
    if not group.regex:
        return [MetricFinding((*place, "regex"), "a group without regex finds nothing", "write its regex")]
    try:
        names = compile_regex(group.regex).groupindex
    except PatternError as error:
        return [MetricFinding((*place, "regex"), str(error), f"macros are: {', '.join(sorted(MACROS))}")]
    findings: List[MetricFinding] = []
    for name, text in (("time", group.time), ("subid", group.subid)):
        findings.extend(_check_reference((*place, "meta", name), text, names))
    axes: Tuple[Tuple[str, Mapping[str, Measure]], ...] = (("scalars", group.scalars), ("etimes", group.etimes))
    for axis, measures in axes:
        for name, measure in measures.items():
            where = (*place, axis, name)
            if measure.type and measure.type not in TYPES:
                words = f"there is no type {quoted(measure.type)}"
                findings.append(MetricFinding((*where, "type"), words, f"write one of {', '.join(TYPES)}"))
            findings.extend(_check_reference((*where, "value"), measure.value, names))
    if not group.scalars:
        findings.append(MetricFinding((*place, "scalars"), "a group without scalars measures nothing", "write some"))
    return findings


def _check_reference(where: Tuple[str, ...], text: str, names: Mapping[str, int]) -> List[MetricFinding]:
    wanted = reference(text)
    if wanted is None or wanted in names:
        return []
    known = ", ".join(names) or "none"
    return [MetricFinding(where, f"the regex has no group {wanted}", f"its groups are: {known}")]
