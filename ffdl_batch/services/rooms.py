"""Whether a scheduler has room for one more job: limits of submission, as an account's, a QOS's or the whole queue's.

A job that is turned away for want of room waits as others do that were accepted; those like it wait behind it without
asking. Now and then one of them is tried, and sooner when a job of ours has ended.
"""

from __future__ import annotations

import secrets
import threading

from ffdl_batch.domain.breaker import Circuit, Permit, growing_pause
from ffdl_batch.domain.spec import JobSpec
from ffdl_batch.ports.clock import Clock

FIRST_PAUSE_S, LONGEST_PAUSE_S = 15.0, 300.0

_ROOM = Circuit()


class Rooms:
    """One per platform; lost at a restart without harm. Safe in every thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._full: dict[tuple[str, ...], Circuit] = {}

    @staticmethod
    def kind(backend: str, spec: JobSpec) -> tuple[str, ...]:
        """Jobs of one kind meet the same limits of submission: those of association, QOS and partition."""
        return backend, spec.batch.account, spec.batch.qos, spec.batch.partition

    def why_full(self, backend: str, spec: JobSpec) -> str:
        """Why the last job like this one was turned away; "" where none was, or one has been taken since."""
        return self._seen(backend, spec).cause

    def wait_s(self, backend: str, spec: JobSpec) -> float:
        """Seconds until the next job like this one is to be tried."""
        return max(0.0, self._seen(backend, spec).again_at - self._clock.monotonic())

    def turned_away(self, backend: str, spec: JobSpec, cause: str) -> None:
        """There is no room for this job. Those that were sent at the same time count as one."""
        with self._lock:
            kind, now = self.kind(backend, spec), self._clock.monotonic()
            room = self._full.get(kind, _ROOM)
            if room.may_ask(now):
                pause = growing_pause(room.failures + 1, FIRST_PAUSE_S, LONGEST_PAUSE_S, secrets.randbelow(1000) / 1000)
                self._full[kind] = room.failed(Permit(room.changes), cause, self._clock.now(), now + pause)

    def taken(self, backend: str, spec: JobSpec) -> None:
        """There was room for this job."""
        with self._lock:
            self._full.pop(self.kind(backend, spec), None)

    def made(self, backend: str) -> None:
        """A job of ours has ended: there may be room for another."""
        with self._lock:
            self._full = {kind: room.hurried() if kind[0] == backend else room for kind, room in self._full.items()}

    def _seen(self, backend: str, spec: JobSpec) -> Circuit:
        with self._lock:
            return self._full.get(self.kind(backend, spec), _ROOM)
