"""Who a process is: its number together with its start time, because numbers are used again."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Process:
    """One process of this machine, as recorded when it was known to be ours."""

    pid: int
    start_ticks: int

    @classmethod
    def of(cls, pid: int) -> Process | None:
        """The process that has this number now; None if none has."""
        try:
            text = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            return None
        fields = text.rpartition(")")[2].split()  # the name before it may hold blanks and brackets
        return None if fields[0] in "ZX" else cls(pid, int(fields[19]))

    @classmethod
    def current(cls) -> Process:
        """This process."""
        me = cls.of(os.getpid())
        assert me is not None
        return me

    def alive(self) -> bool:
        """Whether it still runs, and not another one under its number."""
        return Process.of(self.pid) == self

    def kill(self) -> None:
        """SIGKILL, if it is still the same process."""
        self.send(signal.SIGKILL)

    def send(self, number: signal.Signals) -> None:
        """A signal, if it is still the same process."""
        if self.alive():
            try:
                os.kill(self.pid, number)
            except ProcessLookupError:
                return


def wait_gone(processes: list[Process], timeout_s: float) -> bool:
    """Wait until none is alive; False when some still are."""
    deadline = time.monotonic() + timeout_s
    while any(process.alive() for process in processes):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True
