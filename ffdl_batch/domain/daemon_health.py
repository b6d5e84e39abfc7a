"""What the daemon says about itself, its database and its backends; see :mod:`ffdl_batch.domain.job.views`."""

from __future__ import annotations

from dataclasses import dataclass

from ffdl_batch.domain.job.views import SCHEMA


@dataclass(frozen=True, slots=True)
class BackendHealth:
    """The state of one backend as the daemon last saw it.

    If `unreachable_since` is None, the backend answers, and `detail` has the reason if it refuses all submissions (""
    if it accepts them). Otherwise `detail` has the result of the last request, and `asked_again_at` the time of the
    next one. `accounts_for` is the backend whose accounting this is ("" for a scheduler). `maybe_before`: the backend
    has not answered this daemon yet, so the outage may be older.
    """

    name: str
    unreachable_since: float | None = None
    detail: str = ""
    version: str = ""
    asked_again_at: float | None = None
    accounts_for: str = ""
    maybe_before: bool = False


@dataclass(frozen=True, slots=True)
class DatabaseOutage:
    """The daemon cannot write into its database, or not even read it; the states of jobs are those of before.

    `detail` names the database and the cause, and says what to do.
    """

    since: float
    detail: str


@dataclass(frozen=True, slots=True)
class Health:
    """The daemon itself. `live_jobs` None = the database cannot be asked."""

    version: str
    host: str
    pid: int
    uid: int
    started_at: float
    database: str
    live_jobs: int | None
    backends: tuple[BackendHealth, ...] = ()
    schema: int = SCHEMA
    database_outage: DatabaseOutage | None = None
