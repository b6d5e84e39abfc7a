"""Puts off jobs that wait for their scheduler: it does not answer, has no room for more of them now, or refused them.

They are put off with few writes, whatever their number, and show the reason. When it is time to try again, one of them
is submitted first. The others follow if it is accepted. A user's request does not depend on the scheduler, so its job
always continues.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ffdl_batch.domain.job.job import Change, Job
from ffdl_batch.domain.job_state import JobState, Wish
from ffdl_batch.services.backends.adapters import Adapters
from ffdl_batch.services.backends.submit_limits import LONGEST_PAUSE_S
from ffdl_batch.services.platform import Platform
from ffdl_batch.store import LeasedJob

LEAST_PAUSE_S = 2.0
"""While one of them is tried."""


@dataclass(frozen=True, slots=True)
class Held:
    """A job that waits, for how long at most, and why."""

    job: Job
    pause_s: float
    reason: str


def hold_back(platform: Platform, leased: Sequence[LeasedJob]) -> list[LeasedJob]:
    """Those of `leased` (of one claim) that may go; the others are put off."""
    held = choose_held(platform.adapters, [one.job for one in leased])
    if held:
        _put_off(platform, held, leased[0].lease_token)
    waiting = {one.job.id for one in held}
    return [one for one in leased if one.job.id not in waiting]


def choose_held(adapters: Adapters, jobs: Sequence[Job]) -> list[Held]:
    """Those of `jobs` that have to wait. Sends no request. The job that is tried is one whose submissions had an
    answer, if there is one."""
    held: list[Held] = []
    tried: set[tuple[str, ...]] = set()
    for job in sorted(jobs, key=adapters.rooms.count_unanswered):
        if job.wish is not Wish.NONE:
            continue
        name, rooms = job.backend, adapters.rooms
        is_refused = job.state is JobState.PENDING and rooms.wait_s(job, alone=True) > 0
        if adapters.is_out(name) and not is_refused:
            waits_for: tuple[str, ...] = (name,)
            wait_s, reason = adapters.wait_s(name), adapters.lacks(name) or f"{name} does not answer; it is asked again"
            may_go = adapters.may_ask(name)
        elif job.state is JobState.PENDING and (reason := rooms.why_full(job)):
            waits_for, wait_s = rooms.waits_for(job), rooms.wait_s(job)
            may_go = wait_s == 0
        else:
            continue
        if may_go and waits_for not in tried:
            tried.add(waits_for)
        else:
            held.append(Held(job, min(max(wait_s, LEAST_PAUSE_S), LONGEST_PAUSE_S), reason))
    return held


def _put_off(platform: Platform, held: Sequence[Held], lease_token: str) -> None:
    store = platform.store
    untold = [(one.job, Change(columns={"pending_reason": one.reason})) for one in held
              if one.job.pending_reason != one.reason]  # fmt: skip
    if untold:
        store.apply_many(untold, lease_token=lease_token)
    now = store.now()
    for pause_s in sorted({one.pause_s for one in held}):
        store.put_off([one.job.id for one in held if one.pause_s == pause_s], lease_token, now + pause_s)
