"""Decides whether a controller of an ended attempt may still be running: then its files must not be touched.

Without evidence, a controller counts as running for as long as one that lost its file system lives on. Usually there is
evidence: it reported its end, its process is gone from this host, or the scheduler ended the attempt on nodes that
answered.
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
"""A node controller that can reach its job's directory writes more often (Limits.heartbeat_s)."""
_LOST = frozenset({None, EndCause.NODE_FAIL, EndCause.LAUNCH_FAILED, EndCause.REVOKED})
"""Ends after which processes may still run on the nodes."""


def fenced_s(adapters: Adapters, pending: Attempt, attempt: AttemptDir, now: float) -> float:
    """Return for how many seconds the attempt's files must not be touched; 0 = none of its processes can be running.

    `now` is the shared file system's time. Raises OSError, NewerFormat among them.
    """
    heard = _last_sign(attempt)
    if heard is None or now - heard >= STILL_ALIVE_S:
        return 0.0
    if now - heard < TWO_BEATS_S:
        return min(TWO_BEATS_S, heard + TWO_BEATS_S - now)
    return 0.0 if _has_ended_in_order(adapters, pending) else heard + STILL_ALIVE_S - now


def _last_sign(attempt: AttemptDir) -> float | None:
    """Return the time of the last sign of a node controller that may still be running; None if none can be."""
    signs = []
    for started, heard in open_controllers(attempt).values():
        if started is None or started.fields.get("host") != os.uname().nodename:
            signs.append(heard)
        elif lives_here(started.fields):
            signs.append(math.inf)
    return max(signs, default=None)


def _has_ended_in_order(adapters: Adapters, attempt: Attempt) -> bool:
    """Return whether the scheduler reports the end of the attempt, and a cause other than a lost node.

    Schedulers report that only when the nodes have confirmed that none of its processes are left.
    """
    native = NativeId.parse(attempt.native_id)
    try:
        with adapters.asking(attempt.backend) as adapter:
            seen = adapter.observe([native]).get(native)
    except (SchedulerUnreachable, InvalidRequest) as error:
        log.info("job %s: the end of attempt %d cannot be looked up: %s", attempt.job_id, attempt.number, error)
        return False
    return seen is not None and seen.phase is Phase.ENDED and seen.end not in _LOST
