"""An optional capability of a backend: programs of a job's owner on the nodes of the running job."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from ffdl_batch.attempt.layout import AttemptDir
from ffdl_batch.domain.outcome.observation import NativeId


@dataclass(frozen=True, slots=True)
class Place:
    """A node of a running attempt. `allocation` is what its controller was told the allocation is called ("" = it does
    not say), `node_rank` the node's number in it."""

    native_id: NativeId
    attempt_dir: AttemptDir
    allocation: str
    node_rank: int


@dataclass(frozen=True, slots=True)
class NodeProgram:
    """How the owner starts a program there; fields as in
    :class:`ffdl_batch.domain.launch.attach_protocol.AttachPlan`."""

    argv: tuple[str, ...]
    host: str = ""
    unset: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()


@runtime_checkable
class ReachesNodes(Protocol):
    """A backend on whose nodes a job's owner can start a program beside the job's controllers, with the program's
    standard streams. The program needs none of the job's resources, ends with the job, and holds up nothing of it."""

    def beside(self, place: Place, argv: Sequence[str]) -> NodeProgram:
        """How `argv` is started there. Asks no scheduler. Raises InvalidRequest where it cannot be, and
        SchedulerMissing where what it is reached with is not there."""
        ...


@runtime_checkable
class ReadsClaims(Protocol):
    """A backend that can read the files of its jobs in volumes that only its nodes see."""

    def read_claim(self, token: str, claim: str, below: str) -> Iterator[bytes]:
        """Return the content of the directory `below` of a claim as a tar; `claim` "" = the one that has the jobs'
        directories. `token` is the attempt's.

        Raises FileNotFoundError, InvalidRequest if that is not permitted, and SchedulerUnreachable (NotNow if it takes
        longer to begin). While it is read, raises OSError if it breaks off.
        """
        ...
