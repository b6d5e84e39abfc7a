"""Implements the program `epilog`, which removes the network of a job. Also removes those that other epilogs left."""

from __future__ import annotations

import contextlib
from typing import Mapping

from . import locks, network, settings
from .commands import Trouble
from .settings import Settings

_SWEPT_MOST = 4
_SWEEP_PATIENCE_S = 0.5


def main(environment: Mapping[str, str]) -> int:
    """Remove everything of a job. If something remains, print a sentence for the system log and return 1."""
    try:
        return _remove(int(environment["SLURM_JOB_ID"]), settings.load())
    except (Trouble, ValueError, OSError) as error:
        print(" ".join(str(error).split()))
        return 1


def _remove(job_id: int, site: Settings) -> int:
    with locks.held(job_id, site):
        left = network.remove(job_id, site)
        if left:
            print("; ".join(left))
            return 1
        network.forget(job_id, site)
    return 0


def sweep(site: Settings) -> None:
    """Finish the work of earlier epilogs that failed. The hook leaves `ended` in the directories of such jobs."""
    for mark in sorted(site.run.glob("job-*/ended"))[:_SWEPT_MOST]:
        number = mark.parent.name.partition("-")[2]
        if not number.isdigit():
            continue
        # Trouble: its epilog is running.
        with contextlib.suppress(Trouble), locks.held(int(number), site, wait_s=0):
            # Meanwhile, the same job may have been started again on this node.
            if mark.exists() and not network.remove(int(number), site, _SWEEP_PATIENCE_S):
                network.forget(int(number), site)
