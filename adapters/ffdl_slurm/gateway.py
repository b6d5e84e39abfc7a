"""The adapter's own, smaller port: what it asks of Slurm, whoever carries it there.

Both gateways say the same of one cluster; the contract suite runs over both.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from ffdl_batch.domain.jobdir import AttemptDir
from ffdl_batch.ports.scheduler import NodeShape, PartitionShape
from ffdl_slurm.parsers import JobRecord


@dataclass(frozen=True, slots=True)
class SiteShape:
    """What the cluster is made of."""

    nodes: tuple[NodeShape, ...]
    partitions: tuple[PartitionShape, ...]
    version: str


class SlurmGateway(Protocol):
    """Slurm, as this user. All methods raise SchedulerUnreachable where Slurm does not answer in full."""

    def submit(self, attempt: AttemptDir) -> str:
        """Submit the attempt's script; the job id. The reply is also left in the attempt's ``submit`` directory.

        Raises InvalidRequest (refused), SchedulerUnreachable (surely not accepted), SubmissionUncertain.
        """
        ...

    def test_only(self, attempt: AttemptDir, script: str) -> str:
        """The controller's sentence on a script that is not submitted. Raises InvalidRequest when it refuses."""
        ...

    def list_own_jobs(self) -> Sequence[JobRecord]:
        """All own jobs that the controller remembers, ended ones included. One round trip."""
        ...

    def list_named(self, name: str) -> Sequence[JobRecord]:
        """The same, of one name."""
        ...

    def account_for(self, ids: Collection[str]) -> Sequence[JobRecord] | None:
        """The accounting's word on these jobs; None where this cluster keeps no accounts."""
        ...

    def account_for_name(self, name: str, since: str) -> Sequence[JobRecord] | None:
        """The accounting's word on all jobs of one name since a day; None where this cluster keeps no accounts."""
        ...

    def signal(self, job: str, signal: str) -> None:
        """Signal the job's steps on every node, KILL too; the batch script gets nothing. A job that waits, has ended
        or is unknown is no error."""
        ...

    def cancel(self, job: str) -> None:
        """End the job; likewise."""
        ...

    def withdraw(self, job: str) -> None:
        """End the job if it waits; likewise."""
        ...

    def exclude(self, job: str, nodes: Collection[str]) -> None:
        """Have the waiting job exclude these nodes and those that it excludes already. Raises InvalidRequest."""
        ...

    def describe_site(self) -> SiteShape:
        """Nodes, partitions and version. Raises InvalidRequest where Slurm is not installed."""
        ...

    def close(self) -> None:
        """Let go of processes that were started for asking; the next call starts them again."""
        ...
