"""The program `epilog`: removing what is a job's; and what other ended jobs left."""

from __future__ import annotations

import contextlib
from typing import Mapping

from . import locks, network, settings
from .commands import Trouble
from .settings import Settings

_SWEPT_MOST = 4
_SWEEP_PATIENCE_S = 0.5


def main(environment: Mapping[str, str]) -> int:
    """Remove all of a job; 1 when something is left. The sentence is for the system's log."""
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
    """Take up what epilogs could not finish: the hook leaves `ended` in the directories of such jobs."""
    for mark in sorted(site.run.glob("job-*/ended"))[:_SWEPT_MOST]:
        number = mark.parent.name.partition("-")[2]
        if not number.isdigit():
            continue
        # Trouble: its epilog is at work.
        with contextlib.suppress(Trouble), locks.held(int(number), site, wait_s=0):
            # The same job may have been started again on this node meanwhile.
            if mark.exists() and not network.remove(int(number), site, _SWEEP_PATIENCE_S):
                network.forget(int(number), site)
