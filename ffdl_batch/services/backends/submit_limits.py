"""Decides when refused jobs may be submitted again, for limits of submission and for unknown refusals.

A limit of submission, of an account, a QOS or the whole queue, delays all jobs that meet it. From time to time one of
them is tried, and earlier if a job of ours has ended. Any other refusal delays only its own job or array. If such a
refusal repeats unchanged, the job ends. If the scheduler refuses other jobs with the same message and accepts none, the
cause is not the job, and all of them wait.

A submission without an answer delays its own job, too. The delay is long if the scheduler answered other requests
meanwhile, because then the job may be the cause.
"""

from __future__ import annotations

import secrets
import threading
from collections import Counter
from dataclasses import field, replace
from enum import Enum

from ffdl_batch.domain.circuit_breaker import Circuit, Permit
from ffdl_batch.domain.job.job import Job
from ffdl_batch.domain.scheduler_errors import NotTaken, NotUnderstood, TooMany
from ffdl_batch.host.backoff import growing_pause
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.ports.clock import Clock

FIRST_PAUSE_S, LONGEST_PAUSE_S = 15.0, 300.0
REFUSALS, REFUSED_S = 5, 15 * 60.0
"""A job ends if its refusal repeats unchanged at least this often and for this long."""
APART_S = 2.0
"""Average seconds between submissions while all jobs are refused."""
AFTER_NO_ANSWER_S, LONGEST_OUTAGE_PAUSE_S = 2.0, 30.0
"""Average seconds before a submission without an answer is repeated: after the first, and at most during an outage."""

_FORGOTTEN_S = 2 * LONGEST_PAUSE_S
"""Seconds after which a refusal is forgotten: a job that still waits would have been tried again by then."""
_ALL_WAIT = "; other jobs are refused with the same message and none is accepted, so all of them wait"
_OPEN = Circuit()
_Key = tuple[str, ...]


class Refusal(Enum):
    """What a refusal means for its job."""

    WAITS = "it waits"
    ALL_WAIT = "it waits, as all jobs that are refused with the same message do"
    IS_OVER = "it is over"


@dataclass(slots=True)
class _Refused:
    """A refused job or array: `count` times in a row with the same message, since `since` (monotonic)."""

    kind: _Key
    may_end: bool = False
    count: int = 0
    since: float = 0.0
    circuit: Circuit = field(default_factory=Circuit)


@dataclass(frozen=True, slots=True)
class _Unanswered:
    """A job whose last `count` submissions had no answer, the last one `at` (monotonic)."""

    count: int = 0
    at: float = 0.0


class SubmitLimits:
    """One per daemon; lost at a restart without harm. Safe in every thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._full: dict[_Key, Circuit] = {}
        self._refused: dict[_Key, _Refused] = {}
        self._alike = Counter[tuple[_Key, str]]()
        self._taken_at: dict[_Key, float] = {}
        self._unanswered: dict[_Key, _Unanswered] = {}

    def waits_for(self, job: Job) -> _Key:
        """Return a key for the cause that delays the job. Jobs with the same key are tried one at a time."""
        with self._lock:
            kind = _kind(job)
            return kind if kind in self._full else _own(job)

    def why_full(self, job: Job) -> str:
        """Return why the job must wait; "" if it may be submitted."""
        with self._lock:
            full, own = self._full.get(_kind(job)), self._refused.get(_own(job))
            refusal = self._judge(own) if own is not None else Refusal.IS_OVER
            if full is not None:
                return full.cause
            if own is None or refusal is Refusal.IS_OVER:
                return ""
            return own.circuit.cause + (_ALL_WAIT if refusal is Refusal.ALL_WAIT else "")

    def wait_s(self, job: Job, *, alone: bool = False) -> float:
        """Return the seconds until the next such job may be tried. `alone`: count only refusals of this job itself."""
        with self._lock:
            own = self._refused.get(_own(job))
            seen = [own.circuit] if own is not None and self._judge(own) is not Refusal.IS_OVER else []
            if not alone and (full := self._full.get(_kind(job))) is not None:
                seen.append(full)
        return max([0.0, *(one.again_at - self._clock.monotonic() for one in seen)])

    def refuses_all(self, backend: str) -> str:
        """Return the backend's message if it refuses several jobs with that message and accepts none; "" otherwise."""
        with self._lock:
            refused = [one for one in self._refused.values() if one.kind[0] == backend and one.circuit.is_open]
            return next((one.circuit.cause for one in refused if self._judge(one) is Refusal.ALL_WAIT), "")

    def turned_away(self, job: Job, error: NotTaken) -> Refusal:
        """Note that the job was refused. Jobs that were submitted together count as one."""
        with self._lock:
            now = self._clock.monotonic()
            if isinstance(error, TooMany):
                kind = _kind(job)
                self._full[kind] = self._fail(self._full.get(kind, _OPEN), str(error), now)
                return Refusal.WAITS
            return self._refuse(job, error, now)

    def unanswered(self, job: Job, answered_at: float) -> float:
        """Note that a submission of the job had no answer. Return the seconds until it is repeated. `answered_at` is
        when the scheduler last answered any request (monotonic)."""
        with self._lock:
            now = self._clock.monotonic()
            self._unanswered = {key: one for key, one in self._unanswered.items() if now < one.at + _FORGOTTEN_S}
            before = self._unanswered.get(_own(job), _Unanswered())
            self._unanswered[_own(job)] = _Unanswered(before.count + 1, now)
        is_alone = before.count > 0 and answered_at >= before.at
        longest_s = LONGEST_PAUSE_S if is_alone else LONGEST_OUTAGE_PAUSE_S
        return spread_pause(before.count + 1, AFTER_NO_ANSWER_S, longest_s)

    def count_unanswered(self, job: Job) -> int:
        """Return how many submissions of the job in a row had no answer."""
        with self._lock:
            return self._unanswered.get(_own(job), _Unanswered()).count

    def taken(self, job: Job) -> None:
        """Note that the job was accepted. Jobs that waited because all were refused may be tried at once."""
        with self._lock:
            kind = _kind(job)
            self._full.pop(kind, None)
            self._unanswered.pop(_own(job), None)
            for one in self._refused.values():
                if one.kind == kind and self._judge(one) is Refusal.ALL_WAIT:
                    self._hurry(one)
            if self._refused.pop(_own(job), None) is not None:
                self._count()
            self._taken_at[kind] = self._clock.monotonic()

    def made(self, backend: str) -> None:
        """Note that a job of ours has ended, so that the limit may allow another."""
        with self._lock:
            self._full = {kind: one.hurried() if kind[0] == backend else one for kind, one in self._full.items()}

    def answers(self, backend: str) -> None:
        """Note that the backend answers again. Refusals during the outage may have had the same cause."""
        self.made(backend)
        with self._lock:
            for one in self._refused.values():
                if one.kind[0] == backend:
                    self._hurry(one)

    def _refuse(self, job: Job, error: NotTaken, now: float) -> Refusal:
        """Note one refusal. The lock is held."""
        self._refused = {key: one for key, one in self._refused.items() if now < one.circuit.again_at + _FORGOTTEN_S}
        own = self._refused.setdefault(_own(job), _Refused(_kind(job)))
        if own.circuit.may_ask(now):
            if own.circuit.cause != str(error):
                own.count, own.since = 0, now
            own.count, own.may_end = own.count + 1, isinstance(error, NotUnderstood)
            own.circuit = self._fail(own.circuit, str(error), now, APART_S * len(self._refused))
            self._count()
            if self._judge(own) is Refusal.ALL_WAIT:  # the cause is not the job, so this refusal does not count
                own.count, own.since = 1, now
        return self._judge(own)

    def _hurry(self, own: _Refused) -> None:
        """Let the job be tried at once. The lock is held."""
        own.circuit = replace(own.circuit, again_at=min(own.circuit.again_at, self._clock.monotonic()))

    def _count(self) -> None:
        """Count the jobs of a kind that are refused with the same message. The lock is held."""
        self._alike = Counter((one.kind, one.circuit.cause) for one in self._refused.values())

    def _judge(self, own: _Refused) -> Refusal:
        """Return what the refusals so far mean. The lock is held."""
        accepted = self._taken_at.get(own.kind)
        if (accepted is None or accepted < own.since) and self._alike[own.kind, own.circuit.cause] > 1:
            return Refusal.ALL_WAIT
        repeats = own.count >= REFUSALS and self._clock.monotonic() - own.since >= REFUSED_S
        return Refusal.IS_OVER if own.may_end and repeats else Refusal.WAITS

    def _fail(self, circuit: Circuit, cause: str, now: float, least_s: float = 0.0) -> Circuit:
        if not circuit.may_ask(now):
            return circuit
        pause = spread_pause(circuit.failures + 1, FIRST_PAUSE_S, LONGEST_PAUSE_S)
        return circuit.failed(Permit(circuit.changes), cause, self._clock.now(), now + max(pause, least_s))


def spread_pause(failures: int, first_s: float, longest_s: float) -> float:
    """Return a growing pause that differs between jobs and daemons."""
    return growing_pause(failures, first_s, longest_s, secrets.randbelow(1_000_000) / 1_000_000)


def _kind(job: Job) -> _Key:
    """Return the kind of the job. Jobs of one kind meet the same limits of association, QOS and partition."""
    batch = job.effective_spec.batch
    return job.backend, batch.account, batch.qos, batch.partition


def _own(job: Job) -> _Key:
    """Return the key of the job or its array. Elements of an array differ only in values of variables, so a refusal of
    one applies to all."""
    element = job.spec.element
    return job.backend, job.id if element is None else element.array
