"""Record whether the last write to the database succeeded."""

from __future__ import annotations

import threading
from collections.abc import Callable

from ffdl_batch.domain.daemon_health import DatabaseTrouble
from ffdl_batch.store.errors import ServerDiskRefuses, StoreError


class Health:
    """The health of one database. Safe in every thread."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._trouble: DatabaseTrouble | None = None
        self._kind: type[StoreError] | None = None
        self._needs_rows = False

    @property
    def trouble(self) -> DatabaseTrouble | None:
        """Why the last write failed; None if it succeeded."""
        return self._trouble

    def failed(self, error: StoreError) -> None:
        """Record that a write was refused."""
        with self._lock:
            known = self._trouble if self._kind is type(error) else None
            self._trouble = DatabaseTrouble(known.since if known is not None else self._now(), str(error))
            self._kind = type(error)
            self._needs_rows = isinstance(error, ServerDiskRefuses)

    def succeeded(self) -> None:
        """Record that rows were written. A transaction without rows proves nothing: a read-only disk accepts one."""
        with self._lock:
            self._trouble = None

    def answered(self) -> None:
        """Record that a server committed a transaction without rows. Only a refusal of its disk can still hold.

        A daemon may have nothing to write for hours if another one holds the leases.
        """
        with self._lock:
            if not self._needs_rows:
                self._trouble = None
