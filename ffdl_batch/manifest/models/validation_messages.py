"""Turns pydantic's errors into findings: with FfDL's own words where it had them, else ours."""

from __future__ import annotations

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from ffdl_batch.manifest.document.tree import Place, locate
from ffdl_batch.manifest.finding_log import FindingLog
from ffdl_batch.manifest.models.scalars import kind_of

# FfDL's trainer, validateRequest: the same sentences, so that what people look up still finds it
_NOT_SET: dict[Place, tuple[str, str]] = {
    ("name",): ("Model definition name is not set", "write `name: ` and a name for the job"),
    ("framework",): ("Framework is not set", "write framework: with name, version and command"),
    ("framework", "name"): ("Framework name is not set", "write `name: ` under framework, as tensorflow or custom"),
    ("framework", "version"): ("Framework version is not set", "write `version: ` under framework"),
    ("framework", "command"): ("Training command is not set", "write `command: ` under framework"),
}


def report(error: ValidationError, log: FindingLog) -> None:
    """Report one finding for each error, at its place in the tree."""
    for details in error.errors(include_url=False):
        place: Place = tuple(step for step in details["loc"] if step != "[key]")
        place = _existing_part(place, log, missing=details["type"] == "missing")
        message, cure = _sentence(details, place)
        log.error(place, message, cure)


def _existing_part(place: Place, log: FindingLog, missing: bool) -> Place:
    """Return `place` without steps that only the models know (the level in `network: job`)."""
    _, depth = locate(log.root, place)
    return place if missing else place[:depth]


def _sentence(details: ErrorDetails, place: Place) -> tuple[str, str]:
    context = details.get("ctx", {})
    if (
        details["type"] == "missing"
        or context.get("message") == "not set"
        or (place in _NOT_SET and not details["input"])
    ):
        return _NOT_SET.get(place, ("this is not set", ""))
    if details["type"] == "refused":
        return str(context["message"]), str(context["cure"])
    if details["type"] in ("model_type", "dict_type", "model_attributes_type"):
        return f"a mapping is needed here, not {kind_of(details['input'])}", "write `key: value` lines below, indented"
    if details["type"] in ("list_type", "tuple_type"):
        return f"a list is needed here, not {kind_of(details['input'])}", "begin each item with '- '"
    return details["msg"], ""
