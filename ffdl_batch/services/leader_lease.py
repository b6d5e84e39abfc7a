"""Lets only one of several daemons that share a database do a task: the holder of a named lease."""

from __future__ import annotations

from collections.abc import Callable

from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.ports.clock import Clock
from ffdl_batch.store import NamedLease, Store


def _forget_nothing() -> None:
    """Do nothing: for tasks whose memory another daemon cannot make wrong."""


@dataclass(frozen=True, slots=True)
class Leases:
    """How this daemon leases rows and named tasks."""

    store: Store
    clock: Clock
    owner: str
    """The name of the daemon, the same after each restart."""
    seconds: float
    """How long a lease lasts."""


class LeaderLease:
    """Acquires and renews the lease `name`. `taken` is called when this daemon gets the lease. Another daemon may have
    held it before, so memories of the task are out of date."""

    def __init__(self, leases: Leases, name: str, taken: Callable[[], None] = _forget_nothing) -> None:
        self._leases, self._name, self._taken = leases, name, taken
        self._token: str | None = None
        self._renewed_at = 0.0

    @property
    def is_ours(self) -> bool:
        """Whether the last call of :meth:`take` found the lease held by this daemon."""
        return self._token is not None

    @property
    def named(self) -> NamedLease:
        """The lease, as writes of its holder are checked by it. Its token is "" if it is not ours."""
        return NamedLease(self._name, self._token or "")

    def take(self) -> bool:
        """Whether this daemon holds the lease, for at least three quarters of its time. Raises StoreError.

        The lease is renewed only when a quarter of it is over, because a renewal is a durable write.
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
        """Release the lease, so that another daemon can continue at once. Raises StoreError."""
        token, self._token = self._token, None
        if token is not None:
            self._leases.store.release_lease(self._name, token)
