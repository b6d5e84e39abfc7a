"""An optional capability of a backend: the scheduler's own accounting of what jobs held."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from ffdl_batch.domain.job.job import Token
from ffdl_batch.domain.outcome.observation import NativeId


@dataclass(frozen=True, slots=True)
class AccountedRun:
    """One start of an attempt by the accounting: how long it took in seconds, and the GPUs and CPUs that were allocated
    (None = the accounting does not count them). `unread` ("" = it can be read) is why what the accounting has of the
    attempt cannot be read: nothing else is known then."""

    elapsed_s: float
    gpus: float | None
    cpus: float | None
    is_over: bool
    unread: str = ""


@runtime_checkable
class AccountsForRuns(Protocol):
    """A backend whose scheduler keeps accounts of the time for which each job held what."""

    def accounted_runs(self, attempts: Mapping[NativeId, Token]) -> Mapping[NativeId, Sequence[AccountedRun]] | None:
        """All starts of these attempts, those of a requeued one in order; one that the accounting does not have is left
        out, and so is what has the id but is another's. One of which a start cannot be read has that alone. None where
        this site keeps no accounts.

        Raises NotNow (AccountingUnreachable) where the accounting does not answer.
        """
        ...
