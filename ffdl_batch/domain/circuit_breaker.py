"""A circuit breaker: whether somebody who did not answer may be asked again. Pure: no clock, no lock, no thread.

Closed, everybody may ask. The first failure opens it, and nobody asks during a pause that grows with each failure in a
row. When the pause is over, exactly one asks; what comes of that closes the circuit, or opens it again. What comes of a
question that was put before the circuit last changed says nothing new and changes nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

_LOG_AGAIN = 4
_KINDS = 8
"""So many causes of one outage are told apart."""


@dataclass(frozen=True, slots=True)
class Permit:
    """Leave to ask, to be given back with what came of it."""

    change: int
    is_probe: bool = False


@dataclass(frozen=True, slots=True)
class Circuit:
    """A circuit. `failures` counts in a row, `since` is when they began (seconds since the epoch), `cause` what the
    last one said, `kinds` what all of them did. `is_missing`: the last one was that there is nobody who could answer.
    `again_at` is when the pause ends, by a monotonic clock. `is_probed`: somebody asks at this moment whether all is
    well again. `changes` counts openings, probes and closings.
    """

    failures: int = 0
    since: float | None = None
    cause: str = ""
    kinds: frozenset[str] = frozenset()
    again_at: float = 0.0
    is_probed: bool = False
    changes: int = 0
    is_missing: bool = False

    @property
    def is_open(self) -> bool:
        """Whether the last that is known is a failure."""
        return self.since is not None

    def may_ask(self, now: float) -> bool:
        """Whether one who asked now would be let through."""
        return not self.is_open or (now >= self.again_at and not self.is_probed)

    def ask(self, now: float) -> tuple[Circuit, Permit | None]:
        """The circuit after somebody asked to be let through, and the leave to; None = not now."""
        if not self.is_open:
            return self, Permit(self.changes)
        if not self.may_ask(now):
            return self, None
        probed = replace(self, is_probed=True, changes=self.changes + 1)
        return probed, Permit(probed.changes, is_probe=True)

    def succeeded(self, permit: Permit) -> Circuit:
        """There was an answer."""
        if permit.change != self.changes or not self.is_open:
            return self
        return Circuit(changes=self.changes + 1)

    def failed(self, permit: Permit, cause: str, at: float, again_at: float, *, is_missing: bool = False) -> Circuit:
        """There was none, at `at` (seconds since the epoch); nobody asks before `again_at`."""
        if permit.change != self.changes:
            return self
        return Circuit(
            failures=self.failures + 1,
            since=at if self.since is None else self.since,
            cause=cause,
            kinds=self.kinds | {_kind(cause)} if len(self.kinds) < _KINDS else self.kinds,
            again_at=again_at,
            changes=self.changes + 1,
            is_missing=is_missing,
        )

    def returned(self, permit: Permit) -> Circuit:
        """What came of it says nothing about an answer: as if nobody had asked."""
        return replace(self, is_probed=False) if permit.is_probe and permit.change == self.changes else self

    def is_worth_logging(self, before: Circuit) -> bool:
        """Whether what came of a question is worth a line in a log, when the circuit was `before`: the first failure,
        another cause than all before (commands that fail in turn say the same in turn), now and then that it goes on
        (the 4th failure, the 16th, the 64th ...), the first answer."""
        if not self.is_open or not before.is_open:
            return self.is_open != before.is_open
        if self.failures == before.failures:
            return False
        return self.kinds != before.kinds or _is_power(self.failures)

    def hurried(self) -> Circuit:
        """There is reason to ask again at once."""
        return replace(self, again_at=0.0)


def _kind(cause: str) -> str:
    """The cause without its numbers: process ids, seconds and ports make no new one."""
    return re.sub(r"\d+", "0", cause)


def _is_power(count: int) -> bool:
    while count > 1 and count % _LOG_AGAIN == 0:
        count //= _LOG_AGAIN
    return count == 1
