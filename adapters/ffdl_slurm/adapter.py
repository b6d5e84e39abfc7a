"""The Slurm adapter: the scheduler port on top of a gateway.

| method | Slurm |
|---|---|
| probe | sinfo (partitions, nodes, GRES), version, Apptainer on this host |
| plan | pure: :mod:`ffdl_slurm.plan` |
| submit | sbatch --parsable, reply kept in the attempt's directory |
| find | that reply, the claim, squeue --name, sacct --name |
| observe | one squeue; one sacct for ids that squeue does not hold |
| signal, cancel, withdraw | scancel |
| avoid | squeue, scontrol update |
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import socket
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from ffdl_batch.domain.job import Token
from ffdl_batch.domain.jobdir import AttemptDir
from ffdl_batch.domain.observation import NativeId, Observation, Phase
from ffdl_batch.domain.spec import NetworkLevel
from ffdl_batch.ports.registry import AdapterContext, Settings
from ffdl_batch.ports.scheduler import BackendFacts, LaunchPlan, LaunchRequest, SchedulerUnreachable
from ffdl_slurm.delivery import deliver_controller
from ffdl_slurm.gateway import SlurmGateway
from ffdl_slurm.gateway_cli import CommandLineGateway
from ffdl_slurm.gateway_pyslurm import PyslurmGateway
from ffdl_slurm.parsers import JobRecord
from ffdl_slurm.plan import BACKEND, make_plan
from ffdl_slurm.replies import recover_reply
from ffdl_slurm.settings import GatewayKind, SlurmSettings, read_settings

log = logging.getLogger(__name__)
_DAY_S = 86400


def create(settings: Settings, context: AdapterContext) -> SlurmScheduler:
    """The entry point. Raises InvalidRequest for settings that make no sense; asks nobody yet."""
    checked = read_settings(settings)
    host = checked.submit_host or socket.gethostname()
    gateway: SlurmGateway
    if checked.gateway is GatewayKind.PYSLURM:
        gateway = PyslurmGateway(checked.command_timeout_s, host)
    else:
        gateway = CommandLineGateway(checked.command_timeout_s, host)
    return SlurmScheduler(checked, context, gateway)


class SlurmScheduler:
    """See :class:`ffdl_batch.ports.scheduler.Scheduler`; also TrialSubmission, ForgetsJobs, CredentialLife, Withdraws,
    AvoidsNodes, ExplainsSettings."""

    def __init__(self, settings: SlurmSettings, context: AdapterContext, gateway: SlurmGateway) -> None:
        """`gateway` carries every question to Slurm."""
        self._settings = settings
        self._context = context
        self._gateway = gateway

    @property
    def name(self) -> str:
        """See the port."""
        return BACKEND

    @property
    def credential_life_s(self) -> float:
        """See :class:`ffdl_batch.ports.scheduler.CredentialLife`."""
        return self._settings.credential_life_s

    def explain(self) -> Mapping[str, object]:
        """See :class:`ffdl_batch.ports.scheduler.ExplainsSettings`."""
        return asdict(self._settings)

    def probe(self) -> BackendFacts:
        """See the port. Also delivers the controller into the user's tree where nodes cannot see the package."""
        site = self._gateway.describe_site()
        delivery = deliver_controller(self._context.root, self._settings.python)
        levels, warnings = {NetworkLevel.HOST}, []
        if shutil.which(self._settings.apptainer):
            levels.add(NetworkLevel.NONE)
        else:
            warnings.append(
                f"{self._settings.apptainer} is not on this host's PATH, so isolation of the network is not proved; "
                "jobs need it on the nodes"
            )
        return BackendFacts(
            nodes=site.nodes,
            partitions=site.partitions,
            network_levels=frozenset(levels),
            version=site.version,
            python=delivery.python,
            controller=delivery.controller,
            warnings=tuple(warnings),
        )

    def plan(self, request: LaunchRequest) -> LaunchPlan:
        """See the port."""
        return make_plan(request, self._settings)

    def submit(self, plan: LaunchPlan) -> NativeId:
        """See the port."""
        return NativeId(self._gateway.submit(plan.attempt_dir))

    def test_only(self, plan: LaunchPlan) -> str:
        """See :class:`ffdl_batch.ports.scheduler.TrialSubmission`."""
        return self._gateway.test_only(plan.attempt_dir, plan.script)

    def find(self, token: Token, attempt_dir: AttemptDir) -> frozenset[NativeId]:
        """See the port."""
        found = {NativeId(job) for job in recover_reply(attempt_dir)} | _claimant(attempt_dir)
        found |= _named(self._gateway.list_named(token), token)
        try:
            accounted = self._gateway.account_for_name(token, _since(attempt_dir))
        except SchedulerUnreachable:
            if not found:
                raise
            # A duplicate that only the accounting remembers has ended; the claim kept it from running.
            log.warning("the accounting does not answer; %s is known by %s", token, ", ".join(map(str, found)))
            accounted = None
        return frozenset(found | _named(accounted or (), token))

    def observe(self, ids: Collection[NativeId]) -> Mapping[NativeId, Observation]:
        """See the port."""
        if not ids:
            return {}
        seen = _pick(self._gateway.list_own_jobs(), ids)
        missing = [native for native in ids if native not in seen]
        if missing:
            try:
                accounted = self._gateway.account_for({native.job for native in missing}) or ()
            except SchedulerUnreachable as error:
                log.warning("%d jobs are unknown for now: %s", len(missing), error)
                accounted = ()
            seen |= _pick(_ended(accounted), missing)
        return seen

    def is_forgotten(self, ids: Collection[NativeId]) -> frozenset[NativeId]:
        """See :class:`ffdl_batch.ports.scheduler.ForgetsJobs`."""
        if not ids:
            return frozenset()
        listed = _pick(self._gateway.list_own_jobs(), ids)
        missing = [native for native in ids if native not in listed]
        if not missing:
            return frozenset()
        accounted = self._gateway.account_for({native.job for native in missing})
        return frozenset(missing) - frozenset(_pick(_ended(accounted or ()), missing))

    def signal(self, native_id: NativeId, signal: str) -> None:
        """See the port."""
        self._gateway.signal(str(native_id), signal.removeprefix("SIG"))

    def cancel(self, native_id: NativeId) -> None:
        """See the port."""
        self._gateway.cancel(str(native_id))

    def withdraw(self, native_id: NativeId) -> None:
        """See :class:`ffdl_batch.ports.scheduler.Withdraws`."""
        self._gateway.withdraw(str(native_id))

    def avoid(self, native_id: NativeId, nodes: Collection[str]) -> None:
        """See :class:`ffdl_batch.ports.scheduler.AvoidsNodes`."""
        if nodes:
            self._gateway.exclude(str(native_id), nodes)

    def close(self) -> None:
        """End what was started for asking Slurm (pyslurm's worker); the next question starts it again."""
        self._gateway.close()


def _named(records: Sequence[JobRecord], token: str) -> set[NativeId]:
    return {NativeId(r.job, None if r.tasks is None or not r.tasks.isdigit() else r.tasks) for r in records
            if r.name == token}  # fmt: skip


def _ended(records: Sequence[JobRecord]) -> list[JobRecord]:
    """The accounting's word counts for ends alone. Who lives is known to the controller: a job that it does not list
    and that the accounting shows as running was lost in a crash of the controller (sacctmgr(1): runaway jobs)."""
    return [record for record in records if record.observation.phase is Phase.ENDED]


def _pick(records: Sequence[JobRecord], ids: Collection[NativeId]) -> dict[NativeId, Observation]:
    wanted = set(ids)
    tasks: dict[str, list[str]] = {}
    for native in wanted:
        if native.task is not None:
            tasks.setdefault(native.job, []).append(native.task)
    return {
        native: replace(record.observation, name=record.name)
        for record in records
        for native in record.native_ids(tasks.get(record.job, ()))
        if native in wanted
    }


def _claimant(attempt: AttemptDir) -> set[NativeId]:
    """Who executes the attempt, by its claim."""
    try:
        owner = json.loads(Path(attempt.claim_owner).read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return set()
    except OSError as error:
        raise SchedulerUnreachable(f"the claim in {attempt.path} cannot be read: {error}") from error
    native = owner.get("native_id") if isinstance(owner, dict) else None
    return {NativeId.parse(native)} if isinstance(native, str) and native else set()


def _since(attempt: AttemptDir) -> str:
    """The day from which the accounting is asked: two days before the attempt was written (clocks, time zones)."""
    for path in (attempt.launch, attempt.path):
        try:
            written = os.stat(path).st_mtime  # noqa: PTH116
        except OSError:
            continue
        return time.strftime("%Y-%m-%d", time.localtime(written - 2 * _DAY_S))
    return time.strftime("%Y-%m-%d", time.localtime(time.time() - 30 * _DAY_S))
