"""Explain why jobs wait in Slurm. Queue, nodes and partitions are read once for any number of jobs. Other queries are
made only if a reason needs them.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from typing import TypeVar

from ffdl_batch.domain.backend_facts import WaitingRequest
from ffdl_batch.domain.number_text import counted
from ffdl_batch.domain.pending.explanation import Blocker, BlockerKind, Explanation, Factor, Foretold, Reason, WaitKind
from ffdl_batch.domain.scheduler_errors import NotNow, SchedulerUnreachable
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.host.users import user_name
from ffdl_batch.runtimes.launch_request import LaunchPlan
from ffdl_slurm.gateways.gateway import SlurmGateway
from ffdl_slurm.hostlist import expand
from ffdl_slurm.pending import commands, parsers
from ffdl_slurm.pending.capacity import Share, ahead_in, capacity_in, share_of
from ffdl_slurm.pending.limit_usage import Whose, with_figures
from ffdl_slurm.pending.parsers import LimitRecord, NodeNow, PartitionNow, ReservationNow, parse_trial
from ffdl_slurm.pending.reasons import read_reason
from ffdl_slurm.pending.squeue import LiveJob, parse_live
from ffdl_slurm.settings import SlurmSettings

T = TypeVar("T")
PICTURE_LIFE_S = 10.0
"""Seconds for which one reading of the cluster is used for all requests."""
_MOST_RESERVATIONS = 8
_OF_RESERVATIONS = frozenset({WaitKind.NODES_AWAY, WaitKind.RESERVATION, WaitKind.RESERVATION_GONE})


@dataclass(frozen=True, slots=True)
class Picture:
    """The cluster at a moment."""

    at: float
    jobs: Sequence[LiveJob]
    unread: Sequence[str]
    nodes: Sequence[NodeNow]
    partitions: Mapping[str, PartitionNow]


@dataclass(slots=True)
class Asked:
    """The results of further queries for one answer."""

    reservations: Sequence[ReservationNow] = ()
    limits: Sequence[LimitRecord] = ()
    factors: Mapping[str, tuple[float, tuple[Factor, ...]]] = field(default_factory=dict)
    lacks: list[str] = field(default_factory=list)
    """What could not be read, and why."""


class WaitingJobs:
    """One per adapter; safe in every thread. Looks at most once in PICTURE_LIFE_S."""

    def __init__(
        self,
        gateway: SlurmGateway,
        settings: SlurmSettings,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._gateway, self._settings = gateway, settings
        self._clock, self._monotonic = clock, monotonic
        self._lock = threading.Lock()
        self._picture: Picture | None = None
        self._taken = 0.0

    def explain(self, requests: Sequence[WaitingRequest]) -> list[Explanation | None]:
        """See :meth:`ffdl_batch.ports.scheduler.Scheduler.explain_waiting`."""
        if not requests:
            return []
        picture = self._look()
        found = [(request, _find(request, picture)) for request in requests]
        if picture.unread and any(job is None and request.native_id is not None for request, job in found):
            raise NotNow(f"a row of squeue's cannot be read, which may be the job's: {picture.unread[0]!r}")
        waiting = [job for _, job in found if job is not None and job.pending]
        asked = self._ask_more(waiting)
        if picture.unread:
            rows = counted(len(picture.unread), "row")
            asked.lacks.append(f"{rows} of squeue's could not be read, and {picture.unread[0]!r} counts nowhere")
        return [self._one(request, job, picture, asked) for request, job in found]

    def _look(self) -> Picture:
        with self._lock:  # who comes meanwhile gets the same
            if self._picture is None or self._monotonic() - self._taken >= PICTURE_LIFE_S:
                query, at = self._gateway.query, self._clock()
                live = query(commands.live_argv(), parse_live)
                nodes = query(commands.nodes_argv(), parsers.parse_nodes)
                listed = query(commands.partitions_argv(), parsers.parse_partitions)
                self._picture = Picture(at, live.jobs, live.unread, nodes, {one.name: one for one in listed})
                self._taken = self._monotonic()
            return self._picture

    def _ask_more(self, waiting: Sequence[LiveJob]) -> Asked:
        asked, kinds = Asked(), {read_reason(job.reason).kind for job in waiting}
        if kinds & _OF_RESERVATIONS:
            found = self._try(commands.reservations_argv(), parsers.parse_reservations, "reservations", asked)
            asked.reservations = found or ()
        if WaitKind.LIMIT in kinds:
            asked.limits = self._try(commands.limits_argv(), parsers.parse_limits, "limits' figures", asked) or ()
        if numbers := sorted({job.number for job in waiting if job.priority}):
            asked.factors = self._try(commands.factors_argv(numbers), parsers.parse_factors, "", asked) or {}
        return asked

    def _try(self, argv: list[str], parse: Callable[[str], T], what: str, asked: Asked) -> T | None:
        """Return None if it cannot be read, and report that under the name `what` ("" = many sites have none)."""
        try:
            return self._gateway.query(argv, parse)
        except SchedulerUnreachable as error:
            if what:
                asked.lacks.append(f"{what} could not be read: {error}")
            return None

    def _one(self, request: WaitingRequest, job: LiveJob | None, picture: Picture, asked: Asked) -> Explanation | None:
        if request.native_id is not None and (job is None or not job.pending):
            return None
        partitions = job.partitions if job is not None else self._partitions(request, picture)
        shares = {name: share_of(request.spec, name, request.facts) for name in partitions}
        plain = Explanation(
            known_at=picture.at,
            partitions=tuple(partitions),
            capacity=tuple(capacity_in(name, share, request.spec, picture.nodes) for name, share in shares.items()),
            ahead=tuple(
                ahead_in(name, job, job.user if job else user_name(os.getuid()), picture.jobs) for name in partitions
            ),
            figures=_figures(partitions, picture.partitions),
            lacks=(*asked.lacks, *request.facts.lacks),
        )
        if job is None:
            return plain
        reason = read_reason(job.reason)
        priority, factors = asked.factors.get(job.number, (float(job.priority), ()))
        return replace(
            plain,
            reason=_with_limit(reason, job, shares, asked.limits),
            priority=priority or float(job.priority) or None,
            expected_start=job.start if job.start is not None and job.start > picture.at else None,
            factors=factors,
            blockers=tuple(_blockers(reason, job, asked.reservations, picture.nodes)),
        )

    def _partitions(self, request: WaitingRequest, picture: Picture) -> tuple[str, ...]:
        named = request.spec.batch.partition or self._settings.partition
        if named:
            return tuple(name for name in named.split(",") if name)
        return tuple(one.name for one in picture.partitions.values() if one.is_default)


def _find(request: WaitingRequest, picture: Picture) -> LiveJob | None:
    if request.native_id is None:
        return None
    return next((job for job in picture.jobs if job.is_job(request.native_id)), None)


def _with_limit(reason: Reason, job: LiveJob, shares: Mapping[str, Share], limits: Sequence[LimitRecord]) -> Reason:
    if reason.limit is None:
        return reason
    asked = next((share.asked for share in shares.values()), {})
    whose = Whose(job.qos, job.account, job.user, os.getuid(), asked)
    return replace(reason, limit=with_figures(reason.limit, limits, whose))


def _blockers(
    reason: Reason, job: LiveJob, reservations: Sequence[ReservationNow], nodes: Sequence[NodeNow]
) -> list[Blocker]:
    """Reservations are its own, and those of nodes of its partitions: the next few."""
    found: list[Blocker] = []
    if job.dependency:
        found.append(Blocker(BlockerKind.DEPENDENCY, job.dependency))
    if reason.kind is WaitKind.LICENSES and job.licenses:
        found.append(Blocker(BlockerKind.LICENSE, job.licenses))
    if reason.kind in _OF_RESERVATIONS:
        there = {node.name for node in nodes if set(node.partitions) & set(job.partitions)}
        own = job.reservation.split(",")
        near = [one for one in reservations if one.name in own or there & (expand(one.nodes) or frozenset[str]())]
        near.sort(key=lambda one: (one.name not in own, one.begins or 0.0))
        found += [one.as_blocker() for one in near[:_MOST_RESERVATIONS]]
    return found


def _figures(names: Sequence[str], partitions: Mapping[str, PartitionNow]) -> dict[str, str]:
    """Return the limits of the partitions that have any."""
    found: dict[str, str] = {}
    for name in names:
        if (one := partitions.get(name)) is None:
            continue
        found |= {f"longest time in {name}": one.max_time} if one.max_time else {}
        found |= {f"most nodes of one job in {name}": one.max_nodes} if one.max_nodes else {}
        found |= {f"state of {name}": one.state} if one.state not in ("UP", "") else {}
        found |= {f"accounts of {name}": one.accounts} if one.accounts else {}
        found |= {f"QOS of {name}": one.qos} if one.qos else {}
    return found


class Outlooks:
    """The adapter's methods about waiting jobs."""

    def __init__(self, gateway: SlurmGateway, settings: SlurmSettings) -> None:
        self._queue, self._trials = WaitingJobs(gateway, settings), gateway

    def explain_waiting(self, requests: Sequence[WaitingRequest]) -> Sequence[Explanation | None]:
        """See :meth:`ffdl_batch.ports.scheduler.Scheduler.explain_waiting`."""
        return self._queue.explain(requests)

    def foretell(self, plan: LaunchPlan) -> Foretold:
        """See :class:`ffdl_batch.ports.capabilities.ForetellsStart`. Slurm counts what waits in its own way."""
        return parse_trial(self._trials.test_only(plan.attempt_dir, plan.script))
