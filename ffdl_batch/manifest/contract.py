"""What goes into and comes out of :func:`ffdl_batch.manifest.parse_manifest`; the standard library alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ffdl_batch.domain.findings import Finding
from ffdl_batch.domain.job.spec import JobSpec

NO_JOB = "no job is taken with"
"""In warnings about what every backend refuses when it plans a job. `ffdl validate` reports them as errors."""


@dataclass(frozen=True, slots=True)
class ManifestSource:
    """A manifest as it was handed in.

    `name` stands in messages (a file name, ``<stdin>``); `base_dir` is where relative paths start ("" = unknown).
    """

    text: str | bytes
    name: str
    base_dir: str


@dataclass(frozen=True, slots=True)
class Defaults:
    """The site's values for what a manifest leaves out.

    `known_frameworks` maps a framework to its versions; ``*`` among them, or none, means any version. None =
    frameworks are not checked. `own_keys` are the backend's (:class:`ffdl_batch.ports.capabilities.HasOwnKeys`);
    None = no backend is known.
    """

    memory_bytes: int = 8 * 1000**3
    cpus: float = 5.0
    learners: int = 1
    known_frameworks: Mapping[str, tuple[str, ...]] | None = None
    own_keys: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class Parsed:
    """The outcome. `spec` is None exactly when an error is among `findings`.

    `inline_secrets` are credentials that stood in the manifest, by the name that `spec` refers to them with
    (``${secret:name}``). `redacted_text` is the manifest with their values replaced by ``***``; it is safe to keep.
    It is "" where the manifest could not be read: what in it is secret is unknown then.
    """

    spec: JobSpec | None
    findings: tuple[Finding, ...]
    inline_secrets: Mapping[str, str]
    redacted_text: str
