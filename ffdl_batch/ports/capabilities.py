"""What a backend may be able to do beyond :class:`ffdl_batch.ports.scheduler.Scheduler`: small optional Protocols,
asked for with isinstance."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from ffdl_batch.attempt.layout import AttemptDir
from ffdl_batch.domain.backend_facts import AccountedRun, AccountingOutage, BackendFacts, Storing, WaitingRequest
from ffdl_batch.domain.data.mounts import Mounting
from ffdl_batch.domain.examination import Item
from ffdl_batch.domain.job.job import Token
from ffdl_batch.domain.job.past_job import PastJobs, Period, Place
from ffdl_batch.domain.outcome.observation import NativeId
from ffdl_batch.domain.pending.explanation import Explanation, Foretold
from ffdl_batch.domain.tenant import Tenant, TenantStep
from ffdl_batch.runtimes.launch_request import ArrayPlan, AttemptNode, Chunk, LaunchPlan, NodeProgram


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


@runtime_checkable
class Examines(Protocol):
    """A backend that can look for what would make its jobs fail."""

    def examine(self, nodes: str, mounting: Mounting = Mounting.AUTO) -> Sequence[Item]:
        """Look at the scheduler and at this machine; and at `nodes`, by a small job on each: a list as the scheduler
        writes them, "all", "" for none. `mounting` is the site's word about mounted stores. Raises InvalidRequest for
        what is no list, and where there is no such node; SchedulerMissing where this machine has no such scheduler."""
        ...


@runtime_checkable
class KeepsTenants(Protocol):
    """A backend whose cluster has a room for each tenant."""

    def tenant_objects(self, tenant: Tenant) -> Sequence[Mapping[str, Any]]:
        """What makes the tenant, in the order in which it is to be created. Asks nobody. Raises InvalidRequest."""
        ...

    def permissions(self, tenant: Tenant) -> Sequence[Mapping[str, Any]]:
        """Of these, what gives a daemon all that it needs, and no more. Raises InvalidRequest."""
        ...

    def create_tenant(self, tenant: Tenant, *, adopt: bool, update: bool, remove: bool) -> Sequence[TenantStep]:
        """Create missing objects. `adopt`: also in a namespace that is not ours. `update`: change objects that differ;
        otherwise they are not changed. `remove`: treat values that `tenant` does not name as differences, too.

        Raises InvalidRequest, SchedulerUnreachable, NotPermitted, NotOurs.
        """
        ...

    def advise(self, tenant: Tenant) -> Mapping[str, str]:
        """Settings of the backend with which jobs go to this tenant."""
        ...


@runtime_checkable
class ReachesNodes(Protocol):
    """A backend on whose nodes a job's owner can start a program beside the job's controllers, with the program's
    standard streams. The program needs none of the job's resources, ends with the job, and holds up nothing of it."""

    def beside(self, place: AttemptNode, argv: Sequence[str]) -> NodeProgram:
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


@runtime_checkable
class KnowsJobs(Protocol):
    """A scheduler with an accounting."""

    def past_jobs(self, period: Period) -> PastJobs:
        """Jobs that have run, and rows that cannot be read: one odd row hides no other. Raises HistoryUnknown."""
        ...


@runtime_checkable
class KnowsPlaces(Protocol):
    """Somewhere that jobs could run."""

    def places(self) -> Sequence[Place]:
        """Partitions or profiles, the default one first. Raises HistoryUnknown."""
        ...
