"""Implements the program `prolog`."""

from __future__ import annotations

import time
from typing import Mapping, Sequence

from . import (
    apptainer,
    boot,
    checks,
    destinations,
    epilog,
    forwarding,
    guard,
    hostlist,
    locks,
    mark,
    network,
    settings,
    tunnel,
    underlay,
)
from .commands import Trouble
from .layout import Job
from .settings import Settings


def main(argv: Sequence[str], environment: Mapping[str, str], began: float) -> int:
    """Make the job's network if it requests one. Print each step with the milliseconds since the start."""

    def after(step: str) -> None:
        print(f"{(time.monotonic() - began) * 1000:6.1f} ms  {step}", flush=True)

    try:
        site = settings.load()
        if len(argv) != 1:
            raise Trouble("the one argument is the job's comment; is prolog.d/50-ffdl of the same release?")
        work(argv[0], environment, site, after)
    except (Trouble, ValueError, OSError) as error:
        print(f"no network for this job: {' '.join(str(error).split())}", flush=True)
        return 1
    return 0


def work(comment: str, environment: Mapping[str, str], site: Settings, after: network.After) -> None:
    """Do the work of the prolog. If a step fails, remove the network and raise."""
    for text in boot.once(site):
        after(f"of an earlier boot: {text}")
    epilog.sweep(site)
    after("swept")
    looked = guard.reassert(site)
    for text in (*looked.again, *looked.gone):
        after(text)
    checks.refresh(site)
    after("capabilities")
    request = mark.read(comment, site.mark)
    if request is None:
        after("no network asked for")
        return
    job = job_of(environment, request.learners)
    with locks.held(job.job_id, site):
        site.job(job.job_id).mkdir(mode=0o755, exist_ok=True)
        left = network.remove(job.job_id, site)  # from an earlier start of the same job
        if left:
            raise Trouble(f"what an earlier start of this job left cannot be removed: {'; '.join(left)}")
        checks.look_at_ports(site)
        wrong = apptainer.missing(site) or [apptainer.refused(site, job.uid)]
        if any(wrong):
            raise Trouble("; ".join(wrong))
        targets = None
        if request.destinations:
            targets = destinations.find(request.destinations, site)
            forwarding.ensure(site)
            after("destinations")
        try:
            network.create(job, site, underlay.find(job, site, tunnel.overhead_bytes(site)), targets, after)
        except BaseException:
            network.remove(job.job_id, site)
            raise


def job_of(environment: Mapping[str, str], learners: int) -> Job:
    """Return the job from slurmd's variables. Raises Trouble if they are missing."""
    names = ("SLURM_JOB_ID", "SLURM_JOB_UID", "SLURMD_NODENAME")
    missing = [name for name in names if not environment.get(name)]
    listed = environment.get("SLURM_JOB_NODELIST") or environment.get("SLURM_NODELIST") or ""
    if missing or not listed:
        raise Trouble(
            f"slurmd did not give the prolog {', '.join([*missing, *([] if listed else ['SLURM_JOB_NODELIST'])])}"
        )
    nodes, name = hostlist.expand(listed), environment["SLURMD_NODENAME"]
    if name not in nodes:
        raise Trouble(f"this node is {name}, which is not in the job's nodes, {listed}")
    return Job(int(environment["SLURM_JOB_ID"]), int(environment["SLURM_JOB_UID"]), nodes, nodes.index(name), learners)
