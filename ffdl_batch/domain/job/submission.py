"""One job or array to submit, and what became of it; see :mod:`ffdl_batch.domain.job.views`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from ffdl_batch.domain.job.views import Problem
from ffdl_batch.host.time_zone import UtcOffsets


@dataclass(frozen=True, slots=True)
class Caller:
    """The user who sends a request: the peer of the socket, never a field of the request."""

    uid: int
    is_admin: bool = False


class Expected(StrEnum):
    """What a submission has to come to, for who can do with nothing else."""

    ANY = "any"
    JOB = "job"
    ARRAY = "array"


@dataclass(frozen=True, slots=True)
class Submission:
    """One job to submit.

    `manifest` is the text, `manifest_name` and `base_dir` say where it came from (for messages and relative
    paths). `archive` is the SHA-256 (hex) of a model archive that was uploaded before. `options` are sbatch-like
    long option names without dashes to their texts ("" for flags), as given on the command line;
    `environment_options` likewise but read from SBATCH_* and FFDL_* (lower precedence than the manifest's values).
    `environ` holds the variables that --export needs, `references` the values of what the manifest may refer to where
    it was submitted, by ``env:NAME`` and ``file:PATH``. `key` makes a repeated request harmless. What does not
    come to `expected` is refused.
    """

    manifest: str
    manifest_name: str
    base_dir: str
    archive: str
    key: str
    options: Mapping[str, str] = field(default_factory=dict)
    environment_options: Mapping[str, str] = field(default_factory=dict)
    environ: Mapping[str, str] = field(default_factory=dict)
    backend: str = ""
    strict: bool = False
    expected: Expected = Expected.ANY
    references: Mapping[str, str] = field(default_factory=dict)
    umask: int | None = None
    """The submitter's umask; None = files stay closed to other users."""
    gid: int | None = None
    """The submitter's current group (newgrp(1)); None = that of the daemon."""
    utc_offsets: UtcOffsets = ()
    """The submitter's time zone, in which `begin` and `--deadline` are read; () = that of the daemon."""
    cluster: Mapping[str, str] | None = None
    """SLURM_CONF and SLURM_CLUSTERS of the submitter's shell, "" for one that is not set; None = they are not compared
    with those of the daemon."""


@dataclass(frozen=True, slots=True)
class SubmissionResult:
    """What became of one submission: an id, or a problem. Never both.

    Of an array, `id` is the array's and `elements` are those of its jobs, by index. `backend` is where it runs (""
    from a daemon of a release that did not say it).
    """

    id: str = ""
    problem: Problem | None = None
    warnings: tuple[str, ...] = ()
    network: str = ""
    elements: tuple[str, ...] = ()
    backend: str = ""
