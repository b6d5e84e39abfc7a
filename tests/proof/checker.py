"""The judge of the proof. Pure, and independent of the product: it recomputes every value from the inputs itself."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tests.proof.workload import Task

ENDED = frozenset({"COMPLETED", "FAILED", "HALTED", "CANCELLED"})


@dataclass(frozen=True, slots=True)
class Outcome:
    """What is left of one job.

    `job_id` is "" where the submission was refused, `state` where the daemon knows no job. `executions` has a
    learner's number for each time that it ran, by its own record. `allocations` are the ids that accounting has for
    the job. `values` is what was stored, by learner.
    """

    task: Task
    job_id: str
    state: str
    executions: Sequence[int]
    allocations: frozenset[str]
    values: Mapping[int, Mapping[str, object]]


@dataclass(frozen=True, slots=True)
class Tally:
    """The counts; `troubles` say which job fell short, and how."""

    jobs: int
    completed: int
    lost: int
    doubled: int
    wrong: int
    troubles: tuple[str, ...] = ()

    @property
    def holds(self) -> bool:
        """Whether the proof succeeded."""
        return self.jobs > 0 and self.completed == self.jobs and not (self.lost or self.doubled or self.wrong)

    def line(self, late_s: float) -> str:
        """The one line."""
        return (
            f"jobs {self.jobs} COMPLETED {self.completed} lost {self.lost} doubled {self.doubled} "
            f"wrong {self.wrong} slowest state seen late by {late_s:.1f} s"
        )


@dataclass(slots=True)
class _Counts:
    completed: int = 0
    lost: int = 0
    doubled: int = 0
    wrong: int = 0
    troubles: list[str] = field(default_factory=list)


def expected(task: Task) -> dict[int, dict[str, object]]:
    """What each learner must have stored, by its number."""
    numbers = [int(line) for line in task.numbers.split()]
    digest = hashlib.sha256(task.numbers.encode()).hexdigest()
    return {
        learner: {
            "squares": sum(number * number for number in numbers[learner - 1 :: task.learners]),
            "sha256": digest,
            "gpus": task.gpus,
        }
        for learner in range(1, task.learners + 1)
    }


def judge(outcomes: Sequence[Outcome]) -> Tally:
    """Count. A job is lost that was refused, is unknown, has not ended, or "completed" without having run."""
    counts = _Counts()
    ids = Counter(outcome.job_id for outcome in outcomes if outcome.job_id)
    for outcome in outcomes:
        name = f"{outcome.task.name} ({outcome.job_id or 'refused'})"
        counts.completed += outcome.state == "COMPLETED"
        for kind, trouble in (
            ("lost", _why_lost(outcome, ids[outcome.job_id])),
            ("doubled", _why_doubled(outcome)),
            ("wrong", _why_wrong(outcome)),
        ):
            if trouble:
                setattr(counts, kind, getattr(counts, kind) + 1)
                counts.troubles.append(f"{name} is {kind}: {trouble}")
        if outcome.state in ENDED and outcome.state != "COMPLETED":
            counts.troubles.append(f"{name} ended as {outcome.state}")
    return Tally(len(outcomes), counts.completed, counts.lost, counts.doubled, counts.wrong, tuple(counts.troubles))


def _why_lost(outcome: Outcome, jobs_of_this_id: int) -> str:
    missing = set(range(1, outcome.task.learners + 1)) - set(outcome.executions)
    if not outcome.job_id:
        return "the submission was refused"
    if jobs_of_this_id > 1:
        return "another submission was answered with the same id"
    if not outcome.state:
        return "the daemon does not know it"
    if outcome.state not in ENDED:
        return f"it is still {outcome.state}"
    if outcome.state == "COMPLETED" and missing:
        return f"learners {sorted(missing)} left no record of an execution"
    return ""


def _why_doubled(outcome: Outcome) -> str:
    times = Counter(outcome.executions)
    if any(count > 1 for count in times.values()):
        return f"executions by learner: {dict(times)}"
    return f"allocations {', '.join(sorted(outcome.allocations))}" if len(outcome.allocations) > 1 else ""


def _why_wrong(outcome: Outcome) -> str:
    if outcome.state != "COMPLETED":
        return ""
    right = expected(outcome.task)
    stored = {learner: dict(value) for learner, value in outcome.values.items()}
    return "" if stored == right else f"stored {stored}, right is {right}"


@dataclass(frozen=True, slots=True)
class Late:
    """How late one state was seen."""

    seconds: float
    job_id: str = ""
    state: str = ""


def slowest(happened: Mapping[tuple[str, str], float], seen: Mapping[tuple[str, str], float]) -> Late:
    """The state that a client could see last after it happened. Keys are (job id, state), values times.

    A state that was never seen does not count: listings may jump over short states.
    """
    delays = [Late(seen[key] - at, *key) for key, at in happened.items() if key in seen]
    return max(delays, key=lambda late: late.seconds, default=Late(0.0))
