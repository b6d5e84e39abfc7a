"""Parses manifests: text in, a checked :class:`~ffdl_batch.domain.job.spec.JobSpec` and findings out.

pydantic and PyYAML are imported on first use (PEP 562), so that an import of this package costs nothing. No module of
it opens a file, a connection or a process.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from ffdl_batch.manifest.contract import Defaults, ManifestSource, Parsed

if TYPE_CHECKING:
    from ffdl_batch.manifest.environment_variables import literal_paths as literal_paths
    from ffdl_batch.manifest.models.batch import json_schema as json_schema
    from ffdl_batch.manifest.parser import parse_manifest as parse_manifest
    from ffdl_batch.manifest.writer import starter_manifest as starter_manifest

__all__ = [
    "Defaults",
    "ManifestSource",
    "Parsed",
    "json_schema",
    "literal_paths",
    "parse_manifest",
    "starter_manifest",
]

_HOMES = {
    "json_schema": "models.batch",
    "literal_paths": "environment_variables",
    "parse_manifest": "parser",
    "starter_manifest": "writer",
}


def __getattr__(name: str) -> object:
    """Import the module behind a public function when it is first asked for."""
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
