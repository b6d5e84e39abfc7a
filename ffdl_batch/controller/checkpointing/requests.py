"""Requests for a checkpoint: for which reason, how long their learners have, and how other nodes get them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Optional

from ffdl_batch.controller.rendezvous.other_nodes import tell_others
from ffdl_batch.domain.launch.launch_file import LaunchFile
from ffdl_batch.domain.launch.limits import Limits
from ffdl_batch.domain.outcome.controller_events import HALT, TERM, WARNED

FROM_OUTSIDE = (WARNED, TERM)
"""Reasons that one node may have alone: the others are asked by it."""
OUTSIDE_SHARE = 2 / 3
"""Of `kill_wait_s`, what learners get after a TERM from outside: the scheduler's KILL comes when all of it is over,
and results have to be stored and words written before."""
STORE_SHARE = 0.9
"""Of `kill_wait_s` after a TERM from outside, when storing ends, so that the head still writes its record."""
ANSWER_SHARE = 0.75
"""Of the learners' time after a TERM from outside, when those that only read the halt file get TERM."""


@dataclass(frozen=True)
class Request:
    """The learners were asked for a checkpoint for `reason`. Who has not ended by `term_at` gets TERM, by `kill_at`
    KILL; times are a :class:`~ffdl_batch.host.running_clock.RunningTime`'s."""

    reason: str
    at: float
    term_at: float
    kill_at: float


def new_request(reason: str, limits: Limits, now: float) -> Request:
    """A request for `reason` (halt, warned, time, term) that is made now."""
    if reason == TERM:
        budget_s = limits.kill_wait_s * OUTSIDE_SHARE
        return Request(reason, now, now + budget_s * ANSWER_SHARE, now + budget_s)
    if reason == HALT or limits.lead_s is None:
        term_at = now + limits.grace_s
        return Request(reason, now, term_at, term_at + limits.kill_wait_s)
    # The allocation ends when the lead is over: until shortly before, a learner that does not react goes on.
    span_s = max(float(limits.lead_s - limits.store_s), limits.grace_s / 2)
    left_s = max(min(float(limits.kill_wait_s), limits.lead_s - span_s), 1.0)
    return Request(reason, now, now + span_s, now + span_s + left_s)


def ask_others(launch: LaunchFile) -> None:
    """Have all node controllers ask their learners, because this node is about to end: the others would wait for its
    learners, and save nothing."""
    tell_others(launch, what=HALT, reason=WARNED)


def join(current: Optional[Request], new: Request) -> Request:
    """One request of two: the first, with the shorter times. A halt replaces every other reason."""
    if current is None:
        return new
    reason = HALT if new.reason == HALT else current.reason
    return replace(
        current,
        reason=reason,
        term_at=min(current.term_at, new.term_at),
        kill_at=min(current.kill_at, new.kill_at),
    )
