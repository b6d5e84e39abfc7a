"""The real ffdl-submitd with one thing replaced: its scheduler lives in memory. Run as a module, as the daemon is.

The scheduler keeps no jobs over a restart of the daemon, which then find themselves unknown: never ended.
With TEST_BECOME_UID the daemon is that user's: its real uid is theirs. Its effective uid stays root's, because the
interpreter may lie where only root can read it. With TEST_OBSERVE_S the scheduler takes so long for each answer about
jobs.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Collection, Mapping

from ffdl_batch.config import Settings
from ffdl_batch.daemon.main import main
from ffdl_batch.daemon.platform import Platform, open_platform
from ffdl_batch.domain.outcome.observation import EndCause, NativeId, Observation
from ffdl_slurm.gateways.command_runner import compare_cluster
from tests.fakes.scheduler import FakeScheduler


class ObedientScheduler(FakeScheduler):
    """Cancels and withdraws at once what it is told to. Its cluster is the one that Slurm's commands would choose."""

    def compare_cluster(self, shell: Mapping[str, str]) -> tuple[str, str]:
        return compare_cluster(shell, os.environ)

    def observe(self, ids: Collection[NativeId]) -> Mapping[NativeId, Observation]:
        time.sleep(float(os.environ.get("TEST_OBSERVE_S", "0")))
        return super().observe(ids)

    def cancel(self, native_id: NativeId) -> None:
        super().cancel(native_id)
        self.end(native_id, EndCause.CANCELLED, 1.0, started=None)

    def withdraw(self, native_id: NativeId) -> None:
        super().withdraw(native_id)
        self.end(native_id, EndCause.CANCELLED, 1.0, started=None)


def opener(settings: Settings) -> Platform:
    """The platform of this installation with the fake scheduler in it."""
    platform = open_platform(settings)
    platform.adapters.use("fake", ObedientScheduler())
    return platform


if __name__ == "__main__":
    if "TEST_BECOME_UID" in os.environ:
        os.setreuid(int(os.environ["TEST_BECOME_UID"]), 0)
    sys.exit(main(opener=opener))
