"""Incidents that end nothing: learners that hang, and learners that keep the others waiting. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from ffdl_batch.domain.events import Event, EventKind
from ffdl_batch.domain.incident import Evidence, Incident

HANG, STRAGGLER = "user.hang", "user.straggler"
SLOW = 1.5
"""A learner is a straggler that takes so many times the median of the others for a step."""
ALARMS = frozenset({EventKind.HANG, EventKind.PACE})


class _Pace(NamedTuple):
    step_s: float
    host: str


def alarms(job_id: str, attempt: int, events: Sequence[Event]) -> list[Incident]:
    """Those of an attempt's events, in their order. The same events, and some more, begin with the same incidents.

    A learner is called a straggler once. `lost_gpu_s` is 0: whether work is lost is told by the end.
    """
    found: list[Incident] = []
    hangs: Counter[int] = Counter()
    paces: dict[int, _Pace] = {}
    slow: set[int] = set()
    for event in events:
        learner = event.fields.get("learner_id")
        if event.kind not in ALARMS or not isinstance(learner, int):
            continue
        if event.kind is EventKind.HANG:
            hangs[learner] += 1
            found.append(_hang(job_id, attempt, event, learner, hangs[learner]))
            continue
        step_s = event.fields.get("step_s")
        if not isinstance(step_s, (int, float)) or step_s <= 0:
            continue
        paces[learner] = _Pace(float(step_s), str(event.fields.get("host") or ""))
        for one in sorted(paces.keys() - slow):
            if (usual := _usual(paces, one)) and paces[one].step_s > SLOW * usual:
                slow.add(one)
                found.append(_straggler(job_id, attempt, event.at, one, paces[one], usual))
    return found


def _usual(paces: dict[int, _Pace], learner: int) -> float:
    """The median of the others; 0 while nothing is known of any."""
    others = sorted(pace.step_s for other, pace in paces.items() if other != learner)
    return others[(len(others) - 1) // 2] if others else 0.0


def _hang(job_id: str, attempt: int, event: Event, learner: int, number: int) -> Incident:
    host, silent_s = str(event.fields.get("host") or ""), float(event.fields.get("silent_s") or 0.0)
    how = "and computes nothing" if event.fields.get("idle") else "though it computes, after steady signs before"
    message = f"learner {learner} on {host} gave no sign of life for {silent_s:.0f} s, {how}"
    source = f"learner-{learner}"
    stack = [line for line in str(event.fields.get("stack") or "").splitlines() if line.strip()]
    evidence = [Evidence("controller", message, event.at), *(Evidence(source, line, event.at) for line in stack)]
    if event.fields.get("file"):
        evidence.insert(1, Evidence("controller", f"all stacks: {event.fields['file']} in its $LOG_DIR", event.at))
    return Incident(
        job_id, attempt, f"hang-{learner}-{number}", HANG, event.at,
        message=message, nodes=(host,) if host else (), learner=learner, evidence=tuple(evidence),
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
