"""One job or array to submit, and the result; see :mod:`ffdl_batch.domain.job.views`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from enum import StrEnum

from ffdl_batch.domain.access import Role, Scope
from ffdl_batch.domain.job.views import Problem
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.host.time_zone import UtcOffsets


@dataclass(frozen=True, slots=True)
class Caller:
    """The user who sends a request: the peer of the socket, or a user that the site's hub has identified. Never a field
    of the request's body."""

    uid: int
    is_admin: bool = False
    """Whether jobs of other users can be selected."""
    role: Role = Role.OWNER
    scopes: frozenset[Scope] = frozenset()
    """Of the token; so are the two fields below."""
    token_id: str = ""
    expires_at: float | None = None
    request_id: str = ""
    """The hub's id of the request."""
    name: str = ""
    """The name of the token. For the daemon of a tenant without an account, it is the member's, and the hub has
    verified it."""

    @property
    def default_owner(self) -> int | None:
        """Whose jobs are selected if the request names none; None = those of all users of the daemon."""
        return None if self.role in (Role.OPERATOR, Role.AUDITOR) else self.uid

    def __str__(self) -> str:
        who = "user" if self.role in (Role.OWNER, Role.TOKEN) else self.role.value
        token = f" by token {self.token_id}" if self.token_id else ""
        request = f" (request {self.request_id})" if self.request_id else ""
        return f"{who} {self.uid}{token}{request}"


class Expected(StrEnum):
    """What a submission must be, for callers that can use nothing else."""

    ANY = "any"
    JOB = "job"
    ARRAY = "array"


@dataclass(frozen=True, slots=True)
class Submission:
    """One job to submit."""

    manifest: str
    """Its text."""
    manifest_name: str
    """For messages. If it is empty, the user wrote no text of the manifest, so messages have no lines."""
    base_dir: str
    """Relative paths of the manifest start here."""
    archive: str
    """SHA-256 (hex) of a model archive that was uploaded before."""
    key: str
    """Makes a repeated request harmless."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Options of the command line: long sbatch-like names without dashes → texts ("" for flags)."""
    environment_options: Mapping[str, str] = field(default_factory=dict)
    """Likewise from SBATCH_* and FFDL_*; the manifest wins over them."""
    environ: Mapping[str, str] = field(default_factory=dict)
    """Variables that --export needs."""
    backend: str = ""
    strict: bool = False
    expected: Expected = Expected.ANY
    """A submission that is something else is refused."""
    references: Mapping[str, str] = field(default_factory=dict)
    """Values of the manifest's references on the submitting host, by ``env:NAME`` and ``file:PATH``."""
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
    """The result of one submission: an id or a problem, never both."""

    id: str = ""
    """Of an array its own id."""
    problem: Problem | None = None
    warnings: tuple[str, ...] = ()
    network: str = ""
    elements: tuple[str, ...] = ()
    """Ids of the jobs of an array, by index."""
    backend: str = ""
    """Where it runs; "" from a daemon of an older release."""
