"""Whether a controller of an attempt that is over may still be at work: then nobody else touches what it left.

Without any evidence that takes as long as a controller that was cut off lives on. Mostly there is some: it said that it
ended, its process is gone from this machine, or its scheduler ended the attempt on nodes that answered.
"""

from __future__ import annotations

import logging
import math
import os

from ffdl_batch.attempt.layout import AttemptDir
from ffdl_batch.domain.outcome.observation import EndCause, NativeId, Phase
from ffdl_batch.domain.scheduler_errors import InvalidRequest, SchedulerUnreachable
from ffdl_batch.host.processes import lives_here
from ffdl_batch.services.backends.adapters import Adapters
from ffdl_batch.services.outcome.attempt_records import STILL_ALIVE_S, open_controllers
from ffdl_batch.store import Attempt

log = logging.getLogger(__name__)

TWO_BEATS_S = 15.0
"""A node controller that reaches its job's directory is heard of more often (Limits.heartbeat_s)."""
_LOST = frozenset({None, EndCause.NODE_FAIL, EndCause.LAUNCH_FAILED, EndCause.REVOKED})
"""Ends that say nothing of what still runs on the nodes."""


def fenced_s(adapters: Adapters, pending: Attempt, attempt: AttemptDir, now: float) -> float:
    """How many seconds the attempt has to be left alone at least; 0 = nothing of it can be at work any more.

    `now` is the shared file system's time. Raises OSError, NewerFormat among them.
    """
    heard = _last_sign(attempt)
    if heard is None or now - heard >= STILL_ALIVE_S:
        return 0.0
    if now - heard < TWO_BEATS_S:
        return min(TWO_BEATS_S, heard + TWO_BEATS_S - now)
    return 0.0 if _has_ended_in_order(adapters, pending) else heard + STILL_ALIVE_S - now


def _last_sign(attempt: AttemptDir) -> float | None:
    """When a node controller that may still be at work was heard of last; None where none can be."""
    signs = []
    for started, heard in open_controllers(attempt).values():
        if started is None or started.fields.get("host") != os.uname().nodename:
            signs.append(heard)
        elif lives_here(started.fields):
            signs.append(math.inf)
    return max(signs, default=None)


def _has_ended_in_order(adapters: Adapters, attempt: Attempt) -> bool:
    """Whether the scheduler says that the attempt is over, and why, and that is not that it lost a node.

    Schedulers say so only when the nodes have confirmed that no process of it is left.
    """
    native = NativeId.parse(attempt.native_id)
    try:
        with adapters.asking(attempt.backend) as adapter:
            seen = adapter.observe([native]).get(native)
    except (SchedulerUnreachable, InvalidRequest) as error:
        log.info("job %s: how attempt %d ended cannot be asked: %s", attempt.job_id, attempt.number, error)
        return False
    return seen is not None and seen.phase is Phase.ENDED and seen.end not in _LOST
