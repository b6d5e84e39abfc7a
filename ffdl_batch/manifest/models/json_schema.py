"""The JSON Schema of the whole manifest, generated from the models that validate it."""

from __future__ import annotations

import copy
from functools import lru_cache
from typing import Any

from ffdl_batch.manifest.models.batch import ManifestBlock

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def json_schema() -> dict[str, object]:
    """JSON Schema 2020-12 of a manifest as an ordinary YAML or JSON reader loads it, `batch:` included.

    It accepts what :func:`parse_manifest` accepts as far as a schema can say it: rules across fields and what is
    known to the site alone (frameworks, partitions) are beyond it. Unknown keys are allowed, as in FfDL.
    """
    return copy.deepcopy(_schema())


@lru_cache(maxsize=1)
def _schema() -> dict[str, object]:
    generated = ManifestBlock.model_json_schema(by_alias=True)
    for block in (generated, *generated["$defs"].values()):
        for described in block["properties"].values():
            _tidy(described)
    return {"$schema": DIALECT, **generated, "title": "FfDL manifest"}


def _tidy(described: dict[str, Any]) -> None:
    """Drop the generated title, which repeats the key, and let a block or list be written without a value."""
    described.pop("title", None)
    if described.get("type") in ("object", "array"):
        described["type"] = [described["type"], "null"]
