"""Whether the database takes what is written, as far as those who wrote last know."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from ffdl_batch.store.errors import DatabaseGone, ServerDiskRefuses, StoreError


@dataclass(frozen=True, slots=True)
class Trouble:
    """Nothing could be written `since` then; `sentence` says why, and what to do. `holds_last_copy`: what this process
    has open is nowhere else."""

    since: float
    sentence: str
    holds_last_copy: bool = False


class Health:
    """Of one database. Safe in every thread."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._trouble: Trouble | None = None
        self._kind: type[StoreError] | None = None
        self._needs_rows = False

    @property
    def trouble(self) -> Trouble | None:
        """None = what was written last was taken."""
        return self._trouble

    def failed(self, error: StoreError) -> None:
        """A write was refused."""
        with self._lock:
            known = self._trouble if self._kind is type(error) else None  # another cause is another trouble
            gone = isinstance(error, DatabaseGone) and error.holds_last_copy
            self._trouble = Trouble(known.since if known is not None else self._now(), str(error), gone)
            self._kind = type(error)
            self._needs_rows = isinstance(error, ServerDiskRefuses)

    def succeeded(self) -> None:
        """Rows were written, durably. A transaction that wrote none proves nothing: a read-only disk takes it, too."""
        with self._lock:
            self._trouble = None

    def answered(self) -> None:
        """A server took a transaction, with rows or without: all is well but for its disk. A daemon of several may have
        nothing to write for hours."""
        with self._lock:
            if not self._needs_rows:
                self._trouble = None
