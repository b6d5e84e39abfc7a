"""Optional Protocols of a backend, beside :class:`ffdl_batch.ports.scheduler.Scheduler`. Callers ask for them with
isinstance. Each has one purpose, so that a backend implements only what its scheduler can do."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from ffdl_batch.attempt.layout import AttemptDir
from ffdl_batch.domain.backend_facts import Absent, AccountedRun, AccountedUse, AccountingOutage, BackendFacts, Storing
from ffdl_batch.domain.data.mounts import Mounting
from ffdl_batch.domain.examination import Item
from ffdl_batch.domain.job.job import Token
from ffdl_batch.domain.outcome.observation import NativeId
from ffdl_batch.domain.outcome.shared_listing import SharedView
from ffdl_batch.domain.pending.explanation import Foretold
from ffdl_batch.domain.tenant import Tenant, TenantStep
from ffdl_batch.runtimes.launch_request import ArrayPlan, Chunk, LaunchPlan


@runtime_checkable
class TrialSubmission(Protocol):
    """A backend that can check a plan with the scheduler without submitting (sbatch --test-only)."""

    def test_only(self, plan: LaunchPlan) -> str:
        """Return the scheduler's sentence about when and where the job would start. Raises InvalidRequest if the
        scheduler would refuse it."""
        ...


@runtime_checkable
class ChoosesCluster(Protocol):
    """A backend whose commands choose a cluster by variables of their environment."""

    def compare_cluster(self, shell: Mapping[str, str]) -> tuple[str, str]:
        """Return why a shell with these variables ("" = not set) uses another cluster, and how to correct it; two empty
        texts if it uses the same one."""
        ...


@runtime_checkable
class SubmitsArrays(Protocol):
    """A backend whose scheduler takes equal jobs as one native array."""

    def plan_array(self, chunk: Chunk, members: Sequence[LaunchPlan]) -> ArrayPlan | None:
        """Return the plan for `members`, ordered by index, whose `array_script` is the same text; None if one script
        cannot serve all of them. Pure."""
        ...

    def submit_array(self, plan: ArrayPlan) -> Mapping[Token, NativeId]:
        """Submit all attempts of `plan`, whose files are written, or none of them.

        Raises what `submit` raises; TooMany, ArraysRefused.
        """
        ...

    def find_many(self, attempts: Mapping[Token, AttemptDir]) -> Mapping[Token, frozenset[NativeId]]:
        """Return what `find` returns for each of `attempts`, with one round trip for all of them."""
        ...


@runtime_checkable
class StopsMany(Protocol):
    """A backend that ends or signals many jobs with one request."""

    def cancel_many(self, ids: Collection[NativeId]) -> None:
        """Do for each of `ids` what `cancel` does."""
        ...

    def withdraw_many(self, ids: Collection[NativeId]) -> None:
        """Do for each of `ids` what `withdraw` does."""
        ...

    def signal_many(self, ids: Collection[NativeId], signal: str) -> None:
        """Do for each of `ids` what `signal` does."""
        ...


@runtime_checkable
class ShrinksJobs(Protocol):
    """A backend that can shrink a running job in place."""

    def shrink(self, native_id: NativeId, nodes: Sequence[str]) -> None:
        """Release all nodes of the job except `nodes`, on which its first learners run, in their order. The caller has
        seen that the job runs, and that the controllers on the other nodes have ended. Idempotent. Raises
        InvalidRequest if the scheduler refuses it, and SchedulerUnreachable."""
        ...


@runtime_checkable
class ForgetsJobs(Protocol):
    """A backend whose scheduler deletes its records of ended jobs."""

    def find_absent(self, ids: Collection[NativeId]) -> Absent:
        """Return what is known of those of `ids` that are missing from a *complete* answer of scheduler and accounting.
        Raises SchedulerUnreachable if there is no complete answer."""
        ...


@runtime_checkable
class SharesListing(Protocol):
    """A backend whose scheduler can list the jobs of all users at once. A site's hub calls it for all daemons."""

    def list_all_users(self) -> Mapping[int, Sequence[str]]:
        """Return the rows of all users' live jobs by uid. One round trip. Raises SchedulerUnreachable."""
        ...

    def explain_blindness(self) -> str:
        """Return why this account cannot see the jobs of other users, and the cure; "" if it sees them. Raises
        SchedulerUnreachable."""
        ...

    @property
    def has_shared_listing(self) -> bool:
        """Whether this backend gets the listing of a hub."""
        ...

    def observe_shared(self, ids: Collection[NativeId]) -> SharedView | None:
        """Return what the listing of the hub shows of `ids`; None if there is no listing now. Does not ask the
        scheduler. The hub is not trusted: a caller must not act on this alone."""
        ...


@runtime_checkable
class HasAccounting(Protocol):
    """A backend whose scheduler records, in an accounting of its own, what each job held and for how long."""

    def accounting_outage(self) -> AccountingOutage | None:
        """Return the present outage; None if the accounting answers, or was not asked lately. Sends no request."""
        ...

    def accounted_runs(self, attempts: Mapping[NativeId, Token]) -> Mapping[NativeId, Sequence[AccountedRun]] | None:
        """Return all runs of these attempts, those of a requeued attempt in order. Attempts that the accounting does
        not have are left out, and so are ids that belong to another job now. An attempt with a run that cannot be read
        has only that one. None if this site has no accounting.

        Raises NotNow (AccountingUnreachable) if the accounting does not answer.
        """
        ...

    def accounted_uses(self, since: float, until: float) -> Sequence[AccountedUse] | None:
        """Return what each user held under each account within a period, in seconds since the epoch, also by jobs that
        still run. None if this site has no accounting. Raises as :meth:`accounted_runs`."""
        ...


@runtime_checkable
class StoresApart(Protocol):
    """A backend that stores results after the end of an attempt whose files are not on this machine (``pod`` in its
    launch file): its pods could not reach the stores, or were lost before they had stored."""

    def begin_storing(self, token: Token, attempt_dir: AttemptDir) -> None:
        """Start the upload; do nothing if it runs already. Raises what `submit` raises."""
        ...

    def how_storing_goes(self, token: Token) -> Storing:
        """Return the progress. An upload that has ended without ``uploaded.json`` in the attempt's directory has failed
        and may be started again. Raises SchedulerUnreachable."""
        ...


@runtime_checkable
class AvoidsNodes(Protocol):
    """A backend that can keep jobs off certain nodes. Only with such a backend is a node that failed a job excluded for
    the job's next attempts; a backend with a single node cannot do it."""

    def nodes_of(self, facts: BackendFacts, partition: str) -> frozenset[str]:
        """Return the nodes of a partition ("" = the default one) according to `facts`; empty if they are not known.
        Pure."""
        ...

    def avoid(self, native_id: NativeId, nodes: Collection[str]) -> None:
        """Exclude `nodes` for the waiting job, in addition to those already excluded. Raises InvalidRequest if the
        scheduler refuses it."""
        ...

    def exclude_only(self, native_id: NativeId, nodes: str) -> None:
        """Exclude exactly `nodes` for the waiting job: a list as its owner wrote it ("" = none). Raises
        InvalidRequest."""
        ...


@runtime_checkable
class ForetellsStart(Protocol):
    """A backend that can estimate when a request would start, without submitting it."""

    def foretell(self, plan: LaunchPlan) -> Foretold | None:
        """Return the answer to a trial; None if the backend cannot estimate a start.

        Raises what :class:`TrialSubmission` raises.
        """
        ...


@runtime_checkable
class Examines(Protocol):
    """A backend that can look for faults that would make its jobs fail."""

    def examine(self, nodes: str, mounting: Mounting = Mounting.AUTO) -> Sequence[Item]:
        """Check the scheduler, this machine, and `nodes`, each by a small job: a list as the scheduler writes it,
        "all", or "" for none. `mounting` is the site's setting for mounted stores. Raises InvalidRequest if `nodes` is
        not a list or names an unknown node, and SchedulerMissing if this machine has no such scheduler."""
        ...


@runtime_checkable
class KeepsTenants(Protocol):
    """A backend whose cluster has a namespace for each tenant."""

    def tenant_objects(self, tenant: Tenant) -> Sequence[Mapping[str, Any]]:
        """Return the objects of the tenant, in the order of their creation. Sends no request. Raises InvalidRequest."""
        ...

    def permissions(self, tenant: Tenant) -> Sequence[Mapping[str, Any]]:
        """Return those of these objects that give a daemon the permissions it needs, and no others. Raises
        InvalidRequest."""
        ...

    def create_tenant(self, tenant: Tenant, *, adopt: bool, update: bool, remove: bool) -> Sequence[TenantStep]:
        """Create missing objects. `adopt`: also in a namespace that ffdl did not create. `update`: change objects that
        differ; otherwise they are not changed. `remove`: treat values that `tenant` does not name as differences, too.

        Raises InvalidRequest, SchedulerUnreachable, NotPermitted, NotOurs.
        """
        ...

    def advise(self, tenant: Tenant) -> Mapping[str, str]:
        """Return the settings of the backend for jobs of this tenant."""
        ...

    def daemon_token(self, lifetime_s: int) -> tuple[str, float]:
        """Request a token of the service account of the tenant's daemon, in the namespace of the settings. Return it
        and when it expires, in seconds since the epoch. Raises SchedulerUnreachable, NotPermitted, InvalidRequest."""
        ...


@runtime_checkable
class ReadsClaims(Protocol):
    """A backend that can read the files of its jobs in volumes that only its nodes mount."""

    def read_claim(self, token: str, claim: str, below: str) -> Iterator[bytes]:
        """Return the content of the directory `below` of a claim as a tar; `claim` "" = the one that has the jobs'
        directories. `token` is the attempt's.

        Raises FileNotFoundError, InvalidRequest if that is not permitted, and SchedulerUnreachable (NotNow if it takes
        longer to begin). While it is read, raises OSError if it breaks off.
        """
        ...
