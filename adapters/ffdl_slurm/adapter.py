"""The Slurm adapter: the scheduler port on top of a gateway.

| method | Slurm |
|---|---|
| probe | sinfo (partitions, nodes, GRES), version, MaxArraySize |
| plan | pure: :mod:`ffdl_slurm.planning.launch_plan` |
| submit | sbatch --parsable, reply kept in the attempt's directory |
| submit_array | the same with --array, in the chunk's directory |
| find, find_many | squeue --name, sacct --name, the claims; an sbatch under way is awaited |
| observe | one squeue; one sacct for ids that squeue does not hold |
| observe_shared | the rows that the hub of a site has got from one squeue for all users |
| signal, cancel, withdraw | scancel |
| avoid | squeue, scontrol update |
| shrink | squeue, scontrol update |
| beside | srun --overlap, by the owner's own process |
| explain_waiting | squeue, scontrol show node, show partition: :mod:`ffdl_slurm.pending.explanation` |
| examine | scontrol show config, sinfo, srun: :mod:`ffdl_slurm.doctor.cluster_checks` |
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import lru_cache
from pathlib import Path

from ffdl_batch.attempt.layout import AttemptDir, Root
from ffdl_batch.attempt.reader import find_object, find_text
from ffdl_batch.domain.backend_facts import (
    Absent,
    AccountedRun,
    AccountedUse,
    AccountingOutage,
    BackendFacts,
    BackendTraits,
)
from ffdl_batch.domain.data.mounts import Mounting
from ffdl_batch.domain.examination import Item
from ffdl_batch.domain.job.array import parse_chunk_name, read_marks
from ffdl_batch.domain.job.job import Token
from ffdl_batch.domain.job.spec import NetworkLevel
from ffdl_batch.domain.outcome.observation import NativeId, Observation, Phase
from ffdl_batch.domain.outcome.shared_listing import SharedView
from ffdl_batch.domain.scheduler_errors import AccountingUnreachable, NotNow
from ffdl_batch.plugins import AdapterContext, Settings
from ffdl_batch.runtimes.launch_request import ArrayPlan, AttemptNode, Chunk, LaunchPlan, LaunchRequest, NodeProgram
from ffdl_slurm.commands import beside_argv, sinfo_argv
from ffdl_slurm.doctor.cluster_checks import Doctor
from ffdl_slurm.doctor.hub_account import explain_blindness
from ffdl_slurm.gateways.cli_gateway import CommandLineGateway
from ffdl_slurm.gateways.command_runner import KEPT, OPTION_VARIABLES, compare_cluster, run_command
from ffdl_slurm.gateways.gateway import RowsUnread, SiteShape, SlurmGateway
from ffdl_slurm.gateways.pyslurm_gateway import PyslurmGateway
from ffdl_slurm.gateways.submission_files import recover_reply
from ffdl_slurm.hostlist import expand
from ffdl_slurm.native_array import job_arguments, plan_array
from ffdl_slurm.observing.accounted_runs import has_shares, runs_of, uncounted, uses_of
from ffdl_slurm.observing.parsers import JobRecord
from ffdl_slurm.observing.record_lookup import Listing, TaskTables, dropped_tasks, pick
from ffdl_slurm.observing.shared_rows import read_shared
from ffdl_slurm.observing.sinfo import parse_sinfo
from ffdl_slurm.pending.explanation import Outlooks
from ffdl_slurm.planning.controller_delivery import deliver_controller
from ffdl_slurm.planning.eligible_nodes import names_in
from ffdl_slurm.planning.gres import shares_per_gpu
from ffdl_slurm.planning.launch_plan import BACKEND, make_plan
from ffdl_slurm.settings import GatewayKind, SlurmSettings, doubt_times, read_settings

log = logging.getLogger(__name__)
_DAY_S = 86400


def create(settings: Settings, context: AdapterContext) -> SlurmScheduler:
    """Create the adapter for the entry point, without asking Slurm. Raises InvalidRequest for unusable settings."""
    checked = read_settings(settings)
    host = checked.submit_host or socket.gethostname()
    gateway: SlurmGateway
    if checked.gateway is GatewayKind.PYSLURM:
        gateway = PyslurmGateway(checked.command_timeout_s, host)
    else:
        gateway = CommandLineGateway(checked.command_timeout_s, host)
    return SlurmScheduler(checked, context, gateway)


class SlurmScheduler(Outlooks):
    """See :class:`ffdl_batch.ports.scheduler.Scheduler`; also TrialSubmission, ForetellsStart, ForgetsJobs, StopsMany,
    SubmitsArrays, AvoidsNodes, ShrinksJobs, HasAccounting, SharesListing, Examines, ChoosesCluster."""

    def __init__(self, settings: SlurmSettings, context: AdapterContext, gateway: SlurmGateway) -> None:
        """`gateway` runs all requests to Slurm."""
        super().__init__(gateway, settings)
        self._settings = settings
        self._context = context
        self._gateway = gateway
        self._root = Root(context.root)
        self._tables = TaskTables(self._root)
        self._doubts: frozenset[str] = frozenset()

    @property
    def name(self) -> str:
        """See the port."""
        return BACKEND

    @property
    def traits(self) -> BackendTraits:
        """See the port."""
        return BackendTraits(credential_life_s=self._settings.credential_life_s)

    def effective_settings(self) -> Mapping[str, object]:
        """See the port."""
        return asdict(self._settings)

    def compare_cluster(self, shell: Mapping[str, str]) -> tuple[str, str]:
        """See :class:`ffdl_batch.ports.capabilities.ChoosesCluster`."""
        return compare_cluster(shell, os.environ)

    def probe(self) -> BackendFacts:
        """See the port. Also write the controller into the user's tree if nodes cannot see the package."""
        site = self._gateway.describe_site()
        self._log_doubts(site)
        delivery = deliver_controller(self._context.root, self._settings.python, self._settings.staging_python)
        return BackendFacts(
            nodes=site.nodes,
            partitions=site.partitions,
            # Apptainer makes level none on the node. If it cannot, no learner starts, so no fact is needed here.
            network_levels=frozenset({NetworkLevel.HOST, NetworkLevel.NONE}),
            version=site.version,
            python=delivery.python,
            controller=delivery.controller,
            staging=delivery.staging,
            max_array_size=site.config.max_array_size,
            lacks=site.lacks,
        )

    def examine(self, nodes: str, mounting: Mounting = Mounting.AUTO) -> Sequence[Item]:
        """See :class:`ffdl_batch.ports.capabilities.Examines`."""
        return Doctor(self._settings, self._context.root, run_command).examine(nodes, mounting)

    def _log_doubts(self, site: SiteShape) -> None:
        """Log doubts that are new. They concern the site, not the users who submit."""
        doubts = frozenset(doubt_times(self._settings, site.config.slurmd_timeout_s, site.config.kill_wait_s))
        doubts |= frozenset(site.lacks)
        for text in sorted(doubts - self._doubts):
            log.warning("%s", text)
        self._doubts = doubts

    def plan(self, request: LaunchRequest) -> LaunchPlan:
        """See the port."""
        return make_plan(request, self._settings)

    def submit(self, plan: LaunchPlan) -> NativeId:
        """See the port."""
        return NativeId(self._gateway.submit(plan.attempt_dir, plan.launch.umask))

    def plan_array(self, chunk: Chunk, members: Sequence[LaunchPlan]) -> ArrayPlan | None:
        """See :class:`ffdl_batch.ports.capabilities.SubmitsArrays`."""
        return plan_array(chunk, members)

    def submit_array(self, plan: ArrayPlan) -> Mapping[Token, NativeId]:
        """See :class:`ffdl_batch.ports.capabilities.SubmitsArrays`."""
        job = self._gateway.submit(plan.chunk.directory, plan.umask)
        return {token: NativeId(job, task) for token, task in plan.tasks.items()}

    def test_only(self, plan: LaunchPlan) -> str:
        """See :class:`ffdl_batch.ports.capabilities.TrialSubmission`."""
        return self._gateway.test_only(plan.attempt_dir, plan.script)

    def find(self, token: Token, attempt_dir: AttemptDir) -> frozenset[NativeId]:
        """See the port."""
        return self.find_many({token: attempt_dir})[token]

    def find_many(self, attempts: Mapping[Token, AttemptDir]) -> Mapping[Token, frozenset[NativeId]]:
        """See :class:`ffdl_batch.ports.capabilities.SubmitsArrays`."""
        wanted = {token: _Wanted(token, attempt, self._root) for token, attempt in attempts.items()}
        replies = {chunk: recover_reply(place) for one in wanted.values() for chunk, place in one.places.items()}
        reported = {token: one.reported(replies) for token, one in wanted.items()}
        found = {token: one.claimed() for token, one in wanted.items()}
        names = list(dict.fromkeys(name for one in wanted.values() for name in one.names))
        listed = Listing(self._gateway.list_named(*names))
        for token, one in wanted.items():
            found[token] |= one.among(listed)
        try:
            accounted = Listing(self._gateway.account_for_names(names, _since(attempts.values())) or ())
        except AccountingUnreachable as error:
            if not all(found.values()):
                known = {token: frozenset(natives) for token, natives in found.items() if natives}
                raise AccountingUnreachable(str(error), error.again_in_s, known) from error
            # A duplicate that is only in the accounting has ended; the claim kept it from running.
            log.debug("%s are known without the accounting", ", ".join(found))
            accounted = Listing(())
        for token, one in wanted.items():
            found[token] |= one.among(accounted)
            if unknown := reported[token] - found[token]:  # a site's wrapper of sbatch may print other numbers
                log.debug("%s were printed by sbatch, but are not jobs of %s", sorted(map(str, unknown)), token)
        return {token: frozenset(natives) for token, natives in found.items()}

    def observe(self, ids: Collection[NativeId]) -> Mapping[NativeId, Observation]:
        """See the port."""
        if not ids:
            return {}
        try:
            seen = pick(self._gateway.list_own_jobs(), ids)
        except RowsUnread as error:  # logged by the gateway; each missing job may be that of an unread row
            seen = pick(error.records, ids, whole=False)
            return {native: self._called_by_token(native, record.observation) for native, record in seen.items()}
        missing = [native for native in ids if native not in seen]
        if missing:
            seen |= self._ended_by_accounts(missing)
        return {native: self._called_by_token(native, record.observation) for native, record in seen.items()}

    def _ended_by_accounts(self, missing: Collection[NativeId]) -> dict[NativeId, JobRecord]:
        try:
            return pick(_ended(self._gateway.account_for({native.job for native in missing}) or ()), missing)
        except RowsUnread as error:
            return pick(_ended(error.records), missing, whole=False)
        except AccountingUnreachable as error:  # logged by the gateway
            log.debug("%d jobs are unknown for now: %s", len(missing), error)
            return {}

    def _called_by_token(self, native: NativeId, seen: Observation) -> Observation:
        token = self._tables.token_of(seen.name, native.task)
        return seen if token == seen.name else _rename(seen, token)

    def list_all_users(self) -> Mapping[int, Sequence[str]]:
        """See :class:`ffdl_batch.ports.capabilities.SharesListing`."""
        return self._gateway.list_all_users()

    def explain_blindness(self) -> str:
        """See :class:`ffdl_batch.ports.capabilities.SharesListing`."""
        return explain_blindness(run_command, self._settings.command_timeout_s, self._context.user)

    @property
    def has_shared_listing(self) -> bool:
        """See :class:`ffdl_batch.ports.capabilities.SharesListing`."""
        return self._context.shared is not None

    def observe_shared(self, ids: Collection[NativeId]) -> SharedView | None:
        """See :class:`ffdl_batch.ports.capabilities.SharesListing`."""
        listed = self._context.shared.read() if self._context.shared is not None else None
        if listed is None:
            return None
        seen = pick(read_shared(listed.rows), ids)
        return SharedView({native: record.observation for native, record in seen.items()}, listed.age_s)

    def find_absent(self, ids: Collection[NativeId]) -> Absent:
        """See :class:`ffdl_batch.ports.capabilities.ForgetsJobs`. Lost jobs are what sacctmgr(1) calls runaway jobs."""
        if not ids:
            return Absent()
        listing = self._gateway.list_own_jobs()
        listed = pick(listing, ids)
        missing = [native for native in ids if native not in listed]
        if not missing:
            return Absent()
        accounted = self._gateway.account_for({native.job for native in missing}) or ()
        gone = frozenset(missing) - frozenset(pick(_ended(accounted), missing))
        living = [record for record in accounted if record.observation.phase in (Phase.PENDING, Phase.RUNNING)]
        return Absent(gone, frozenset(pick(living, gone)), dropped_tasks(listing, gone, self._tables.token_of))

    def accounted_runs(self, attempts: Mapping[NativeId, Token]) -> Mapping[NativeId, Sequence[AccountedRun]] | None:
        """See :class:`ffdl_batch.ports.capabilities.HasAccounting`."""
        records = self._gateway.account_for_runs({native.job for native in attempts}) if attempts else []
        if records is None:
            return None
        return runs_of(records, attempts, self._tables.token_of, self._shares_per_gpu(one.tres for one in records))

    def accounted_uses(self, since: float, until: float) -> Sequence[AccountedUse] | None:
        """See :class:`ffdl_batch.ports.capabilities.HasAccounting`."""
        records = self._gateway.account_for_all_users(since, until)
        if records is None:
            return None
        per_gpu = self._shares_per_gpu(one.tres_s for one in records)
        for name in uncounted((one.tres_s for one in records), per_gpu):
            log.warning(
                "the GPU-hours of jobs that used %s are not counted, because the nodes do not all have the same number "
                "of %s for each GPU; set the same Count for each GPU in gres.conf",
                name,
                name,
            )
        return uses_of(records, per_gpu)

    def _shares_per_gpu(self, resources: Iterable[Mapping[str, float]]) -> Mapping[str, float]:
        """Return :func:`shares_per_gpu` of all nodes. Nodes are listed only if `resources` contain shares."""
        if not any(map(has_shares, resources)):
            return {}
        nodes, *_ = self._gateway.query(sinfo_argv(), parse_sinfo)
        return shares_per_gpu(nodes)

    def accounting_outage(self) -> AccountingOutage | None:
        """See :class:`ffdl_batch.ports.capabilities.HasAccounting`."""
        return self._gateway.accounting_outage()

    def signal(self, native_id: NativeId, signal: str) -> None:
        """See the port."""
        self.signal_many([native_id], signal)

    def cancel(self, native_id: NativeId) -> None:
        """See the port."""
        self.cancel_many([native_id])

    def withdraw(self, native_id: NativeId) -> None:
        """See the port."""
        self.withdraw_many([native_id])

    def signal_many(self, ids: Collection[NativeId], signal: str) -> None:
        """See :class:`ffdl_batch.ports.capabilities.StopsMany`; a step's id names one task alone."""
        self._gateway.signal(signal.removeprefix("SIG"), *map(str, ids))

    def cancel_many(self, ids: Collection[NativeId]) -> None:
        """See :class:`ffdl_batch.ports.capabilities.StopsMany`."""
        self._gateway.cancel(*job_arguments(ids))

    def withdraw_many(self, ids: Collection[NativeId]) -> None:
        """See :class:`ffdl_batch.ports.capabilities.StopsMany`."""
        self._gateway.withdraw(*job_arguments(ids))

    def nodes_of(self, facts: BackendFacts, partition: str) -> frozenset[str]:
        """See :class:`ffdl_batch.ports.capabilities.AvoidsNodes`."""
        return names_in(facts, partition or self._settings.partition)

    def avoid(self, native_id: NativeId, nodes: Collection[str]) -> None:
        """See :class:`ffdl_batch.ports.capabilities.AvoidsNodes`."""
        if nodes:
            self._gateway.exclude(str(native_id), nodes)

    def exclude_only(self, native_id: NativeId, nodes: str) -> None:
        """See :class:`ffdl_batch.ports.capabilities.AvoidsNodes`."""
        self._gateway.exclude_only(str(native_id), nodes)

    def shrink(self, native_id: NativeId, nodes: Sequence[str]) -> None:
        """See :class:`ffdl_batch.ports.capabilities.ShrinksJobs`. If the job already has only these nodes, do nothing,
        because Slurm would start another accounting record."""
        seen = self.observe([native_id]).get(native_id)
        held = None if seen is None else expand(seen.nodes)
        if held is None or not held <= set(nodes):
            self._gateway.shrink(str(native_id), nodes)

    def beside(self, place: AttemptNode, argv: Sequence[str]) -> NodeProgram:
        """See the port; srun runs where the owner is."""
        job = place.allocation or str(place.native_id)
        words = tuple(beside_argv(job, place.node_rank, argv))
        return NodeProgram(words, unset=OPTION_VARIABLES, keep=tuple(sorted(KEPT)))

    def close(self) -> None:
        """End pyslurm's worker, if there is one. The next call starts it again."""
        self._gateway.close()


@lru_cache(maxsize=32_768)  # tasks of arrays, at each look; few have changed since the last one
def _rename(seen: Observation, name: str) -> Observation:
    return replace(seen, name=name)


def _ended(records: Sequence[JobRecord]) -> list[JobRecord]:
    """Return the records of ended jobs. The accounting decides about ends only. A job that it shows as running and that
    slurmctld does not list was lost in a crash of slurmctld (sacctmgr(1): runaway jobs)."""
    return [record for record in records if record.observation.phase is Phase.ENDED]


class _Wanted:
    """An attempt to find, by its own name and by those of the native arrays that it was submitted in."""

    def __init__(self, token: Token, attempt: AttemptDir, root: Root) -> None:
        self._token, self._attempt = token, attempt
        self._tasks = read_marks(_read(Path(attempt.submit_begun)))
        named = {chunk: parse_chunk_name(chunk) for chunk, _ in self._tasks}
        self.places = {chunk: root.array(known[0]).chunk(known[1]) for chunk, known in named.items() if known}
        self.names = (token, *self.places)

    def reported(self, replies: Mapping[Token, Collection[str]]) -> set[NativeId]:
        """Return the ids that sbatch printed, which prove nothing. Raises NotNow while an sbatch runs."""
        own = {NativeId(job) for job in recover_reply(self._attempt)}
        return own | {NativeId(job, task) for chunk, task in self._tasks for job in replies.get(chunk, ())}

    def claimed(self) -> set[NativeId]:
        """Return the id in the claim."""
        return _claimant(self._attempt)

    def among(self, listing: Listing) -> set[NativeId]:
        """Return the jobs of a listing that belong to the attempt."""
        return listing.jobs_named(self._token).union(*(listing.tasks_named(*task) for task in self._tasks))


def _claimant(attempt: AttemptDir) -> set[NativeId]:
    """Return the job that executes the attempt, according to its claim. Raises NotNow."""
    try:
        native = find_object(attempt.claim_owner).get("native_id")
    except OSError as error:
        raise NotNow(f"{attempt.claim_owner} cannot be read: {error}") from error
    return {NativeId.parse(native)} if isinstance(native, str) and native else set()


def _read(path: Path) -> str:
    """Return the text of a file of an attempt; "" if it is missing or damaged. Raises NotNow."""
    try:
        return find_text(str(path))
    except OSError as error:
        raise NotNow(f"{path} cannot be read: {error}") from error


def _since(attempts: Collection[AttemptDir]) -> str:
    """Return the first day of the accounting query: two days before the first attempt was written, because clocks and
    time zones may differ."""
    written = min(map(_written_at, attempts), default=time.time())
    return time.strftime("%Y-%m-%d", time.localtime(written - 2 * _DAY_S))


def _written_at(attempt: AttemptDir) -> float:
    for path in (attempt.launch, attempt.path):
        try:
            return os.stat(path).st_mtime  # noqa: PTH116
        except OSError:
            continue
    return time.time() - 28 * _DAY_S
