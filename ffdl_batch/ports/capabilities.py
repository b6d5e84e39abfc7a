"""What a backend may be able to do beyond :class:`ffdl_batch.ports.scheduler.Scheduler`: small optional Protocols,
asked for with isinstance."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from ffdl_batch.attempt.layout import AttemptDir
from ffdl_batch.domain.job.job import Token
from ffdl_batch.domain.job.spec import JobSpec
from ffdl_batch.domain.outcome.observation import NativeId
from ffdl_batch.domain.pending.explanation import Explanation, Foretold
from ffdl_batch.ports.scheduler import ArrayPlan, BackendFacts, Chunk, LaunchPlan


@runtime_checkable
class TrialSubmission(Protocol):
    """A backend that can check a plan with the scheduler without submitting (sbatch --test-only)."""

    def test_only(self, plan: LaunchPlan) -> str:
        """The scheduler's sentence (when and where it would start). Raises InvalidRequest when it would refuse."""
        ...


@runtime_checkable
class HasOwnKeys(Protocol):
    """A backend that has a use for keys of `batch:` that not every backend has a use for."""

    @property
    def own_keys(self) -> frozenset[str]:
        """Those keys, of `profile` and `kubernetes`."""
        ...


@runtime_checkable
class ChoosesCluster(Protocol):
    """A backend whose commands choose a cluster by variables of their environment."""

    def compare_cluster(self, shell: Mapping[str, str]) -> tuple[str, str]:
        """Why a shell with these variables ("" = not set) means another cluster, and what to do; "" twice if it does
        not."""
        ...


@runtime_checkable
class LimitsModels(Protocol):
    """A backend that brings models to its nodes by a way that is narrow."""

    @property
    def model_bytes(self) -> int:
        """The largest model archive that it takes."""
        ...


@runtime_checkable
class SubmitsArrays(Protocol):
    """A backend whose scheduler takes equal jobs as one native array."""

    def plan_array(self, chunk: Chunk, members: Sequence[LaunchPlan]) -> ArrayPlan | None:
        """What would be sent for `members`, whose `array_script` is the same text, by ascending index. None where one
        script cannot serve them. Pure."""
        ...

    def submit_array(self, plan: ArrayPlan) -> Mapping[Token, NativeId]:
        """Hand over the attempts of `plan`, whose files are written: all of them or none.

        Raises what `submit` raises; TooMany, ArraysRefused.
        """
        ...

    def find_many(self, attempts: Mapping[Token, AttemptDir]) -> Mapping[Token, frozenset[NativeId]]:
        """As `find` for each of `attempts`, with one round trip for all of them."""
        ...


@runtime_checkable
class StopsMany(Protocol):
    """A backend that can be asked for the end of many jobs at once."""

    def cancel_many(self, ids: Collection[NativeId]) -> None:
        """As `cancel` for each of `ids`."""
        ...

    def withdraw_many(self, ids: Collection[NativeId]) -> None:
        """As `withdraw` (:class:`Withdraws`) for each of `ids`."""
        ...

    def signal_many(self, ids: Collection[NativeId], signal: str) -> None:
        """As `signal` for each of `ids`."""
        ...


@runtime_checkable
class ForgetsJobs(Protocol):
    """A backend whose scheduler forgets ended jobs."""

    def is_forgotten(self, ids: Collection[NativeId]) -> frozenset[NativeId]:
        """Of `ids`, those that a *complete* answer of scheduler and accounting does not hold any more."""
        ...


@runtime_checkable
class LosesJobs(Protocol):
    """A backend whose scheduler may lose jobs that it was to start, and whose accounting shows that."""

    def was_lost(self, ids: Collection[NativeId]) -> frozenset[NativeId]:
        """Of `ids`, which are forgotten, those that nobody ended: the accounting has them waiting or running still."""
        ...


@runtime_checkable
class DropsTasks(Protocol):
    """A backend whose scheduler keeps no record of a task of a native array that was cancelled while it waited."""

    def dropped(self, ids: Collection[NativeId]) -> Mapping[NativeId, str]:
        """Of `ids`, the tasks that one *complete* listing does not hold any more although it holds something else of
        their arrays, with the token of the attempt that each of them is. One that never started was cancelled."""
        ...


@dataclass(frozen=True, slots=True)
class AccountingOutage:
    """An accounting that does not answer: for how many seconds, why, and in how many it is asked again."""

    for_s: float
    detail: str
    again_in_s: float


@runtime_checkable
class KeepsAccounts(Protocol):
    """A backend whose accounting may be away while its scheduler answers."""

    def accounting_outage(self) -> AccountingOutage | None:
        """None where the accounting answers, or nothing has been asked of it lately. Asks nobody."""
        ...


@runtime_checkable
class CredentialLife(Protocol):
    """A backend whose lost requests may still land for a while."""

    @property
    def credential_life_s(self) -> float:
        """Seconds after which a request that was sent can no longer be accepted."""
        ...


@runtime_checkable
class Withdraws(Protocol):
    """A backend that can take back a job that has not started, without harm to one that just did."""

    def withdraw(self, native_id: NativeId) -> None:
        """Request the end of the job if it still waits (scancel --state=PENDING); else nothing. Idempotent."""
        ...


@dataclass(frozen=True, slots=True)
class Storing:
    """How the storing of what an attempt left goes: `why` it waits, or failed ("" = it goes on). `ended`: it does not
    go on. `interrupted`: it failed by what says nothing of the store, or of what is to be stored: its place was taken,
    its node lost, or it never began."""

    why: str = ""
    ended: bool = False
    interrupted: bool = False


@runtime_checkable
class StoresApart(Protocol):
    """A backend that stores, after their end, what attempts left whose files are not on this machine (``pod`` in their
    launch file): those that were cut off from their stores, and those that were lost before they had stored."""

    def begin_storing(self, token: Token, attempt_dir: AttemptDir) -> None:
        """Have it stored, soon. Where that goes on already, nothing is begun. Raises what `submit` raises."""
        ...

    def how_storing_goes(self, token: Token) -> Storing:
        """What ended has failed, unless ``paid.json`` is in the attempt's directory; it may be begun anew. Raises
        SchedulerUnreachable."""
        ...


@runtime_checkable
class AvoidsNodes(Protocol):
    """A backend that can keep jobs off certain nodes: only there a node that failed a job is excluded for its next
    attempts. One that has a single node cannot."""

    def avoid(self, native_id: NativeId, nodes: Collection[str]) -> None:
        """Have the waiting job exclude `nodes` too. Raises InvalidRequest where the scheduler refuses it."""
        ...

    def exclude_only(self, native_id: NativeId, nodes: str) -> None:
        """Have the waiting job exclude just these, a list as the owner wrote it ("" = none). Raises InvalidRequest."""
        ...


@runtime_checkable
class KnowsNodes(Protocol):
    """A backend that knows the names of its nodes."""

    def nodes_of(self, facts: BackendFacts, partition: str) -> frozenset[str]:
        """Those of a partition ("" = the default one), by what the site was; empty where that is not known. Pure."""
        ...


@runtime_checkable
class ExplainsSettings(Protocol):
    """A backend that can say what its table of the configuration comes to, for `ffdl config`."""

    def explain(self) -> Mapping[str, object]:
        """Every key with its value, defaults included. Touches nothing."""
        ...


@dataclass(frozen=True, slots=True)
class WaitingRequest:
    """What is asked about: a job in the backend's queue, or (`native_id` None) a request that is not submitted."""

    spec: JobSpec
    facts: BackendFacts
    native_id: NativeId | None = None


@runtime_checkable
class ExplainsWaiting(Protocol):
    """A backend that knows why jobs wait: in values, of which the core makes sentences."""

    def explain_waiting(self, requests: Sequence[WaitingRequest]) -> Sequence[Explanation | None]:
        """What is known of each of `requests`, in their order; None for a job that is not in the queue. So many round
        trips for any number of requests. Raises SchedulerUnreachable."""
        ...


@runtime_checkable
class ForetellsStart(Protocol):
    """A backend that can say when a request would start, without taking it."""

    def foretell(self, plan: LaunchPlan) -> Foretold | None:
        """Return the answer to a trial; None if the backend cannot estimate a start.

        Raises what :class:`TrialSubmission` raises.
        """
        ...
