"""Other requests for the same work that might start sooner: each differs in one thing. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from ffdl_batch.domain.backend_facts import BackendFacts, PartitionShape
from ffdl_batch.domain.job.spec import JobSpec
from ffdl_batch.domain.pending.explanation import Alternative, Explanation, Foretold, Limit, Measure, Per, WaitKind
from ffdl_batch.domain.quantity import format_time_limit
from ffdl_batch.domain.scheduler_errors import SchedulerUnreachable
from ffdl_batch.runtimes.launch_request import LaunchPlan
from ffdl_batch.services.backends.trial_requests import AT_ONCE

SOONER_S = 60.0
"""A start that is nearer by less is none that is sooner: schedulers count in rounds."""
FAR_S = 366 * 86400.0
"""Slurm says some far century where jobs without a time limit are before it."""
ALTOGETHER_S = 8.0
"""No further trial begins so long after the first one of a question."""
MOST = 7
"""So many are asked about for one job, beside the request as it is."""
_PARTITIONS, _TYPES = 3, 2
SHORTEST_S = 600
_LONGEST_PARTS_S = (14400, 3600)
"""What is tried where no time limit was asked for."""
_USELESS = frozenset(
    {WaitKind.DEPENDENCY, WaitKind.DEPENDENCY_NEVER, WaitKind.BEGIN_TIME, WaitKind.HELD_BY_USER,
     WaitKind.HELD_BY_ADMIN, WaitKind.HELD_AFTER_FAILURES, WaitKind.STARTING, WaitKind.CLEANING, WaitKind.ARRAY_LIMIT,
     WaitKind.NOT_ALLOWED, WaitKind.ENDED, WaitKind.DEADLINE, WaitKind.FEDERATION, WaitKind.LICENSES,
     WaitKind.BURST_BUFFER, WaitKind.BROKEN, WaitKind.IMAGE, WaitKind.VOLUME, WaitKind.REFUSED,
     WaitKind.QUEUE_CLOSED}
)  # fmt: skip
"""Where it is not room that lacks, another request would wait for the same."""


@dataclass(frozen=True, slots=True)
class Variant:
    """A request that differs in `change`; `options` is how ffdl-submit is told. `elsewhere`: it would wait in another
    partition's queue."""

    change: str
    options: str
    spec: JobSpec
    elsewhere: bool = False


def plain_request(spec: JobSpec) -> JobSpec:
    """The same request, free to start at once: what it waits for otherwise says nothing about room."""
    return replace(spec, batch=replace(spec.batch, dependency="", begin="", hold=False), element=None)


def variants_of(spec: JobSpec, facts: BackendFacts, known: Explanation | None = None) -> list[Variant]:
    """At most MOST, those first that change the least. `known`: why the request waits; none where that is no room."""
    reason = known.reason if known is not None else None
    if reason is not None and reason.kind in _USELESS:
        return []
    if reason is not None and reason.limit is not None:
        return list(_within(reason.limit, spec))[:MOST]
    plain, partitions = plain_request(spec), known.partitions if known is not None else ()
    found = [*_other_partitions(plain, facts, partitions)][:_PARTITIONS]
    found += [*_other_types(plain, facts)][:_TYPES]
    found += [*_shorter(plain), *_fewer_gpus(plain), *_fewer_learners(plain)]
    return found[:MOST]


def _other_partitions(spec: JobSpec, facts: BackendFacts, now: tuple[str, ...]) -> Iterator[Variant]:
    asked = set(now) or set(filter(None, spec.batch.partition.split(",")))
    asked = asked or {one.name for one in facts.partitions if one.is_default}
    for one in facts.partitions:
        if one.name not in asked and _may_hold(one, spec, facts):
            changed = replace(spec, batch=replace(spec.batch, partition=one.name))
            yield Variant(f"partition {one.name}", f"--partition={one.name}", changed, elsewhere=True)


def _may_hold(partition: PartitionShape, spec: JobSpec, facts: BackendFacts) -> bool:
    if partition.max_time_s is not None and (spec.batch.time_s or 0) > partition.max_time_s:
        return False
    kind, there = spec.resources.gpu_type, [node for node in facts.nodes if partition.name in node.partitions]
    return not spec.resources.gpus or any(node.gpus.get(kind) if kind else node.gpus for node in there)


def _other_types(spec: JobSpec, facts: BackendFacts) -> Iterator[Variant]:
    """Vary the type if one was asked for: without one the scheduler takes any."""
    resources = spec.resources
    if not resources.gpu_type or not resources.gpus:
        return
    for kind in sorted({kind for node in facts.nodes for kind in node.gpus if kind}):
        if kind.lower() != resources.gpu_type.lower():
            changed = replace(spec, resources=replace(resources, gpu_type=kind))
            yield Variant(f"GPUs of type {kind}", f"--gpus={kind}:{resources.gpus:g}", changed)


def _shorter(spec: JobSpec) -> Iterator[Variant]:
    limit = spec.batch.time_s
    times = _LONGEST_PARTS_S if limit is None else (limit // 2, limit // 4)
    for time_s in (one // 60 * 60 for one in times):
        if time_s >= SHORTEST_S:
            yield from _for_a_time(spec, time_s)


def _for_a_time(spec: JobSpec, time_s: int) -> Iterator[Variant]:
    if time_s and (spec.batch.time_s is None or time_s < spec.batch.time_s):
        shown = format_time_limit(time_s)
        changed = replace(spec, batch=replace(spec.batch, time_s=time_s))
        yield Variant(f"time limit {shown}", f"--time={shown}", changed)


def _fewer_gpus(spec: JobSpec, most: int | None = None) -> Iterator[Variant]:
    resources = spec.resources
    each = int(resources.gpus) // 2 if most is None else most
    if spec.batch.roles or not 1 <= each < resources.gpus:
        return
    changed = replace(spec, resources=replace(resources, gpus=float(each)))
    option = f"{resources.gpu_type}:{each}" if resources.gpu_type else str(each)
    yield Variant(f"{each} instead of {resources.gpus:g} GPUs per learner", f"--gpus={option}", changed)


def _fewer_learners(spec: JobSpec, most: int | None = None) -> Iterator[Variant]:
    resources = spec.resources
    learners = resources.learners // 2 if most is None else most
    if spec.batch.roles or not 1 <= learners < resources.learners:
        return
    changed = replace(spec, resources=replace(resources, learners=learners))
    yield Variant(f"{learners} instead of {resources.learners} learners", f"--learners={learners}", changed)


def _within(limit: Limit, spec: JobSpec) -> Iterator[Variant]:
    """What a limit of GPUs, or of a job's time, leaves, where its figures are known; anything else would meet the limit
    as well."""
    if limit.measure is not Measure.AMOUNT or limit.least or not re.fullmatch(r"\d+", limit.most):
        return
    if limit.resource == "time" and limit.per is Per.JOB:
        yield from _for_a_time(plain_request(spec), int(limit.most) * 60)
    if not limit.resource.startswith("GPUs"):
        return
    used = int(limit.used) if limit.is_shared and limit.used.isdigit() else 0
    left, plain, resources = int(limit.most) - used, plain_request(spec), spec.resources
    yield from _fewer_gpus(plain, left // resources.learners)
    if resources.gpus:
        yield from _fewer_learners(plain, int(left // resources.gpus))


def try_all(
    variants: Sequence[Variant],
    plan: Callable[[JobSpec], LaunchPlan | None],
    ask: Callable[[LaunchPlan], Foretold | None],
    monotonic: Callable[[], float],
) -> list[tuple[Variant, Foretold]]:
    """The variants that can be planned and that the scheduler would take, with its answers. An outage ends it."""
    until, found = monotonic() + ALTOGETHER_S, []

    def one(variant: Variant) -> Foretold | None:
        planned = plan(variant.spec) if monotonic() < until else None
        try:
            return ask(planned) if planned is not None else None
        except SchedulerUnreachable:  # which the breaker knows: what was answered before it counts
            return None

    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="trial") as pool:
        for variant, answer in zip(variants, pool.map(one, variants), strict=True):
            if answer is not None and answer.at is not None:
                found.append((variant, answer))
    return found


@dataclass(frozen=True, slots=True)
class Base:
    """When the request as it is would start: `planned` by the scheduler's plan for the job that waits, `tried` by a
    trial of the same request anew. None = nobody knows."""

    planned: float | None = None
    tried: float | None = None

    @property
    def at(self) -> float | None:
        """What an alternative has to be before."""
        return self.planned if self.planned is not None else self.tried

    @property
    def behind_s(self) -> float:
        """So much later a trial says that the same request starts: it counts all that wait in the queue as before it,
        the job itself among them (Slurm: `_delayed_job_start_time`). Every trial in that queue has it on top."""
        if self.planned is None or self.tried is None or self.tried - self.planned > FAR_S:
            return 0.0
        return max(0.0, self.tried - self.planned)


def rank(answers: Sequence[tuple[Variant, Foretold]], base: Base, now: float) -> tuple[Alternative, ...]:
    """Those that would start sooner than the request as it is, the soonest first."""
    far = base.at is None or base.at > now + FAR_S
    found = []
    for variant, answer in answers:
        assert answer.at is not None  # others are no answers
        at = max(now, answer.at - (0.0 if variant.elsewhere else base.behind_s))
        if at > now + FAR_S or (base.at is not None and at > base.at - SOONER_S):
            continue
        sooner = None if far or base.at is None else base.at - at
        found.append(Alternative(variant.change, variant.options, at, sooner, answer.preempts, answer.sentence))
    return tuple(sorted(found, key=lambda one: (one.at or 0.0, one.preempts)))
