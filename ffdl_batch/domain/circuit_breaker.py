"""A circuit breaker: whether a backend that did not answer may be asked again. Pure: no clock, no lock, no thread.

While the circuit is closed, every caller may ask. The first failure opens it, and no caller asks during a pause that
grows with each failure in a row. After the pause exactly one caller asks; its result closes the circuit or opens it
again. A result of a request that was sent before the circuit last changed is ignored.
"""

from __future__ import annotations

import re
from dataclasses import replace

from ffdl_batch.host.fast_dataclass import dataclass

_LOG_AGAIN = 4
_KINDS = 8
"""How many causes of one outage are distinguished."""


@dataclass(frozen=True, slots=True)
class Permit:
    """Permission to ask; the caller returns it with the result."""

    change: int
    is_probe: bool = False


@dataclass(frozen=True, slots=True)
class Circuit:
    """The state of a circuit."""

    failures: int = 0
    """Failures in a row."""
    since: float | None = None
    """When these failures began, in seconds since the epoch; None = the circuit is closed."""
    cause: str = ""
    """Message of the last failure."""
    kinds: frozenset[str] = frozenset()
    """Messages of all these failures, without numbers."""
    again_at: float = 0.0
    """End of the pause, by a monotonic clock."""
    is_probed: bool = False
    """Whether a caller is asking at this moment whether the outage is over."""
    changes: int = 0
    """Number of openings, probes and closings."""
    is_missing: bool = False
    """Whether the last failure was that this machine has no such scheduler."""

    @property
    def is_open(self) -> bool:
        """Whether the last known result is a failure."""
        return self.since is not None

    def may_ask(self, now: float) -> bool:
        """Return whether a caller who asked now would get a permit."""
        return not self.is_open or (now >= self.again_at and not self.is_probed)

    def ask(self, now: float) -> tuple[Circuit, Permit | None]:
        """Return the circuit after a caller asked for a permit, and the permit; None = not now."""
        if not self.is_open:
            return self, Permit(self.changes)
        if not self.may_ask(now):
            return self, None
        probed = replace(self, is_probed=True, changes=self.changes + 1)
        return probed, Permit(probed.changes, is_probe=True)

    def succeeded(self, permit: Permit) -> Circuit:
        """Return the circuit after an answer."""
        if permit.change != self.changes or not self.is_open:
            return self
        return Circuit(changes=self.changes + 1)

    def failed(self, permit: Permit, cause: str, at: float, again_at: float, *, is_missing: bool = False) -> Circuit:
        """Return the circuit after a failure at `at` (seconds since the epoch); no caller asks before `again_at`."""
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
        """Return the circuit after a result that shows nothing about the backend: as if the caller had not asked."""
        return replace(self, is_probed=False) if permit.is_probe and permit.change == self.changes else self

    def is_worth_logging(self, before: Circuit) -> bool:
        """Return whether the change from `before` is worth a line in a log: the first failure, a new cause (commands
        that fail in turn repeat their messages), the 4th, 16th, 64th ... failure in a row, and the first answer."""
        if not self.is_open or not before.is_open:
            return self.is_open != before.is_open
        if self.failures == before.failures:
            return False
        return self.kinds != before.kinds or _is_power(self.failures)

    def hurried(self) -> Circuit:
        """Return the circuit without its pause: there is a reason to ask again at once."""
        return replace(self, again_at=0.0)


def _kind(cause: str) -> str:
    """Return the cause without its numbers, so that other process ids, seconds and ports are no new cause."""
    return re.sub(r"\d+", "0", cause)


def _is_power(count: int) -> bool:
    while count > 1 and count % _LOG_AGAIN == 0:
        count //= _LOG_AGAIN
    return count == 1
