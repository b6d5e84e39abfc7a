"""Whether jobs that were refused may be submitted again: limits of submission, and refusals that nobody understands.

A limit of submission, as an account's, a QOS's or the whole queue's, holds all jobs that meet it; now and then one of
them is tried, and sooner when a job of ours has ended. Any other refusal holds its own job alone, or its own array. If
it repeats unchanged, the job is over, unless the scheduler refuses others in the same words and accepts none: then the
cause is not the job, and all of them wait.
"""

from __future__ import annotations

import secrets
import threading
from collections import Counter
from dataclasses import dataclass, field, replace
from enum import Enum

from ffdl_batch.domain.breaker import Circuit, Permit, growing_pause
from ffdl_batch.domain.job import Job
from ffdl_batch.ports.clock import Clock
from ffdl_batch.ports.scheduler import NotTaken, NotUnderstood, TooMany

FIRST_PAUSE_S, LONGEST_PAUSE_S = 15.0, 300.0
REFUSALS, REFUSED_S = 5, 15 * 60.0
"""A refusal that repeats unchanged at least so often and for so long ends its job."""
APART_S = 2.0
"""Between the submissions of jobs that are all refused, on average."""

_FORGOTTEN_S = 2 * LONGEST_PAUSE_S
"""A job that still waited would have been tried again by then."""
_ALL_WAIT = "; other jobs are refused in the same words and none is accepted, so all of them wait"
_ROOM = Circuit()
_Key = tuple[str, ...]


class Refusal(Enum):
    """What a refusal means for its job."""

    WAITS = "it waits"
    ALL_WAIT = "it waits as all others that are refused in the same words do"
    IS_OVER = "it is over"


@dataclass(slots=True)
class _Refused:
    """A job or an array that is refused: `count` times in a row in the same words, since `since` (monotonic)."""

    kind: _Key
    may_end: bool = False
    count: int = 0
    since: float = 0.0
    circuit: Circuit = field(default_factory=Circuit)


class Rooms:
    """One per platform; lost at a restart without harm. Safe in every thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._full: dict[_Key, Circuit] = {}
        self._refused: dict[_Key, _Refused] = {}
        self._alike = Counter[tuple[_Key, str]]()
        self._taken_at: dict[_Key, float] = {}

    def waits_for(self, job: Job) -> _Key:
        """What holds the job: jobs of which this is the same are tried one at a time."""
        with self._lock:
            kind = _kind(job)
            return kind if kind in self._full else _own(job)

    def why_full(self, job: Job) -> str:
        """Why the job has to wait; "" if it may be submitted."""
        with self._lock:
            full, own = self._full.get(_kind(job)), self._refused.get(_own(job))
            refusal = self._judge(own) if own is not None else Refusal.IS_OVER
            if full is not None:
                return full.cause
            if own is None or refusal is Refusal.IS_OVER:
                return ""
            return own.circuit.cause + (_ALL_WAIT if refusal is Refusal.ALL_WAIT else "")

    def wait_s(self, job: Job, *, alone: bool = False) -> float:
        """Seconds until the next job like this one is to be tried; `alone`: because this job itself was refused."""
        with self._lock:
            own = self._refused.get(_own(job))
            seen = [own.circuit] if own is not None and self._judge(own) is not Refusal.IS_OVER else []
            if not alone and (full := self._full.get(_kind(job))) is not None:
                seen.append(full)
        return max([0.0, *(one.again_at - self._clock.monotonic() for one in seen)])

    def refuses_all(self, backend: str) -> str:
        """What the backend prints while it refuses several jobs in the same words and accepts none; "" otherwise."""
        with self._lock:
            refused = [one for one in self._refused.values() if one.kind[0] == backend and one.circuit.is_open]
            return next((one.circuit.cause for one in refused if self._judge(one) is Refusal.ALL_WAIT), "")

    def turned_away(self, job: Job, error: NotTaken) -> Refusal:
        """Note that the job was refused. Jobs that were sent at the same time count as one."""
        with self._lock:
            now = self._clock.monotonic()
            if isinstance(error, TooMany):
                kind = _kind(job)
                self._full[kind] = self._fail(self._full.get(kind, _ROOM), str(error), now)
                return Refusal.WAITS
            return self._refuse(job, error, now)

    def taken(self, job: Job) -> None:
        """The job was accepted. Those that waited because all were refused may be tried at once."""
        with self._lock:
            kind = _kind(job)
            self._full.pop(kind, None)
            for one in self._refused.values():
                if one.kind == kind and self._judge(one) is Refusal.ALL_WAIT:
                    self._hurry(one)
            if self._refused.pop(_own(job), None) is not None:
                self._count()
            self._taken_at[kind] = self._clock.monotonic()

    def made(self, backend: str) -> None:
        """A job of ours has ended: there may be room for another."""
        with self._lock:
            self._full = {kind: room.hurried() if kind[0] == backend else room for kind, room in self._full.items()}

    def answers(self, backend: str) -> None:
        """The backend answers again: what was refused meanwhile may have had the same cause."""
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
            if self._judge(own) is Refusal.ALL_WAIT:  # the cause is not the job, so this counts for nothing
                own.count, own.since = 1, now
        return self._judge(own)

    def _hurry(self, own: _Refused) -> None:
        """Let the job be tried at once. The lock is held."""
        own.circuit = replace(own.circuit, again_at=min(own.circuit.again_at, self._clock.monotonic()))

    def _count(self) -> None:
        """Count the jobs of a kind that are refused in the same words. The lock is held."""
        self._alike = Counter((one.kind, one.circuit.cause) for one in self._refused.values())

    def _judge(self, own: _Refused) -> Refusal:
        """What the refusals so far mean. The lock is held."""
        accepted = self._taken_at.get(own.kind)
        if (accepted is None or accepted < own.since) and self._alike[own.kind, own.circuit.cause] > 1:
            return Refusal.ALL_WAIT
        repeats = own.count >= REFUSALS and self._clock.monotonic() - own.since >= REFUSED_S
        return Refusal.IS_OVER if own.may_end and repeats else Refusal.WAITS

    def _fail(self, room: Circuit, cause: str, now: float, least_s: float = 0.0) -> Circuit:
        if not room.may_ask(now):
            return room
        pause = growing_pause(room.failures + 1, FIRST_PAUSE_S, LONGEST_PAUSE_S, secrets.randbelow(1000) / 1000)
        return room.failed(Permit(room.changes), cause, self._clock.now(), now + max(pause, least_s))


def _kind(job: Job) -> _Key:
    """Jobs of one kind meet the same limits of submission: those of association, QOS and partition."""
    batch = job.effective_spec.batch
    return job.backend, batch.account, batch.qos, batch.partition


def _own(job: Job) -> _Key:
    """Elements of an array differ in values of variables alone: what is refused of one is refused of all."""
    element = job.spec.element
    return job.backend, job.id if element is None else element.array
