"""What schedulers answer to trials: a bounded number, two at a time, remembered for a minute. Nothing is submitted.

It also remembers what was last known of each job that waits, for while its scheduler does not answer.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from ffdl_batch.domain.job.job import JobId
from ffdl_batch.domain.job.spec import JobSpec
from ffdl_batch.domain.pending.explanation import Alternative, Explanation, Foretold
from ffdl_batch.ports.capabilities import ForetellsStart
from ffdl_batch.ports.scheduler import InvalidRequest, LaunchPlan, SchedulerUnreachable
from ffdl_batch.services.backends.adapters import Adapters
from ffdl_batch.services.pending.request_variants import Variant

LIFE_S = 60.0
AT_ONCE = 2
ALTOGETHER_S = 8.0
"""No further trial begins so long after the first one of a question."""
_REMEMBERED = 512
SOONER_S = 60.0
"""A start that is nearer by less is none that is sooner: schedulers count in rounds."""
FAR_S = 366 * 86400.0
"""Slurm says some far century where jobs without a time limit are before it."""


class Desk:
    """One per platform; safe in every thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._turn = threading.BoundedSemaphore(AT_ONCE)
        self._answers: OrderedDict[str, tuple[float, Foretold | None]] = OrderedDict()
        self._known: OrderedDict[str, Explanation] = OrderedDict()

    def remember(self, job: JobId, known: Explanation) -> None:
        """What was said of a job that waits."""
        with self._lock:
            self._known[job] = known
            self._known.move_to_end(job)
            while len(self._known) > _REMEMBERED:
                self._known.popitem(last=False)

    def recall(self, job: JobId) -> Explanation | None:
        """What was said last, and may be old."""
        with self._lock:
            return self._known.get(job)

    def ask(self, adapters: Adapters, plan: LaunchPlan, now: Callable[[], float]) -> Foretold | None:
        """Return the answer to the trial of one plan; None if the backend takes no trials, or refuses the request.
        Raises SchedulerUnreachable."""
        adapter = adapters.get(plan.backend)
        if not isinstance(adapter, ForetellsStart):
            return None
        key = _key(plan)
        with self._lock:
            at, known = self._answers.get(key, (0.0, None))
            if at and now() - at < LIFE_S:
                return known
        with self._turn:
            answer = _foretell(adapters, adapter, plan)
        with self._lock:
            self._answers[key] = (now(), answer)
            while len(self._answers) > _REMEMBERED:
                self._answers.popitem(last=False)
        return answer


def _key(plan: LaunchPlan) -> str:
    return f"{plan.backend} {hashlib.sha256(plan.script.encode()).hexdigest()}"


def _foretell(adapters: Adapters, adapter: ForetellsStart, plan: LaunchPlan) -> Foretold | None:
    try:
        with adapters.asking(plan.backend):
            return adapter.foretell(plan)
    except InvalidRequest:  # it is refused as it is: no alternative, and no outage
        return None


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
        found.append(Alternative(variant.change, variant.options, at, sooner, answer.preempts, answer.said))
    return tuple(sorted(found, key=lambda one: (one.at or 0.0, one.preempts)))
