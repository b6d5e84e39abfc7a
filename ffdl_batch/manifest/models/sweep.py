"""`batch.sweep`: the variables of each element of an array, as a grid or as a list.

Read from the tree and not by a model, so that each thing that is wrong is reported at its own line.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

from ffdl_batch.domain.job.array import MAX_ELEMENTS, read_indexes
from ffdl_batch.domain.job.environment_variables import why_too_long
from ffdl_batch.domain.job.spec import BatchOptions
from ffdl_batch.domain.job.spec_errors import INTO_A_FILE
from ffdl_batch.manifest.document.tree import Mapping, Node, Place, Scalar, Sequence, find
from ffdl_batch.manifest.environment_variables import check_swept_name
from ffdl_batch.manifest.finding_log import FindingLog
from ffdl_batch.manifest.models.scalars import shown

PLACE: Place = ("batch", "sweep")
FORMS = "write a grid, as {lr: [0.1, 0.01]}, or a list, as [{lr: 0.1}, {lr: 0.01}]"
_VALUE = {"type": ["string", "number", "boolean", "null"], "pattern": r"^[^\u0000]*$"}
_NAMES = {"pattern": "^[A-Za-z_][A-Za-z0-9_]*$"}
SCHEMA: dict[str, object] = {
    "anyOf": [
        {"type": "null"},
        {
            "type": "object",
            "minProperties": 1,
            "propertyNames": _NAMES,
            "additionalProperties": {"type": "array", "minItems": 1, "items": _VALUE},
        },
        {
            "type": "array",
            "minItems": 1,
            "maxItems": MAX_ELEMENTS,
            "items": {
                "type": "object",
                "minProperties": 1,
                "propertyNames": _NAMES,
                "additionalProperties": _VALUE,
            },
        },
    ]
}
Values = dict[str, str]


def read_sweep(root: Node, log: FindingLog) -> tuple[Values, ...]:
    """The variables of each element, in order; of a grid the last variable changes fastest. Empty where there is no
    sweep, or where the log says what is wrong with it."""
    node = find(root, PLACE)
    if node is None or (isinstance(node, Scalar) and node.is_null):
        return ()
    if isinstance(node, Scalar):
        log.error(PLACE, f"{shown(node.text)} is not a sweep", FORMS)
        return ()
    if not (node.entries if isinstance(node, Mapping) else node.items):
        log.error(PLACE, "the sweep has no elements", FORMS)
        return ()
    return _read_grid(node, log) if isinstance(node, Mapping) else _read_list(node, log)


def check_array(batch: BatchOptions, log: FindingLog) -> None:
    """Report mistakes of `array` and `sweep` together, which are valid one by one."""
    if not batch.sweep:
        return
    if batch.array:
        missing = [index for index in read_indexes(batch.array).values if index >= len(batch.sweep)]
        if missing:
            message = f"the sweep has no element {missing[0]}; its elements are 0 to {len(batch.sweep) - 1}"
            log.error(("batch", "array"), message, "beside a sweep, array chooses among its elements")
    swept = {name for values in batch.sweep for name in values}
    for name in sorted(swept & batch.env.keys()):
        log.warning(("batch", "env", name), "the sweep sets this variable, too, and the sweep's value counts")


def _read_grid(node: Mapping, log: FindingLog) -> tuple[Values, ...]:
    columns: list[list[str]] = []
    for name, entry in node.entries.items():
        place = (*PLACE, name)
        check_swept_name(name, place, log)
        if not isinstance(entry.value, Sequence) or not entry.value.items:
            log.error(place, "a list of values is needed here", f"write {name}: [0.1, 0.01]")
            continue
        items = entry.value.items
        columns.append([_read_value(name, item, (*place, i), log) for i, item in enumerate(items)])
    count = math.prod(len(column) for column in columns)
    if count > MAX_ELEMENTS:
        product = " x ".join(str(len(column)) for column in columns)
        message = f"the grid has {product} = {count} elements; an array has {MAX_ELEMENTS} at most"
        log.error(PLACE, message, "take fewer values, or submit the grid in parts")
        return ()
    if log.has_errors:
        return ()
    return tuple(dict(zip(node.entries, values, strict=True)) for values in itertools.product(*columns))


def _read_list(node: Sequence, log: FindingLog) -> tuple[Values, ...]:
    if len(node.items) > MAX_ELEMENTS:
        message = f"the list has {len(node.items)} elements; an array has {MAX_ELEMENTS} at most"
        log.error(PLACE, message, "submit it in parts")
        return ()
    elements = tuple(_read_elements(node, log))
    names = {name for values in elements for name in values}
    for i, values in enumerate(elements):
        missing = sorted(names - values.keys())
        if missing and values:
            log.warning((*PLACE, i), f"{missing[0]} is not set here, as it is in other elements of the sweep")
    return elements


def _read_elements(node: Sequence, log: FindingLog) -> Iterator[Values]:
    seen: set[str] = set()
    for i, item in enumerate(node.items):
        place = (*PLACE, i)
        if not isinstance(item, Mapping) or not item.entries:
            log.error(place, "a mapping of variables to values is needed here", "write {lr: 0.1, depth: 2}")
            continue
        for name in item.entries.keys() - seen:
            check_swept_name(name, (*place, name), log)
        seen |= item.entries.keys()
        yield {name: _read_value(name, entry.value, (*place, name), log) for name, entry in item.entries.items()}


def _read_value(name: str, node: Node, place: Place, log: FindingLog) -> str:
    """Return the raw text: 0.10 is "0.10"."""
    if not isinstance(node, Scalar):
        log.error(place, "one value is needed here", "put text that contains : - { or [ in quotes")
        return ""
    if "\0" in node.text:
        log.error(place, "the text contains a NUL character", "delete it")
    if why := why_too_long(name, node.text):
        log.error(place, why, INTO_A_FILE)
    return "" if node.is_null else node.text
