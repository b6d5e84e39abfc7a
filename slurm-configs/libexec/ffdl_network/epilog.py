"""The programs `epilog` and `boot`: removing what is a job's, what ended jobs left, and what an earlier boot left."""

from __future__ import annotations

import contextlib
import sys
from typing import Mapping

from . import checks, network, settings, slots
from .commands import Trouble
from .settings import Settings

_SWEPT_MOST = 4
_SWEEP_PATIENCE_S = 0.5


def main(environment: Mapping[str, str]) -> int:
    """Remove all of a job; 1 when something is left. The sentence is for the system's log."""
    site = settings.load()
    job_id = int(environment["SLURM_JOB_ID"])
    with network.held(job_id, site):
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
        with contextlib.suppress(Trouble), network.held(int(number), site, wait_s=0):
            if not network.remove(int(number), site, _SWEEP_PATIENCE_S):
                network.forget(int(number), site)


def clean_node() -> int:
    """Remove everything of every job, whatever knows of it, and try anew what this node can do."""
    site = settings.load()
    jobs = set(slots.claims(site).values())
    jobs |= {int(path.name[4:]) for path in site.run.glob("job-*") if path.name[4:].isdigit()}
    status = 0
    for job_id in sorted(jobs):
        left = network.remove(job_id, site)
        if left:
            print(f"job {job_id}: {'; '.join(left)}", file=sys.stderr)
            status = 1
        else:
            network.forget(job_id, site)
    for name in network.tables(site):
        network.drop_table(name, site)
    checks.publish_items(site, checks.items(site))
    return status
