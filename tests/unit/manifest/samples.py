"""Small manifests for the tests, and short ways to parse them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ffdl_batch.domain.findings import Severity
from ffdl_batch.domain.job.spec import JobSpec
from ffdl_batch.manifest import Defaults, ManifestSource, Parsed, parse_manifest

CORPUS = Path(__file__).parent / "corpus"
FRAMEWORK = "framework: {name: custom, version: image, command: run}\n"
MINIMAL = "name: job\nmemory: 1GB\n" + FRAMEWORK


def parse(
    text: str | bytes,
    options: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
    defaults: Defaults | None = None,
    strict: bool = False,
    base_dir: str = "/base",
) -> Parsed:
    """The outcome for a manifest named m.yml that lies in /base."""
    return parse_manifest(
        ManifestSource(text, "m.yml", base_dir),
        options=options or {},
        environment_options=environment or {},
        defaults=defaults or Defaults(),
        strict=strict,
    )


def read(text: str | bytes, options: Mapping[str, str] | None = None) -> JobSpec:
    """The job of a manifest that must be right."""
    parsed = parse(text, options)
    assert parsed.spec is not None, "\n".join(str(f) for f in parsed.findings)
    return parsed.spec


def errors(parsed: Parsed) -> list[str]:
    """The errors as lines; there are some exactly when there is no spec."""
    lines = [str(f) for f in parsed.findings if f.severity is Severity.ERROR]
    assert bool(lines) == (parsed.spec is None)
    return lines


def warnings(parsed: Parsed) -> list[str]:
    """The warnings as lines."""
    return [str(f) for f in parsed.findings if f.severity is Severity.WARNING]


def notes(parsed: Parsed) -> list[str]:
    """The notes as lines."""
    return [str(f) for f in parsed.findings if f.severity is Severity.NOTE]
