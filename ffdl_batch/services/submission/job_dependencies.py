"""Trainings that a job waits for. The platform waits, not the scheduler, because a training outlives its allocations.

A training that goes on at its time limit ends its scheduler's job with success and continues in another one. So
`afterok:training-…` in ``batch.dependency`` never reaches the scheduler: the job stays PENDING until the training
itself has ended, and is sent with what is left of the text, which are the scheduler's own ids.

What the words mean is sbatch(1)'s: `,` joins conditions that must all come true, `?` those of which one is enough; each
id of a list is a condition of its own; `after` is about the begin, and its ids may be followed by `+minutes`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from ffdl_batch.domain.findings import Finding, Severity
from ffdl_batch.domain.job.job import HistoryEntry, Job, JobId
from ffdl_batch.domain.job.spec import JobSpec
from ffdl_batch.domain.job_state import JobState
from ffdl_batch.domain.scheduler_errors import InvalidRequest
from ffdl_batch.services.job_storage import JobStorage

SHOWN = 3
"""How many trainings a sentence names."""

_TRAINING = re.compile(r"(training-[0-9a-z]{9})(?:\+(\d{1,6}))?", re.ASCII)
_ENDED = frozenset({JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED})
"""HALTED is not among them: a halted training may be resumed."""
_BEGUN = _ENDED | {JobState.PROCESSING, JobState.STORING}
_BEGIN = "after"
_TRUE_WHEN: Mapping[str, frozenset[JobState]] = {
    "afterok": frozenset({JobState.COMPLETED}),
    # Of a job array it is about the task of the same number; a training is no array.
    "aftercorr": frozenset({JobState.COMPLETED}),
    "afternotok": frozenset({JobState.FAILED, JobState.CANCELLED}),
    "afterany": _ENDED,
}


@dataclass(frozen=True, slots=True)
class Condition:
    """One training, and what has to become of it. `delay_s` counts from its begin (`after` only)."""

    kind: str
    training: JobId
    delay_s: int = 0

    @property
    def is_about_begin(self) -> bool:
        """Whether the training need not end."""
        return self.kind == _BEGIN

    def __str__(self) -> str:
        return f"{self.kind}:{self.training}" + (f"+{self.delay_s // 60}" if self.delay_s else "")


@dataclass(frozen=True, slots=True)
class Dependency:
    """A text taken apart: the `conditions` on trainings, and the `rest`, which is the scheduler's business.

    `any_of`: one condition is enough; then there is no rest.
    """

    conditions: tuple[Condition, ...] = ()
    rest: str = ""
    any_of: bool = False


class Outlook(StrEnum):
    """What can still become of a condition."""

    NEVER = "never"
    OPEN = "open"
    TRUE = "true"


@dataclass(frozen=True, slots=True)
class Standing:
    """How it stands with a condition or a whole dependency. `again_s`: it comes true after so many seconds (None =
    not by time alone)."""

    outlook: Outlook
    sentence: str = ""
    again_s: float | None = None


def strip_dependency(storage: JobStorage, spec: JobSpec) -> JobSpec:
    """`spec` as the scheduler gets it: without the trainings that the platform waits for.

    Ids that are no trainings of this owner stay, for the scheduler's adapter to refuse. Raises InvalidRequest for what
    cannot be waited for.
    """
    text = spec.batch.dependency
    known = own_trainings(storage, [text])
    if not known:
        return spec
    return replace(spec, batch=replace(spec.batch, dependency=read_dependency(text, known).rest))


def own_trainings(storage: JobStorage, texts: Iterable[str]) -> dict[str, Job]:
    """The owner's trainings that `texts` name, on whatever backend, by id; one query for all of them."""
    named = {found[1] for text in texts for found in _TRAINING.finditer(text)}
    jobs = storage.store.get_many(named) if named else []
    return {job.id: job for job in jobs if job.uid == storage.uid}


def read_dependency(text: str, known: Collection[str]) -> Dependency:
    """`text` (whose form the manifest's reader has checked) taken apart; `known` are trainings that one can wait for.

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
        message = f"{rest[0]} is no training of yours, and other alternatives are"
        cure = "join by '?' either trainings only, or the scheduler's own jobs only"
        raise _refusal(message, cure)


def _refusal(message: str, cure: str) -> InvalidRequest:
    finding = Finding(Severity.ERROR, message, cure, path="batch.dependency", code="C101")
    return InvalidRequest(f"{finding.path}: {message} ({cure})", (finding,))


def judge_dependency(
    dependency: Dependency, trainings: Mapping[str, Job], begins: Mapping[str, float], now: float
) -> Standing:
    """Whether the job may be sent. `begins` has the time of those trainings that have begun."""
    each = [_judge(one, trainings[one.training], begins.get(one.training), now) for one in dependency.conditions]
    order = (Outlook.NEVER, Outlook.OPEN, Outlook.TRUE)
    found = {one.outlook for one in each}
    outlook = next((o for o in (reversed(order) if dependency.any_of else order) if o in found), Outlook.TRUE)
    decisive = [one for one in each if one.outlook is outlook]
    said = list(dict.fromkeys(one.sentence for one in decisive if one.sentence))
    sentence = ", ".join(said[:SHOWN]) + (f" and {len(said) - SHOWN} more" if said[SHOWN:] else "")
    times = [one.again_s for one in decisive if one.again_s is not None]
    return Standing(outlook, sentence, min(times, default=None))


def begin_of(history: Iterable[HistoryEntry]) -> float | None:
    """When a training began: its learners ran for the first time, or it ended without that; None = not yet."""
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
"""Conditions of one request: so many trainings, for so many elements."""

_ARRAY = re.compile(r"(array-[0-9a-z]{9})(?:_(\d{1,7}))?", re.ASCII)
_SAME_INDEX = "aftercorr"


class ArrayDependency:
    """A dependency's text with the arrays of this owner that it names. Raises InvalidRequest."""

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
        """The text for the element of this index (None = a job of no array)."""
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
