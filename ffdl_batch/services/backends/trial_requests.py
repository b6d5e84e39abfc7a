"""What schedulers answer to trials: a bounded number, two at a time, remembered for a minute. Nothing is submitted.

It also remembers what was last known of each job that waits, for while its scheduler does not answer.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING

from ffdl_batch.domain.job.job import JobId
from ffdl_batch.domain.pending.explanation import Explanation, Foretold
from ffdl_batch.domain.scheduler_errors import InvalidRequest
from ffdl_batch.ports.capabilities import ForetellsStart
from ffdl_batch.runtimes.launch_request import LaunchPlan

if TYPE_CHECKING:
    from ffdl_batch.services.backends.adapters import Adapters

LIFE_S = 60.0
AT_ONCE = 2
_REMEMBERED = 512


class TrialRequests:
    """One per daemon; safe in every thread."""

    def __init__(self, adapters: Adapters) -> None:
        self._adapters = adapters
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

    def ask(self, plan: LaunchPlan, now: Callable[[], float]) -> Foretold | None:
        """Return the answer to the trial of one plan; None if the backend takes no trials, or refuses the request.
        Raises SchedulerUnreachable."""
        adapter = self._adapters.get(plan.backend)
        if not isinstance(adapter, ForetellsStart):
            return None
        key = _key(plan)
        with self._lock:
            at, known = self._answers.get(key, (0.0, None))
            if at and now() - at < LIFE_S:
                return known
        with self._turn:
            answer = _foretell(self._adapters, adapter, plan)
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
