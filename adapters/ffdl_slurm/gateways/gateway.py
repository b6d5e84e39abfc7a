"""The port between the adapter and Slurm. Both gateways implement it, and the contract suite runs over both."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol, TypeVar

from ffdl_batch.attempt.layout import AttemptDir
from ffdl_batch.domain.backend_facts import AccountingOutage, NodeShape, PartitionShape
from ffdl_batch.domain.scheduler_errors import NotNow
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_slurm.observing.accounted_runs import RunRecord, UseRecord
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
    """A list of jobs has rows that cannot be read. `records` are the others: they show which jobs exist, but not that a
    job does not exist."""

    def __init__(self, message: str, records: Sequence[JobRecord]) -> None:
        super().__init__(message)
        self.records = tuple(records)


class SlurmGateway(Protocol):
    """Requests to Slurm as this user. All methods raise SchedulerUnreachable if Slurm does not answer in full. Lists of
    jobs raise RowsUnread."""

    def submit(self, attempt: AttemptDir, umask: int) -> str:
        """Submit the script of the attempt, or of an array's chunk, and return the job id. The reply is also stored in
        the ``submit`` directory. Slurm creates the job's output file with `umask` and starts the script with it.

        Raises InvalidRequest (refused), SchedulerUnreachable (surely not accepted), SubmissionUncertain.
        """
        ...

    def test_only(self, attempt: AttemptDir, script: str) -> str:
        """Return slurmctld's sentence on a script, without submitting it. Raises InvalidRequest if it refuses it."""
        ...

    def list_own_jobs(self) -> Sequence[JobRecord]:
        """Return the user's jobs that slurmctld knows, with those that have ended. One round trip."""
        ...

    def list_named(self, *names: str) -> Sequence[JobRecord]:
        """Return those with these names."""
        ...

    def list_all_users(self) -> Mapping[int, Sequence[str]]:
        """Return the rows of all users' live jobs by uid, for :func:`ffdl_slurm.observing.shared_rows.read_shared`. One
        round trip."""
        ...

    def account_for(self, ids: Collection[str]) -> Sequence[JobRecord] | None:
        """Return the accounting's records of these jobs; None if this cluster keeps no accounts. Raises
        AccountingUnreachable (a NotNow), which says nothing about slurmctld."""
        ...

    def account_for_names(self, names: Sequence[str], since: str) -> Sequence[JobRecord] | None:
        """Return those of all jobs with these names since a day."""
        ...

    def account_for_runs(self, ids: Collection[str]) -> Sequence[RunRecord] | None:
        """Return those of every start of these jobs."""
        ...

    def account_for_all_users(self, since: float, until: float) -> Sequence[UseRecord] | None:
        """Return what all users held within a period, in seconds since the epoch."""
        ...

    def accounting_outage(self) -> AccountingOutage | None:
        """See :class:`ffdl_batch.ports.capabilities.HasAccounting`."""
        ...

    def signal(self, signal: str, *jobs: str) -> None:
        """Send a signal to the jobs' steps on every node, but not to their batch scripts. A job that waits, has ended
        or is unknown is no error."""
        ...

    def cancel(self, *jobs: str) -> None:
        """End the jobs, with the same exceptions. Tasks of an array may be one word, such as ``12_[0-3]``."""
        ...

    def withdraw(self, *jobs: str) -> None:
        """End those of the jobs that wait."""
        ...

    def exclude(self, job: str, nodes: Collection[str]) -> None:
        """Add nodes to those that the waiting job excludes. Raises InvalidRequest."""
        ...

    def exclude_only(self, job: str, nodes: str) -> None:
        """Replace the list of nodes that the waiting job excludes ("" = none). Raises InvalidRequest."""
        ...

    def shrink(self, job: str, nodes: Sequence[str]) -> None:
        """Release all nodes of the running job except these. Raises InvalidRequest."""
        ...

    def describe_site(self) -> SiteShape:
        """Return nodes, partitions and version. Raises InvalidRequest if Slurm is not installed."""
        ...

    def query(self, argv: list[str], parse: Callable[[str], T]) -> T:
        """Run a query and return what `parse` reads in its output. One round trip."""
        ...

    def close(self) -> None:
        """End the processes that were started for requests. The next call starts them again."""
        ...
