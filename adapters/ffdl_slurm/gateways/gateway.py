"""The adapter's own, smaller port: what it asks of Slurm, whoever carries it there.

Both gateways say the same of one cluster; the contract suite runs over both.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from ffdl_batch.attempt.layout import AttemptDir
from ffdl_batch.domain.backend_facts import AccountingOutage, NodeShape, PartitionShape
from ffdl_batch.domain.scheduler_errors import NotNow
from ffdl_slurm.observing.accounted_runs import RunRecord
from ffdl_slurm.observing.parsers import JobRecord, SiteConfig

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SiteShape:
    """Describe the cluster. `lacks` has a sentence for each part that could not be read, with the reason and the value
    that is assumed."""

    nodes: tuple[NodeShape, ...]
    partitions: tuple[PartitionShape, ...]
    version: str
    config: SiteConfig
    lacks: tuple[str, ...] = ()


class RowsUnread(NotNow):
    """A list of jobs is whole but for rows that cannot be read; `records` are the others. Who asks what is there may
    use them; that a job is not there does not follow from them."""

    def __init__(self, message: str, records: Sequence[JobRecord]) -> None:
        super().__init__(message)
        self.records = tuple(records)


class SlurmGateway(Protocol):
    """Slurm, as this user. All methods raise SchedulerUnreachable where Slurm does not answer in full; lists of jobs
    RowsUnread."""

    def submit(self, attempt: AttemptDir, umask: int) -> str:
        """Submit the script of the attempt, or of an array's chunk; the job id. The reply is also left in the
        ``submit`` directory. Slurm creates the job's output file with `umask` and starts the script with it.

        Raises InvalidRequest (refused), SchedulerUnreachable (surely not accepted), SubmissionUncertain.
        """
        ...

    def test_only(self, attempt: AttemptDir, script: str) -> str:
        """The controller's sentence on a script that is not submitted. Raises InvalidRequest when it refuses."""
        ...

    def list_own_jobs(self) -> Sequence[JobRecord]:
        """All own jobs that the controller remembers, ended ones included. One round trip."""
        ...

    def list_named(self, *names: str) -> Sequence[JobRecord]:
        """The same, of these names."""
        ...

    def account_for(self, ids: Collection[str]) -> Sequence[JobRecord] | None:
        """The accounting's word on these jobs; None where this cluster keeps no accounts. Raises NotNow where it does
        not answer (AccountingUnreachable): that says nothing about slurmctld."""
        ...

    def account_for_names(self, names: Sequence[str], since: str) -> Sequence[JobRecord] | None:
        """The accounting's word on all jobs of these names since a day; likewise."""
        ...

    def account_for_runs(self, ids: Collection[str]) -> Sequence[RunRecord] | None:
        """The accounting's word on every start of these jobs; likewise."""
        ...

    def accounting_outage(self) -> AccountingOutage | None:
        """See :class:`ffdl_batch.ports.capabilities.KeepsAccounts`."""
        ...

    def signal(self, signal: str, *jobs: str) -> None:
        """Signal the jobs' steps on every node, KILL too; the batch scripts get nothing. A job that waits, has ended
        or is unknown is no error."""
        ...

    def cancel(self, *jobs: str) -> None:
        """End the jobs; likewise. Tasks of an array may be one word, as ``12_[0-3]``."""
        ...

    def withdraw(self, *jobs: str) -> None:
        """End those of the jobs that wait; likewise."""
        ...

    def exclude(self, job: str, nodes: Collection[str]) -> None:
        """Have the waiting job exclude these nodes and those that it excludes already. Raises InvalidRequest."""
        ...

    def exclude_only(self, job: str, nodes: str) -> None:
        """Have the waiting job exclude just this list of nodes ("" = none). Raises InvalidRequest."""
        ...

    def describe_site(self) -> SiteShape:
        """Nodes, partitions and version. Raises InvalidRequest where Slurm is not installed."""
        ...

    def query(self, argv: list[str], parse: Callable[[str], T]) -> T:
        """What `parse` reads in the answer of a command that only asks. One round trip."""
        ...

    def close(self) -> None:
        """Let go of processes that were started for asking; the next call starts them again."""
        ...
