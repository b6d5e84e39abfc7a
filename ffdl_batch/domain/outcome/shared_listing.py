"""Jobs as the hub of a site lists them for the users' daemons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ffdl_batch.domain.outcome.observation import NativeId, Observation
from ffdl_batch.host.fast_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class SharedRows:
    """The rows of one user."""

    rows: Sequence[str]
    """One row for each live job, in a form that only the backend reads. The same object as before if they have not
    changed."""
    age_s: float
    """How long ago the scheduler was asked."""


@dataclass(frozen=True, slots=True)
class SharedView:
    """What the listing shows of some jobs."""

    shown: Mapping[NativeId, Observation]
    """Those that are listed; their names are empty."""
    age_s: float
    """How long ago the scheduler was asked."""
