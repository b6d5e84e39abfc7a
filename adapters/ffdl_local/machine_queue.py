"""The machine's queue: first come, first served. Standard library only.

A slot is a file that its user locks (flock), so a slot is free when its user has died. The file has the token of its
last user. There are as many job slots as jobs may run at once, and one slot for each GPU. A waiting job holds a ticket,
which is named by its arrival time. Only the oldest living ticket may take slots, so no job overtakes a big job.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from dataclasses import field
from pathlib import Path

from ffdl_batch.host.fast_dataclass import dataclass


@dataclass
class Slots:
    """What one job holds. `gpus` are the numbers of its GPUs."""

    descriptors: list[int] = field(default_factory=list)
    gpus: list[int] = field(default_factory=list)

    def release(self) -> None:
        """Give everything back."""
        while self.descriptors:
            os.close(self.descriptors.pop())


class Queue:
    """The queue in `directory`, as one waiting job sees it."""

    def __init__(self, directory: Path, token: str) -> None:
        """Nothing is touched yet."""
        self._directory = directory
        self._token = token
        self._ticket: Path | None = None
        self._held = -1

    def enter(self) -> None:
        """Draw a ticket. Raises OSError."""
        tickets = self._directory / "queue"
        tickets.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Locked under a name that is not read, so that no reader finds a ticket without its holder.
        hidden = tickets / f".{self._token}.{os.getpid()}"
        self._held = os.open(hidden, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._held, fcntl.LOCK_EX)
            self._ticket = hidden.rename(tickets / f"{time.time_ns():020d}-{self._token}")
        except OSError:
            os.close(self._held)
            raise

    def leave(self) -> None:
        """Hand the ticket back. If it cannot be removed now, the process that finds it without a holder removes it."""
        if self._ticket is not None:
            with contextlib.suppress(OSError):
                self._ticket.unlink(missing_ok=True)
            os.close(self._held)
            self._ticket = None

    def try_take(self, jobs: int, gpus: int, machine_gpus: int) -> Slots | None:
        """One of `jobs` job slots and `gpus` of the machine's, if it is our turn and they are free."""
        if self._first() != self._ticket:
            return None
        slots, complete = Slots(), False
        try:
            complete = self._take("job", jobs, 1, slots) and (not gpus or self._take("gpu", machine_gpus, gpus, slots))
        finally:
            if not complete:
                slots.release()
        if not complete:
            return None
        self.leave()
        return slots

    def _first(self) -> Path | None:
        for ticket in sorted((self._directory / "queue").glob("[0-9]*")):
            if ticket == self._ticket:
                return ticket
            descriptor = _lock(ticket, create=False)
            if descriptor is None:
                return ticket
            os.close(descriptor)  # its holder is dead
            ticket.unlink(missing_ok=True)
        return None

    def _take(self, kind: str, there: int, wanted: int, slots: Slots) -> bool:
        taken = 0
        for number in range(there):
            descriptor = _lock(self._directory / f"{kind}-{number}", create=True)
            if descriptor is None:
                continue
            slots.descriptors.append(descriptor)
            self._sign(descriptor)
            if kind == "gpu":
                slots.gpus.append(number)
            taken += 1
            if taken == wanted:
                return True
        return False

    def _sign(self, slot: int) -> None:
        """Write the token into a slot that is held, for `ffdl why`. On a full disk the job runs without it."""
        with contextlib.suppress(OSError):
            os.ftruncate(slot, 0)
            os.pwrite(slot, self._token.encode(), 0)


def _lock(path: Path, create: bool) -> int | None:
    """Return a descriptor that holds the lock on `path`; None if another process holds it, or if the file is gone and
    `create` is false."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0), 0o600)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor
