"""Sentences with the figures that an explanation is based on. Pure; times are this machine's local time."""

from __future__ import annotations

import time
from collections.abc import Iterator

from ffdl_batch.domain.number_text import counted
from ffdl_batch.domain.pending.explanation import (
    Ahead,
    Alternative,
    Blocker,
    BlockerKind,
    Capacity,
    Explanation,
    Foretold,
    WaitHistory,
)
from ffdl_batch.domain.pending.reason_text import span_text

_DAY_S, FAR_S = 86400.0, 366 * 86400.0


def evidence_of(
    known: Explanation | None, trial: Foretold | None, history: WaitHistory | None, now: float
) -> tuple[str, ...]:
    """Return one sentence for each fact that is known."""
    said = list(_sentences(known, now)) if known is not None else []
    if trial is not None:
        said.append(trial_text(trial, now))
    if history is not None:
        said.append(history_text(history))
    return tuple(said)


def _sentences(known: Explanation, now: float) -> Iterator[str]:
    for room in known.capacity:
        yield capacity_text(room)
    for one in known.ahead:
        yield ahead_text(one, now, is_queued=known.reason is not None)
    for blocker in known.blockers:
        yield _blocker_text(blocker, now)
    if known.position is not None:
        yield f"it is number {known.position} in its queue"
    if known.factors:
        parts = ", ".join(f"{factor.name} {factor.value:g}" for factor in known.factors)
        yield f"its priority of {known.priority or 0:g} is made of: {parts}"
    for name, figure in known.figures.items():
        yield f"{name}: {figure}"
    if known.expected_start is not None:
        yield f"by the scheduler's own plan it starts {moment_text(known.expected_start, now)}"
    yield from known.lacks


def capacity_text(capacity: Capacity) -> str:
    """Return the sentence about the capacity of a partition's nodes, and what it suffices for."""
    kind = f" of type {capacity.gpu_type}" if capacity.gpu_type else ""
    where = f" in {capacity.partition}" if capacity.partition else ""
    away = ""
    if capacity.away:
        names = ", ".join(f"{one.name} ({one.state}{f': {one.why}' if one.why else ''})" for one in capacity.away)
        away = f"; not to be had: {names}{f' and {capacity.away_more} more' if capacity.away_more else ''}"
    if not capacity.nodes and not capacity.gpus_each:
        return f"no node{where} is open to what it asks for{away}"
    if not capacity.gpus:
        have = (
            f"no open node{where} has GPUs{kind}"
            if capacity.gpus_each
            else f"{counted(capacity.nodes, 'open node')}{where}"
        )
    elif capacity.gpus_free is None:
        have = f"open nodes{where} have {counted(capacity.gpus, 'GPU')}{kind}"
    else:
        have = f"{capacity.gpus_free} of {counted(capacity.gpus, 'GPU')}{kind}{where} {_are(capacity.gpus_free)} free"
    return f"{have}; {_fitting_text(capacity)}{away}"


def _fitting_text(room: Capacity) -> str:
    each = f"{counted(room.gpus_each, 'GPU')} each" if room.gpus_each else ""
    if room.learners_fitting is None:
        has = "has" if room.fitting == 1 else "have"
        have = f"{room.fitting} of {counted(room.nodes, 'node')} {has} room for {each or 'its share'}"
        return f"{have}, and it needs {counted(room.wanted, 'node')}"
    empty = "if nothing else runs, " if room.gpus_free is None else ""
    learners = f"{room.learners_fitting} of {counted(room.wanted, 'learner')}{f' with {each}' if each else ''}"
    return f"{empty}there is room for {learners} on {room.fitting} of {counted(room.nodes, 'open node')}"


def ahead_text(ahead: Ahead, now: float, *, is_queued: bool) -> str:
    """Return the sentence about the jobs before it, and when the first running one reaches its time limit."""
    own = f" ({ahead.own} of them yours)" if ahead.own and ahead.jobs > 1 else " (yours)" if ahead.own else ""
    gpus = f", for {counted(ahead.gpus, 'GPU')}" if ahead.gpus else ""
    one = ahead.jobs == 1
    what = (
        ("is ahead of it" if one else "are ahead of it")
        if is_queued
        else ("waits for room" if one else "wait for room")
    )
    runs = f"{ahead.running} {'runs' if ahead.running == 1 else 'run'}"
    text = (
        f"in {ahead.partition} {counted(ahead.jobs, 'job') if ahead.jobs else 'no jobs'} {what}{own}{gpus}, and {runs}"
    )
    if ahead.next_end is not None and now < ahead.next_end < now + FAR_S:
        text += f"; the first of these reaches its time limit {moment_text(ahead.next_end, now)}"
    return text


def _blocker_text(blocker: Blocker, now: float) -> str:
    if blocker.kind is BlockerKind.DEPENDENCY:
        return f"it depends on {blocker.name}"
    if blocker.kind is BlockerKind.LICENSE:
        return f"it asks for the licenses {blocker.name}"
    begins = f" begins {moment_text(blocker.begins, now)}" if blocker.begins is not None else ""
    ends = f" and ends {moment_text(blocker.ends, now)}" if blocker.ends is not None else ""
    return f"the reservation {blocker.name}, {blocker.detail},{begins}{ends}".rstrip(",")


def history_text(history: WaitHistory) -> str:
    """Return the sentence with quantiles of own jobs."""
    median, most, longest = map(span_text, (history.median_s, history.ninth_decile_s, history.longest_s))
    jobs = f"your last {history.jobs} jobs with {history.shape}"
    return f"{jobs} waited {median} (median), 90 % of them up to {most}, the longest {longest}"


def trial_text(trial: Foretold, now: float) -> str:
    """Return the sentence about a trial of the request as it is."""
    if trial.at is None:
        return f"submitted now, the scheduler would answer: {trial.sentence}"
    start = f"by the scheduler's estimate it would start {moment_text(trial.at, now)}"
    return f"submitted now, behind what waits, {start}{_preempts(trial.preempts)}"


def alternative_text(one: Alternative, now: float) -> str:
    """Return the sentence about another request and its gain."""
    gain = f", {span_text(one.sooner_s)} sooner" if one.sooner_s is not None else ""
    when = moment_text(one.at, now) if one.at is not None else "at an unknown time"
    return f"{one.change} ({one.options}): starts {when}{gain}{_preempts(one.preempts)}"


def _preempts(jobs: int) -> str:
    """The scheduler does not report whose jobs these are: some may be the caller's."""
    return f", and would preempt {counted(jobs, 'running job')}" if jobs else ""


def _are(count: int) -> str:
    return "is" if count == 1 else "are"


def moment_text(at: float, now: float) -> str:
    """Return ``now``, ``at 12:34 (in 5 min)``, ``on 2027-01-20 at 12:34``, or that the time cannot be predicted."""
    if at - now > FAR_S:
        return "when jobs without a time limit have ended, which cannot be predicted"
    if at <= now + 1:
        return "now"
    clock = time.strftime("%H:%M", time.localtime(at))
    if at - now < _DAY_S:
        return f"at {clock} (in {span_text(at - now)})"
    return f"on {time.strftime('%Y-%m-%d', time.localtime(at))} at {clock}"
