"""Decides whether the jobs that a job depends on have reached the required state.

The daemon waits for them, not the scheduler, because a job outlives its allocations: at its time limit, its native job
ends with success and the job continues in another one. So `afterok:training-…` in ``batch.dependency`` never reaches
the scheduler. The dependent job stays PENDING until the condition is true. It is submitted with the rest of the text,
the scheduler's own ids.

The syntax is that of sbatch(1): `,` joins conditions that must all be true, `?` joins alternatives; each id of a list
is a condition of its own; `after` refers to the start, and its ids may have a suffix `+minutes`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum

from ffdl_batch.domain.findings import Finding, Severity
from ffdl_batch.domain.job.job import HistoryEntry, Job, JobId
from ffdl_batch.domain.job.spec import JobSpec
from ffdl_batch.domain.job_state import JobState
from ffdl_batch.domain.scheduler_errors import InvalidRequest
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.services.job_storage import JobStorage

SHOWN = 3
"""How many jobs a sentence names."""

_TRAINING = re.compile(r"(training-[0-9a-z]{9})(?:\+(\d{1,6}))?", re.ASCII)
_ENDED = frozenset({JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED})
"""Without HALTED, because a halted job may be resumed."""
_BEGUN = _ENDED | {JobState.PROCESSING, JobState.STORING}
_BEGIN = "after"
_TRUE_WHEN: Mapping[str, frozenset[JobState]] = {
    "afterok": frozenset({JobState.COMPLETED}),
    # For job arrays it refers to the task with the same index; a job is no array.
    "aftercorr": frozenset({JobState.COMPLETED}),
    "afternotok": frozenset({JobState.FAILED, JobState.CANCELLED}),
    "afterany": _ENDED,
}


@dataclass(frozen=True, slots=True)
class Condition:
    """A job, and the state that it must reach."""

    kind: str
    training: JobId
    delay_s: int = 0
    """Seconds after its start (`after` only)."""

    @property
    def is_about_begin(self) -> bool:
        """Whether the job must only have started."""
        return self.kind == _BEGIN

    def __str__(self) -> str:
        return f"{self.kind}:{self.training}" + (f"+{self.delay_s // 60}" if self.delay_s else "")


@dataclass(frozen=True, slots=True)
class Dependency:
    """A parsed dependency."""

    conditions: tuple[Condition, ...] = ()
    """The conditions on jobs of this daemon."""
    rest: str = ""
    """The conditions that the scheduler checks."""
    any_of: bool = False
    """Whether one condition is enough. There is no rest then."""


class Outlook(StrEnum):
    """Whether a condition is true or can become true."""

    NEVER = "never"
    OPEN = "open"
    TRUE = "true"


@dataclass(frozen=True, slots=True)
class Standing:
    """The state of a condition or a whole dependency."""

    outlook: Outlook
    sentence: str = ""
    again_s: float | None = None
    """The seconds until it becomes true (None: not by time alone)."""


def strip_dependency(storage: JobStorage, spec: JobSpec) -> JobSpec:
    """Return `spec` for the scheduler, without the conditions that the daemon checks.

    Ids of jobs that this owner does not have stay, and the scheduler's adapter refuses them. Raises InvalidRequest for
    conditions that are not supported.
    """
    text = spec.batch.dependency
    known = own_trainings(storage, [text])
    if not known:
        return spec
    return replace(spec, batch=replace(spec.batch, dependency=read_dependency(text, known).rest))


def own_trainings(storage: JobStorage, texts: Iterable[str]) -> dict[str, Job]:
    """Return the owner's jobs that `texts` name, on any backend, by id. One query."""
    named = {found[1] for text in texts for found in _TRAINING.finditer(text)}
    jobs = storage.store.get_many(named) if named else []
    return {job.id: job for job in jobs if job.uid == storage.uid}


def read_dependency(text: str, known: Collection[str]) -> Dependency:
    """Parse `text`, whose syntax the manifest's parser has checked. `known` are the jobs that may be named.

    Raises InvalidRequest.
    """
    conditions: list[Condition] = []
    rest: list[str] = []
    for item in re.split(r"[,?]", text):
        kind, colon, ids = item.partition(":")
        others: list[str] = []
        for one in ids.split(":"):
            found = _TRAINING.fullmatch(one)
            if found is not None and found[1] in known:
                conditions.append(_condition(kind, found[1], found[2]))
            else:
                others.append(one)
        if others:
            rest.append(f"{kind}{colon}{':'.join(others)}")
    any_of = "?" in text
    if conditions and any_of:
        _check_alternatives(text, rest)
    return Dependency(tuple(conditions), ("?" if any_of else ",").join(rest), any_of)


def _condition(kind: str, training: str, minutes: str | None) -> Condition:
    if kind != _BEGIN and kind not in _TRUE_WHEN:
        known = ", ".join(sorted([_BEGIN, *_TRUE_WHEN]))
        raise _refusal(f"{kind} cannot be said of {training}, which may go through several allocations", f"use {known}")
    if minutes is not None and kind != _BEGIN:
        cure = f"write {kind}:{training}, or after:{training}+{minutes}"
        raise _refusal(f"{kind}:{training}+{minutes}: minutes can be counted from a begin only", cure)
    return Condition(kind, JobId(training), 60 * int(minutes or 0))


def _check_alternatives(text: str, rest: Sequence[str]) -> None:
    if "," in text:
        raise _refusal(f"{text} has both ',' (all of them) and '?' (one is enough)", "use one of them, as in sbatch")
    if rest:
        message = f"{rest[0]} is not a training of yours, but other alternatives are"
        cure = "join by '?' either trainings only, or the scheduler's own jobs only"
        raise _refusal(message, cure)


def _refusal(message: str, cure: str) -> InvalidRequest:
    finding = Finding(Severity.ERROR, message, cure, path="batch.dependency", code="C101")
    return InvalidRequest(f"{finding.path}: {message} ({cure})", (finding,))


def judge_dependency(
    dependency: Dependency, trainings: Mapping[str, Job], begins: Mapping[str, float], now: float
) -> Standing:
    """Decide whether the job may be submitted. `begins` has the start times of the jobs that have started."""
    each = [_judge(one, trainings[one.training], begins.get(one.training), now) for one in dependency.conditions]
    order = (Outlook.NEVER, Outlook.OPEN, Outlook.TRUE)
    found = {one.outlook for one in each}
    outlook = next((o for o in (reversed(order) if dependency.any_of else order) if o in found), Outlook.TRUE)
    decisive = [one for one in each if one.outlook is outlook]
    sentences = list(dict.fromkeys(one.sentence for one in decisive if one.sentence))
    sentence = ", ".join(sentences[:SHOWN]) + (f" and {len(sentences) - SHOWN} more" if sentences[SHOWN:] else "")
    times = [one.again_s for one in decisive if one.again_s is not None]
    return Standing(outlook, sentence, min(times, default=None))


def begin_of(history: Iterable[HistoryEntry]) -> float | None:
    """Return when a job started: when its learners first ran, or it ended before that. None: not yet."""
    return next((entry.at for entry in history if entry.state in _BEGUN), None)


def _judge(condition: Condition, job: Job, begun_at: float | None, now: float) -> Standing:
    state = job.state
    if condition.is_about_begin:
        return _judge_begin(condition, job, begun_at, now)
    if state in _TRUE_WHEN[condition.kind]:
        return Standing(Outlook.TRUE)
    if state in _ENDED:
        code = f" ({job.error_code})" if state is JobState.FAILED else ""
        return Standing(Outlook.NEVER, f"{condition} cannot come true, {job.id} is {state}{code}")
    return Standing(Outlook.OPEN, _description(job))


def _judge_begin(condition: Condition, job: Job, begun_at: float | None, now: float) -> Standing:
    if begun_at is None:
        return Standing(Outlook.OPEN, _description(job))
    left = begun_at + condition.delay_s - now
    if left <= 0:
        return Standing(Outlook.TRUE)
    return Standing(Outlook.OPEN, f"{job.id} began less than {condition.delay_s // 60} min ago", left)


def _description(job: Job) -> str:
    return f"{job.id} is {job.state}" + (" and may be resumed" if job.state is JobState.HALTED else "")


MAX_NAMED = 100_000
"""The maximum number of conditions of one request: jobs multiplied by elements."""

_ARRAY = re.compile(r"(array-[0-9a-z]{9})(?:_(\d{1,7}))?", re.ASCII)
_SAME_INDEX = "aftercorr"


class ArrayDependency:
    """Replaces the arrays in a dependency by their elements. Raises InvalidRequest."""

    def __init__(self, storage: JobStorage, text: str, elements: int) -> None:
        """`elements` is how many jobs have this dependency."""
        self._text = text
        self._arrays: dict[str, dict[int, Job]] = {}
        for array in dict.fromkeys(match[1] for match in _ARRAY.finditer(text)):
            jobs = [job for job in storage.store.elements_of(array) if job.uid == storage.uid]
            if not jobs:
                raise _refusal(f"there is no array {array} to depend on", "ffdl list shows your jobs")
            self._arrays[array] = {job.spec.element.index: job for job in jobs if job.spec.element is not None}
        named = sum(len(jobs) for jobs in self._arrays.values())
        if named * elements > MAX_NAMED and elements > 1 and _SAME_INDEX not in text:
            message = f"{elements} elements would wait for {named} trainings each"
            raise _refusal(message, f"let each wait for one, with {_SAME_INDEX}, or depend from a single job")

    def of(self, index: int | None) -> str:
        """Return the text for the element with this index (None: the job is not an element)."""
        if not self._arrays:
            return self._text
        return "".join(
            piece if piece in ",?" else self._item(piece, index) for piece in re.split(r"([,?])", self._text) if piece
        )

    def _item(self, item: str, index: int | None) -> str:
        kind, colon, ids = item.partition(":")
        if not colon:
            return item
        return f"{kind}:{':'.join(self._named(kind, one, index) for one in ids.split(':'))}"

    def _named(self, kind: str, text: str, index: int | None) -> str:
        found, plus, minutes = text.partition("+")
        match = _ARRAY.fullmatch(found)
        if match is None:
            return text
        elements = self._arrays[match[1]]
        wanted = int(match[2]) if match[2] is not None else index if kind == _SAME_INDEX else None
        if wanted is not None and wanted not in elements:
            raise _refusal(f"{match[1]} has no element {wanted} to depend on", "name one that it has")
        jobs = elements.values() if wanted is None else (elements[wanted],)
        return ":".join(f"{job.id}{plus}{minutes}" for job in jobs)
