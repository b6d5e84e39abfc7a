"""The judge of the proof of resumption. Pure: it reads what learners logged, and believes the product's record of what
was lost only as far as it may.

A training is whole when its steps 1..N all ran, each session began where the last checkpoint before it was, and no step
ran twice, but for those behind the last checkpoint of an attempt whose record says that it ended without one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

_LINE = re.compile(r"(session|step|saved) (.+)")
UNPREPARED = frozenset({"node_failure", "preemption"})
"""Interruptions after which steps behind the last checkpoint may run again."""


@dataclass(frozen=True, slots=True)
class Session:
    """One life of the learner: it began with the step after `after`."""

    attempt: int
    after: int
    steps: tuple[int, ...] = ()
    saved: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Record:
    """What the product says of the end of one session; times are seconds since the epoch, None where something did not
    happen. `interruption` is "" where none is recorded."""

    attempt: int
    native_id: str
    interruption: str
    confirmed: bool
    took_s: float | None = None
    learning_at: float | None = None
    ended_at: float | None = None


@dataclass(frozen=True, slots=True)
class Remains:
    """What is left of the interrupted training. `records` has one for each of `sessions`, in order; `natives` are the
    ids that the product names for its attempts, `allocations` those that accounting has. `weights` are those of it and
    of the uninterrupted one, by array; `held` is what Slurm still holds for it or for nobody."""

    total: int
    sessions: Sequence[Session]
    records: Sequence[Record]
    expected: Sequence[str]
    natives: Sequence[str]
    allocations: frozenset[str]
    weights: Mapping[str, bytes]
    whole_weights: Mapping[str, bytes]
    state: str
    whole_state: str
    held: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Interruption:
    """One change from a session to the next."""

    attempt: int
    kind: str
    lost: int
    took_s: float | None
    gap_s: float | None


@dataclass(slots=True)
class Verdict:
    """What came out. It holds when there is no trouble."""

    interruptions: list[Interruption] = field(default_factory=list)
    troubles: list[str] = field(default_factory=list)

    @property
    def holds(self) -> bool:
        """Whether the proof succeeded."""
        return not self.troubles


def sessions_in(attempt: int, log: str) -> list[Session]:
    """The sessions that one attempt's log tells of, in order. A torn last line is left out."""
    found: list[Session] = []
    steps: list[int] = []
    saved: list[int] = []
    for line in log.split("\n")[:-1]:
        match = _LINE.fullmatch(line)
        if match is None:
            continue
        if match[1] == "session":
            steps, saved = [], []
            found.append(Session(attempt, int(json.loads(match[2])["after"])))
        elif found:
            (steps if match[1] == "step" else saved).append(int(match[2]))
            found[-1] = Session(attempt, found[-1].after, tuple(steps), tuple(saved))
    return found


def judge(remains: Remains) -> Verdict:
    """All that is wrong, and what each interruption cost."""
    verdict = Verdict()
    _judge_steps(remains, verdict)
    _judge_records(remains, verdict)
    _judge_weights(remains, verdict)
    verdict.troubles += [f"still held: {held}" for held in remains.held]
    return verdict


def _judge_steps(remains: Remains, verdict: Verdict) -> None:
    last_saved = 0
    for session in remains.sessions:
        name = f"attempt {session.attempt}"
        if session.after != last_saved:
            verdict.troubles.append(f"{name} began after step {session.after}, the last checkpoint was {last_saved}")
        if list(session.steps) != list(range(session.after + 1, session.after + 1 + len(session.steps))):
            verdict.troubles.append(f"{name} did not run its steps in order, each once")
        last_saved = session.saved[-1] if session.saved else last_saved
    pairs = pairwise(zip(remains.sessions, remains.records, strict=True))
    for (one, record), (following, then) in pairs:
        lost = max(0, last_step(one) - following.after)
        verdict.interruptions.append(_interruption(record, then, lost))
        if lost and (record.confirmed or record.interruption not in UNPREPARED):
            verdict.troubles.append(
                f"steps {following.after + 1} to {last_step(one)} ran in attempts {one.attempt} and "
                f"{following.attempt}, and no record says that they were lost: {record}"
            )
    ran = {step for session in remains.sessions for step in session.steps}
    if ran != set(range(1, remains.total + 1)):
        verdict.troubles.append(f"{len(ran)} different steps ran, not 1 to {remains.total}")


def last_step(session: Session) -> int:
    """The number of the last step that the session ran, or began after."""
    return session.steps[-1] if session.steps else session.after


def _interruption(record: Record, then: Record, lost: int) -> Interruption:
    ended_at, began_at = record.ended_at, then.learning_at
    gap_s = began_at - ended_at if began_at is not None and ended_at is not None else None
    return Interruption(record.attempt, record.interruption, lost, record.took_s if record.confirmed else None, gap_s)


def _judge_records(remains: Remains, verdict: Verdict) -> None:
    said = [record.interruption for record in remains.records if record.interruption]
    if said != list(remains.expected):
        verdict.troubles.append(f"the interruptions were {list(remains.expected)}, the record says {said}")
    for record in remains.records:
        if record.interruption == "timeout" and not record.confirmed:
            verdict.troubles.append(f"attempt {record.attempt} met its time limit without a confirmed checkpoint")
    if len(remains.sessions) < 3:
        verdict.troubles.append(f"{len(remains.sessions)} allocations prove nothing; three are needed at least")
    if frozenset(remains.natives) != remains.allocations or len(set(remains.natives)) != len(remains.natives):
        verdict.troubles.append(
            f"the attempts name {list(remains.natives)}, accounting knows {sorted(remains.allocations)}"
        )
    if (remains.state, remains.whole_state) != ("COMPLETED", "COMPLETED"):
        verdict.troubles.append(f"the training is {remains.state}, the uninterrupted one {remains.whole_state}")


def _judge_weights(remains: Remains, verdict: Verdict) -> None:
    if not remains.whole_weights or remains.weights.keys() != remains.whole_weights.keys():
        verdict.troubles.append(f"weights {sorted(remains.weights)} against {sorted(remains.whole_weights)}")
        return
    differing = [name for name, content in remains.weights.items() if content != remains.whole_weights[name]]
    if differing:
        verdict.troubles.append(f"weights differ from the uninterrupted run's: {', '.join(sorted(differing))}")
