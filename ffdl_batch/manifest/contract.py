"""Input and result of :func:`ffdl_batch.manifest.parse_manifest`; standard library only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from ffdl_batch.domain.findings import Finding
from ffdl_batch.domain.job.spec import JobSpec
from ffdl_batch.host.fast_dataclass import dataclass

NO_JOB = "no job is taken with"
"""In warnings about what every backend refuses when it plans a job. `ffdl validate` reports them as errors."""


@dataclass(frozen=True, slots=True)
class ManifestSource:
    """A manifest as it was submitted."""

    text: str | bytes
    name: str
    """For messages: a file name, ``<stdin>``."""
    base_dir: str
    """Directory where relative paths start; "" = unknown."""


@dataclass(frozen=True, slots=True)
class Defaults:
    """The site's values for what a manifest leaves out."""

    memory_bytes: int = 8 * 1000**3
    cpus: float = 5.0
    learners: int = 1
    known_frameworks: Mapping[str, tuple[str, ...]] | None = None
    """Framework → its versions; ``*`` among them, or none, means any version. None = frameworks are not checked."""
    own_keys: frozenset[str] | None = None
    """Those of the backend (:class:`ffdl_batch.domain.backend_facts.BackendTraits`); None = no backend is known."""
    pools: frozenset[str] = frozenset()
    """Configured pools of elastic jobs."""


@dataclass(frozen=True, slots=True)
class Parsed:
    """The result of parsing."""

    spec: JobSpec | None
    """None exactly if `findings` has an error."""
    findings: tuple[Finding, ...]
    inline_secrets: Mapping[str, str]
    """Credentials in the manifest, by the names by which `spec` refers to them (``${secret:name}``)."""
    redacted_text: str
    """The manifest with the values of credentials replaced by ``***``, which is safe to keep; "" if the manifest could
    not be read, because its secrets are then unknown."""
    lines: Mapping[str, int | str] = field(default_factory=dict)
    """Place of each value that the manifest gives → its line, or the option or variable that gives it. The elements of
    a sweep have none."""
