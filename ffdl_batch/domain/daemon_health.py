"""The daemon's report on itself, its database and its backends; see :mod:`ffdl_batch.domain.job.views`."""

from __future__ import annotations

from ffdl_batch.domain.job.views import SCHEMA
from ffdl_batch.host.fast_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class BackendHealth:
    """The state of one backend as the daemon last saw it."""

    name: str
    unreachable_since: float | None = None
    """None = the backend answers."""
    detail: str = ""
    """Result of the last request to a backend that does not answer; otherwise why it refuses all submissions ("" = it
    does not)."""
    version: str = ""
    asked_again_at: float | None = None
    """Time of the next request to a backend that does not answer."""
    accounts_for: str = ""
    """The backend whose accounting this is; "" = this is a scheduler."""
    maybe_before: bool = False
    """Whether the outage may be older, because the backend has not answered this daemon yet."""


@dataclass(frozen=True, slots=True)
class DatabaseOutage:
    """The daemon cannot write into its database, or cannot even read it; states of jobs may be outdated."""

    since: float
    detail: str
    """Names the database and the cause, and says what to do."""


@dataclass(frozen=True, slots=True)
class Health:
    """The daemon itself."""

    version: str
    host: str
    pid: int
    uid: int
    started_at: float
    database: str
    live_jobs: int | None
    """None = the database does not answer."""
    backends: tuple[BackendHealth, ...] = ()
    schema: int = SCHEMA
    database_outage: DatabaseOutage | None = None
    settings_problem: str = ""
    """Why the daemon does not use changed configuration files; "" = it does."""
