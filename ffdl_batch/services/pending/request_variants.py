"""Finds requests for the same work that might start sooner. Each differs from the original in one option."""

from __future__ import annotations

import hashlib
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from ffdl_batch.domain.backend_facts import BackendFacts, PartitionShape
from ffdl_batch.domain.job.job import JobId
from ffdl_batch.domain.job.spec import JobSpec
from ffdl_batch.domain.pending.explanation import Alternative, Explanation, Foretold, Limit, Measure, Per, WaitKind
from ffdl_batch.domain.quantity import format_time_limit
from ffdl_batch.domain.scheduler_errors import InvalidRequest, SchedulerUnreachable
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.ports.capabilities import ForetellsStart
from ffdl_batch.ports.clock import Clock
from ffdl_batch.runtimes.launch_request import LaunchPlan
from ffdl_batch.services.backends.adapters import Adapters

SOONER_S = 60.0
"""A smaller gain does not count, because schedulers plan in cycles."""
FAR_S = 366 * 86400.0
"""Later starts count as unknown. Slurm reports a far century if jobs without a time limit are ahead."""
ALTOGETHER_S = 8.0
"""No further trial begins this long after the first one."""
MOST = 7
"""How many variants of a request are tried."""
_PARTITIONS, _TYPES = 3, 2
SHORTEST_S = 600
_LONGEST_PARTS_S = (14400, 3600)
"""Time limits that are tried for a request without one."""
_USELESS = frozenset(
    {WaitKind.DEPENDENCY, WaitKind.DEPENDENCY_NEVER, WaitKind.BEGIN_TIME, WaitKind.HELD_BY_USER,
     WaitKind.HELD_BY_ADMIN, WaitKind.HELD_AFTER_FAILURES, WaitKind.STARTING, WaitKind.CLEANING, WaitKind.ARRAY_LIMIT,
     WaitKind.NOT_ALLOWED, WaitKind.ENDED, WaitKind.DEADLINE, WaitKind.FEDERATION, WaitKind.LICENSES,
     WaitKind.BURST_BUFFER, WaitKind.BROKEN, WaitKind.IMAGE, WaitKind.VOLUME, WaitKind.REFUSED,
     WaitKind.QUEUE_CLOSED}
)  # fmt: skip
"""Reasons other than capacity: another request would wait for the same reason."""


LIFE_S = 60.0
AT_ONCE = 2
_REMEMBERED = 512


@dataclass(frozen=True, slots=True)
class Variant:
    """A request that differs from the original in one option."""

    change: str
    options: str
    """The option of ffdl-submit that makes the change."""
    spec: JobSpec
    elsewhere: bool = False
    """Whether it would wait in another partition's queue."""


def plain_request(spec: JobSpec) -> JobSpec:
    """Return the request without its dependency, begin time, hold and array, so that it waits only for capacity."""
    return replace(spec, batch=replace(spec.batch, dependency="", begin="", hold=False), element=None)


def variants_of(spec: JobSpec, facts: BackendFacts, known: Explanation | None = None) -> list[Variant]:
    """Return at most MOST variants, beginning with the smallest changes. `known` explains why the request waits: there
    are no variants if the reason is not capacity."""
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
    """Vary the GPU type if the request has one. Without one the scheduler uses any type."""
    resources = spec.resources
    if not resources.gpu_type or not resources.gpus:
        return
    for kind in sorted({kind for node in facts.nodes for kind in node.gpus if kind}):
        if kind.lower() != resources.gpu_type.lower():
            changed = replace(spec, resources=replace(resources, gpu_type=kind))
            yield Variant(f"GPUs of type {kind}", f"--gpus={kind}:{resources.gpus:g}", changed)


def _shorter(spec: JobSpec) -> Iterator[Variant]:
    limit = spec.batch.limit_s
    times = _LONGEST_PARTS_S if limit is None else (limit // 2, limit // 4)
    for time_s in (one // 60 * 60 for one in times):
        if time_s >= SHORTEST_S:
            yield from _for_a_time(spec, time_s)


def _for_a_time(spec: JobSpec, time_s: int) -> Iterator[Variant]:
    if time_s and (spec.batch.limit_s is None or time_s < spec.batch.limit_s):
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
    """Yield the requests that a limit on GPUs, or on a job's time, still permits, if its figures are known. Any other
    request would exceed the limit as well."""
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


class TrialRequests:
    """Asks schedulers for trials: a bounded number, two at a time, remembered for a minute. Nothing is submitted.

    It also remembers the last explanation of each waiting job, which is shown while the scheduler does not answer. One
    per daemon; safe in every thread.
    """

    def __init__(self, adapters: Adapters, clock: Clock) -> None:
        self._adapters, self._clock = adapters, clock
        self._lock = threading.Lock()
        self._turn = threading.BoundedSemaphore(AT_ONCE)
        self._answers: OrderedDict[str, tuple[float, Foretold | None]] = OrderedDict()
        self._known: OrderedDict[str, Explanation] = OrderedDict()

    def remember(self, job: JobId, known: Explanation) -> None:
        """Remember the explanation of a waiting job."""
        with self._lock:
            self._known[job] = known
            self._known.move_to_end(job)
            while len(self._known) > _REMEMBERED:
                self._known.popitem(last=False)

    def recall(self, job: JobId) -> Explanation | None:
        """Return the last explanation of a job. It may be old."""
        with self._lock:
            return self._known.get(job)

    def ask(self, plan: LaunchPlan) -> Foretold | None:
        """Return the answer to the trial of one plan; None if the backend takes no trials, or refuses the request.
        Raises SchedulerUnreachable."""
        adapter = self._adapters.get(plan.backend)
        if not isinstance(adapter, ForetellsStart):
            return None
        key = _key(plan)
        with self._lock:
            at, known = self._answers.get(key, (0.0, None))
            if at and self._clock.now() - at < LIFE_S:
                return known
        with self._turn:
            answer = _foretell(self._adapters, adapter, plan)
        with self._lock:
            self._answers[key] = (self._clock.now(), answer)
            while len(self._answers) > _REMEMBERED:
                self._answers.popitem(last=False)
        return answer


def _key(plan: LaunchPlan) -> str:
    return f"{plan.backend} {hashlib.sha256(plan.script.encode()).hexdigest()}"


def _foretell(adapters: Adapters, adapter: ForetellsStart, plan: LaunchPlan) -> Foretold | None:
    try:
        with adapters.asking(plan.backend):
            return adapter.foretell(plan)
    except InvalidRequest:  # the scheduler refuses this request: it is no alternative, and this is no outage
        return None


def try_all(
    variants: Sequence[Variant],
    plan: Callable[[JobSpec], LaunchPlan | None],
    ask: Callable[[LaunchPlan], Foretold | None],
    monotonic: Callable[[], float],
) -> list[tuple[Variant, Foretold]]:
    """Return the variants that the scheduler would accept, with its answers. An outage ends the search."""
    until, found = monotonic() + ALTOGETHER_S, []

    def one(variant: Variant) -> Foretold | None:
        planned = plan(variant.spec) if monotonic() < until else None
        try:
            return ask(planned) if planned is not None else None
        except SchedulerUnreachable:  # the circuit breaker records it; earlier answers still count
            return None

    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="trial") as pool:
        for variant, answer in zip(variants, pool.map(one, variants), strict=True):
            if answer is not None and answer.at is not None:
                found.append((variant, answer))
    return found


@dataclass(frozen=True, slots=True)
class Base:
    """When the original request would start. None: unknown."""

    planned: float | None = None
    """According to the scheduler's plan for the waiting job."""
    tried: float | None = None
    """According to a trial of the same request, as if it were submitted now."""

    @property
    def at(self) -> float | None:
        """Return the start that an alternative must improve on."""
        return self.planned if self.planned is not None else self.tried

    @property
    def behind_s(self) -> float:
        """Return the delay that a trial adds to the start of the same request. A trial counts all waiting jobs of the
        queue as ahead, including the job itself (Slurm: `_delayed_job_start_time`)."""
        if self.planned is None or self.tried is None or self.tried - self.planned > FAR_S:
            return 0.0
        return max(0.0, self.tried - self.planned)


def rank(answers: Sequence[tuple[Variant, Foretold]], base: Base, now: float) -> tuple[Alternative, ...]:
    """Return the variants that would start sooner than the original request, the soonest first."""
    far = base.at is None or base.at > now + FAR_S
    found = []
    for variant, answer in answers:
        assert answer.at is not None  # try_all has removed the others
        at = max(now, answer.at - (0.0 if variant.elsewhere else base.behind_s))
        if at > now + FAR_S or (base.at is not None and at > base.at - SOONER_S):
            continue
        sooner = None if far or base.at is None else base.at - at
        found.append(Alternative(variant.change, variant.options, at, sooner, answer.preempts, answer.sentence))
    return tuple(sorted(found, key=lambda one: (one.at or 0.0, one.preempts)))
