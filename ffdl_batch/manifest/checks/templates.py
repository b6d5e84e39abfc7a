"""Recognize documents of other products, and warn about values of a template that were not filled in.

FfDL takes ``container: <your-bucket>`` and ``user_name: $AWS_ACCESS_KEY_ID`` as they are written, and the job fails
much later.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ffdl_batch.domain.job.secret_references import REFERENCE
from ffdl_batch.manifest.credentials import READ_IN, find_written, is_credential_key
from ffdl_batch.manifest.document.tree import Mapping, Node, Place, Scalar, Sequence, find
from ffdl_batch.manifest.finding_log import FindingLog

WML_KEYS = frozenset({"model_definition", "training_data_reference", "training_results_reference"})
_INIT = "`ffdl init` writes one to start from"


def refuse_foreign(root: Mapping, log: FindingLog) -> bool:
    """Whether this is no manifest of FfDL's; then the log says whose it is.

    FfDL ignores keys that it does not know, so all but Watson Machine Learning's are refused only where there is no
    command either.
    """
    keys = root.entries.keys()
    if WML_KEYS & keys:
        key = min(WML_KEYS & keys, key=lambda k: root.entries[k].key.origin.mark.index)
        log.error((key,), "this is a manifest of Watson Machine Learning, not of FfDL", "convert it: ffdl convert")
        return True
    if find(root, ("framework", "command")) is not None:
        return False
    if {"apiVersion", "kind"} <= keys:
        log.error(("apiVersion",), "this is an object of Kubernetes, not a manifest of a training job", _INIT)
        return True
    if "model_identifier" in keys and {"train", "serve"} & keys:
        log.error(
            ("model_identifier",),
            "this describes a model for a catalogue (MAX, Machine Learning Exchange), not a training job",
            "`ffdl init` writes a manifest; train.execution.command becomes framework.command",
        )
        return True
    return False


_PLACEHOLDER = re.compile(r"<[^<>]+>|\{\{[^{}]*\}\}")
_VARIABLE = re.compile(r"\$([A-Z_][A-Z0-9_]*|\{[A-Z_][A-Z0-9_]*\})")
_FIELDS: tuple[Place, ...] = (("name",), ("gpu_type",), ("framework", "name"), ("framework", "version"))

_FREE = frozenset({"description", "data_stores", "evaluation_metrics"})
"""Blocks of free text, of regular expressions, and those with a check of their own."""
_SHELL_VARIABLE = r"(?<![\w-]){0}\+?=|\${0}\b|\$\{{{0}\}}|\b(?:for|read)\b[^\n;]*\b{0}\b"
"""Matches a script that sets or uses a variable of this name. bash knows ``${NAME:OFFSET}``, too."""
_READ: tuple[Place, ...] = (
    ("batch", "secrets"),
    ("framework", "image_location", "user_name"),
    ("framework", "image_location", "access_token"),
)


def is_placeholder(value: str) -> bool:
    """Return whether the whole value is a placeholder."""
    return _PLACEHOLDER.fullmatch(value.strip()) is not None


def note_placeholders(root: Mapping, log: FindingLog) -> None:
    """Warn about each placeholder without a value. Commands, metrics and free text may hold such words."""
    for place, scalar in _fields(root):
        if is_placeholder(scalar.text):
            log.warning(place, "this looks like a placeholder without a value", "write the real value")
        elif _names_variable(str(place[-1]), scalar.text):
            message = "this is taken as it is written: variables are replaced in commands only"
            log.warning(place, message, "write the real value")


def note_references(root: Mapping, log: FindingLog) -> None:
    """Warn about references where none is read. Data stores check their own."""
    for place, scalar in _leaves(root, ()):
        written, kind = find_written(scalar.text)
        if not written or place[0] in _FREE or place[:2] in _READ or place in _READ:
            continue
        if place[-1] == "command":
            if not re.search(_SHELL_VARIABLE.format(kind), scalar.text):
                message = f"{written!r} is left to bash; references are read in {READ_IN}"
                log.warning(place, message, "write the variable's name alone and set it in batch.secrets")
            continue
        message = f"{written!r} is used as it is written; references are read in {READ_IN}"
        cure = "move the variable to batch.secrets" if place[:2] == ("batch", "env") else "write the value"
        log.warning(place, message, cure)


def _leaves(node: Node, place: Place) -> Iterator[tuple[Place, Scalar]]:
    """Yield every value of the manifest, aliases included."""
    if isinstance(node, Scalar):
        yield place, node
    elif isinstance(node, Mapping):
        for key, entry in node.entries.items():
            yield from _leaves(entry.value, (*place, key))
    else:
        for number, item in enumerate(node.items):
            yield from _leaves(item, (*place, number))


def _names_variable(key: str, value: str) -> bool:
    if is_credential_key(key):  # a dollar inside a password is a dollar
        return _VARIABLE.fullmatch(value) is not None
    return _VARIABLE.search(REFERENCE.sub("", value)) is not None


def _fields(root: Mapping) -> Iterator[tuple[Place, Scalar]]:
    for place in _FIELDS:
        node = find(root, place)
        if isinstance(node, Scalar):
            yield place, node
    stores = root.get("data_stores")
    for i, store in enumerate(stores.items if isinstance(stores, Sequence) else []):
        for block in ("training_data", "training_results", "connection"):
            yield from _inside(find(store, (block,)), ("data_stores", i, block))


def _inside(block: Node | None, place: Place) -> Iterator[tuple[Place, Scalar]]:
    if isinstance(block, Mapping):
        for key, entry in block.entries.items():
            if isinstance(entry.value, Scalar):
                yield (*place, key), entry.value
