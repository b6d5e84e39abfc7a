"""Whose turn it is, where one of several daemons on a database may do something: the holder of a named lease."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ffdl_batch.ports.clock import Clock
from ffdl_batch.store import Store


def _forget_nothing() -> None:
    """For those who remember nothing that another daemon's turn could have made wrong."""


@dataclass(frozen=True, slots=True)
class Leases:
    """How this daemon leases rows and named tasks: as `owner`, the same after each restart, for `seconds`."""

    store: Store
    clock: Clock
    owner: str
    seconds: float


class LeaderLease:
    """This daemon's part in the lease `name`. `taken` is called when it has become this daemon's turn: another's may
    have come before, so what was remembered of the last one is out of date."""

    def __init__(self, leases: Leases, name: str, taken: Callable[[], None] = _forget_nothing) -> None:
        self._leases, self._name, self._taken = leases, name, taken
        self._token: str | None = None
        self._renewed_at = 0.0

    @property
    def is_ours(self) -> bool:
        """Whether it was this daemon's turn when :meth:`take` was called last."""
        return self._token is not None

    def take(self) -> bool:
        """Whether it is this daemon's turn, for three quarters of the lease's time at least. Raises StoreError.

        The lease is renewed when a quarter of it is over, and not each time: a renewal is a durable write.
        """
        store, seconds = self._leases.store, self._leases.seconds
        now = self._leases.clock.monotonic()
        if self._token is not None and now - self._renewed_at < seconds / 4:
            return True
        if self._token is not None and not store.renew_lease(self._name, self._token, seconds):
            self._token = None
        if self._token is None:
            self._token = store.acquire_lease(self._name, self._leases.owner, seconds)
            if self._token is not None:
                self._taken()
        self._renewed_at = now
        return self._token is not None

    def end(self) -> None:
        """Give the lease back, so that another daemon goes on at once. Raises StoreError."""
        token, self._token = self._token, None
        if token is not None:
            self._leases.store.release_lease(self._name, token)
