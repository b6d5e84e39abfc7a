"""Finds incidents that end nothing: learners that hang or make the others wait, and warnings of idle GPUs. Pure."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import NamedTuple

from ffdl_batch.domain.incidents.incident import Evidence, Incident
from ffdl_batch.domain.outcome.controller_events import Event, EventKind, is_time

HANG, STRAGGLER, IDLE_GPUS = "user.hang", "user.straggler", "user.idle_gpus"
SLOW = 1.5
"""A learner is a straggler if a step takes more than so many times the median of the others."""
ALARMS = frozenset({EventKind.HANG, EventKind.PACE, EventKind.IDLE})


class _Pace(NamedTuple):
    step_s: float
    host: str


def alarms(job_id: str, attempt: int, events: Sequence[Event]) -> list[Incident]:
    """Return the incidents in an attempt's events, in their order. The same events with more after them begin with the
    same incidents.

    A learner is reported as a straggler once. Learners that are silent at the same time are one incident, of the
    learner that was reported first. `lost_gpu_s` is 0: whether work is lost depends on the end.
    """
    found: list[Incident] = []
    hangs, idles, still_until = 0, 0, -math.inf
    paces: dict[int, _Pace] = {}
    slow: set[int] = set()
    for event in events:
        learner = event.fields.get("learner_id")
        if event.kind is EventKind.IDLE and event.fields.get("message") != "":
            idles += 1
            found.append(_idle(job_id, attempt, event, idles))
        if event.kind not in ALARMS or not isinstance(learner, int):
            continue
        if event.kind is EventKind.HANG:
            is_another = event.at - _number(event, "silent_s") >= still_until
            still_until = max(still_until, event.at)
            if is_another:
                hangs += 1
                found.append(_hang(job_id, attempt, event, learner, hangs))
            continue
        step_s = _number(event, "step_s")
        if step_s <= 0 or not event.fields.get("steady", True):
            paces.pop(learner, None)
            continue
        paces[learner] = _Pace(step_s, str(event.fields.get("host") or ""))
        for one in sorted(paces.keys() - slow):
            if (usual := _usual(paces, one)) and paces[one].step_s > SLOW * usual:
                slow.add(one)
                found.append(_straggler(job_id, attempt, event.at, one, paces[one], usual))
    return found


def _number(event: Event, field: str) -> float:
    """Return the field, or 0 if it is no finite number: users can write these files."""
    value = event.fields.get(field)
    return float(value) if isinstance(value, (int, float)) and math.isfinite(value) else 0.0


def _usual(paces: dict[int, _Pace], learner: int) -> float:
    """Return the median of the others; 0 while no step of theirs is known."""
    others = sorted(pace.step_s for other, pace in paces.items() if other != learner)
    return others[(len(others) - 1) // 2] if others else 0.0


IDLE_WARNING = "idle GPUs: "


def idle_warning(events: Sequence[Event]) -> str:
    """Return the warning of a running attempt whose GPUs are idle now; "" if there is none. If GPUs of several nodes
    are idle, the warning is about the node that will end the job first."""
    last = {event.source: event for event in events if event.kind is EventKind.IDLE}
    idle = [event for event in last.values() if all(is_time(event.fields.get(name)) for name in ("since", "ends_at"))]
    if not idle:
        return ""
    first = min(idle, key=lambda event: _number(event, "ends_at"))
    since, until = (_moment(_number(first, name)) for name in ("since", "ends_at"))
    host = first.fields.get("host") or first.source
    return f"{IDLE_WARNING}on {host} since {since}; the job ends at {until} unless one is used (batch.idle)"


def _moment(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))


def _hang(job_id: str, attempt: int, event: Event, learner: int, number: int) -> Incident:
    host, silent_s = str(event.fields.get("host") or ""), _number(event, "silent_s")
    how = "and computes nothing" if event.fields.get("idle") else "though it computes, after steady signs before"
    message = f"learner {learner} on {host} gave no sign of life for {silent_s:.0f} s, {how}"
    source = f"learner-{learner}"
    stack = [line for line in str(event.fields.get("stack") or "").splitlines() if line.strip()]
    evidence = [Evidence("controller", message, event.at), *(Evidence(source, line, event.at) for line in stack)]
    if event.fields.get("file"):
        evidence.insert(1, Evidence("controller", f"all stacks: {event.fields['file']} in its $LOG_DIR", event.at))
    return Incident(
        job_id, attempt, f"hang-{number}", HANG, event.at,
        message=message, nodes=(host,) if host else (), learner=learner, evidence=tuple(evidence),
    )  # fmt: skip


def _idle(job_id: str, attempt: int, event: Event, number: int) -> Incident:
    host, message = str(event.fields.get("host") or ""), str(event.fields.get("message") or "GPUs are idle")
    return Incident(
        job_id, attempt, f"idle-{number}", IDLE_GPUS, event.at,
        message=message, nodes=(host,) if host else (), evidence=(Evidence("controller", message, event.at),),
    )  # fmt: skip


def _straggler(job_id: str, attempt: int, at: float, learner: int, pace: _Pace, usual: float) -> Incident:
    step_s, host = pace
    message = (
        f"learner {learner} on {host} takes {step_s:.3g} s a step, {step_s / usual:.1f} times as long as the others "
        f"({usual:.3g} s)"
    )
    return Incident(
        job_id, attempt, f"straggler-{learner}", STRAGGLER, at,
        message=message, nodes=(host,) if host else (), learner=learner,
        evidence=(Evidence("controller", message, at),),
    )  # fmt: skip
