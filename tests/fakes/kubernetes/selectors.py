"""Label and field selectors."""

from __future__ import annotations

import re
from collections.abc import Callable

from tests.fakes.kubernetes.kinds import PODS, Kind, Obj, labels_of
from tests.fakes.kubernetes.refusals import bad_request

Check = Callable[[Obj], bool]

_IN = re.compile(r"^\s*([^\s!=]+)\s+(in|notin)\s*\(([^)]*)\)\s*$")
_EQUAL = re.compile(r"^\s*([^\s!=]+)\s*(==|=|!=)\s*([^\s]*)\s*$")
_POD_FIELDS = ("spec.nodeName", "spec.restartPolicy", "spec.schedulerName", "spec.serviceAccountName", "status.phase")
_EVENT_FIELDS = ("involvedObject.kind", "involvedObject.name", "involvedObject.namespace", "involvedObject.uid",
                 "reason", "type", "involvedObject.fieldPath")  # fmt: skip


def label_check(selector: str) -> Check:
    """The check of a label selector as text."""
    checks = [_label(part) for part in re.split(r",(?![^(]*\))", selector) if part.strip()]
    return lambda obj: all(check(labels_of(obj)) for check in checks)


def _label(part: str) -> Callable[[dict[str, str]], bool]:
    if match := _IN.match(part):
        key, how, values = match[1], match[2], {value.strip() for value in match[3].split(",")}
        if how == "in":
            return lambda labels: labels.get(key) in values
        return lambda labels: labels.get(key) not in values
    if match := _EQUAL.match(part):
        key, how, value = match[1], match[2], match[3]
        if how == "!=":
            return lambda labels: labels.get(key) != value
        return lambda labels: labels.get(key) == value
    name = part.strip()
    if not re.fullmatch(r"!?[A-Za-z0-9][-A-Za-z0-9_./]*", name):
        raise bad_request(f"unable to parse requirement: found '{name}', expected: identifier")
    if name.startswith("!"):
        return lambda labels: name[1:] not in labels
    return lambda labels: name in labels


def selector_matches(selector: Obj | None, labels: dict[str, str]) -> bool:
    """Whether a LabelSelector (of an object, not as text) matches."""
    if selector is None:
        return False
    if any(labels.get(key) != value for key, value in (selector.get("matchLabels") or {}).items()):
        return False
    return all(expression_matches(one, labels) for one in selector.get("matchExpressions") or [])


def expression_matches(expression: Obj, labels: dict[str, str]) -> bool:
    """One requirement of a LabelSelector or of a node's affinity."""
    value, values = labels.get(expression["key"]), expression.get("values") or []
    answers = {
        "In": lambda: value in values,
        "NotIn": lambda: value not in values,
        "Exists": lambda: value is not None,
        "DoesNotExist": lambda: value is None,
        "Gt": lambda: value is not None and int(value) > int(values[0]),
        "Lt": lambda: value is not None and int(value) < int(values[0]),
    }
    return answers[expression["operator"]]()


def field_check(kind: Kind, selector: str) -> Check:
    """The check of a field selector; fields that the kind does not have are refused."""
    known = ["metadata.name"] + (["metadata.namespace"] if kind.namespaced else [])
    known += _POD_FIELDS if kind is PODS else _EVENT_FIELDS if kind.plural == "events" else ()
    checks = []
    for part in selector.split(","):
        match = _EQUAL.match(part)
        if match is None:
            raise bad_request(f"invalid selector: '{selector}'; can't understand '{part}'")
        if match[1] not in known:
            raise bad_request(f"field label not supported: {match[1]}")
        checks.append((match[1], match[3], match[2] != "!="))

    def check(obj: Obj) -> bool:
        return all((_value(obj, path) == value) is wanted for path, value, wanted in checks)

    return check


def _value(obj: Obj, path: str) -> str:
    found: object = obj
    for part in path.split("."):
        found = found.get(part) if isinstance(found, dict) else None
    return "" if found is None else str(found)
