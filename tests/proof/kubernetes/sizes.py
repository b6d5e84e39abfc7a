"""The points about elastic jobs: jobs share a pool, and the scaler changes their sizes.

A learner without GPUs counts as one GPU of the pool, so the cluster needs none. Checkpoints are in the proof's store.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from tests.proof.kubernetes.desk import POOL_GPUS, Desk
from tests.proof.kubernetes.room import await_
from tests.proof.kubernetes.values import Failed

LEARNERS = 2
"""Of each job, as submitted."""
SAMPLES = (12_000, 9_000, 6_000)
"""Samples of each job. One learner counts 40 per second."""
IN_PLACE = (15_000, 6000)
"""Samples of the job that shrinks in place, and of the job that arrives later."""
BATCH = 8
"""Batch of each learner."""
ELASTIC = (
    f"pool: proof, max_learners: {POOL_GPUS}, batch: {{min: {BATCH}, max: {BATCH * POOL_GPUS}, per_gpu_max: {BATCH}%s}}"
)
GROWS = f", elastic: {{{ELASTIC % ''}}}"
"""It begins with the least batch, so that it gains much by more learners."""
SHRINKS = f", elastic: {{{ELASTIC % f', start: {BATCH * POOL_GPUS}'}, in_place: true}}"
"""Each learner has the largest batch, so that half of them still have a permitted one together."""
LONGEST = 6
"""Maximum duration of all jobs together, as a multiple of the patience."""


def share_a_pool(desk: Desk) -> str:
    """The first job grows while it is alone. The others arrive one by one, so that it must shrink. All complete."""
    jobs: list[str] = []
    for samples in SAMPLES:
        command = f"exec python3 counting.py {samples} 0.2"
        jobs.append(desk.submit(desk.manifest(command, learners=LEARNERS, cpus=0.05, more=GROWS, with_store=True)))
        if len(jobs) == 1:
            await_(lambda: _has_grown(desk, jobs[0]), f"{jobs[0]} grows", desk.options.patience_s)
        desk.await_log(jobs[-1], "ffdl-throughput:")
    await_(lambda: all(desk.has_ended(one) for one in jobs), f"{jobs} end", LONGEST * desk.options.patience_s)
    sizes = [_sizes(desk, job_id, samples) for job_id, samples in zip(jobs, SAMPLES, strict=True)]
    changes = [later - earlier for one in sizes for earlier, later in pairwise(one)]
    if not (min(changes, default=0) < 0 < max(changes, default=0)):
        raise Failed(f"no job grew and shrank: their sizes were {sizes}")
    replayed = desk.site.run("scaler", "replay", "proof").strip()
    if "none differs" not in replayed:
        raise Failed(replayed)
    shown = ", ".join("-".join(map(str, one)) for one in sizes)
    return f"learners of the {len(jobs)} jobs over time: {shown}; {replayed}"


def shrink_in_place(desk: Desk) -> str:
    """Learners leave a job that has the whole pool, to make room for another job. Its attempt continues, and its Job
    has fewer pods."""
    samples, other_samples = IN_PLACE
    command = f"exec python3 counting.py {samples} 0.2 stay"
    first = desk.submit(desk.manifest(command, learners=POOL_GPUS, cpus=0.05, more=SHRINKS, with_store=True))
    desk.await_log(first, "ffdl-throughput:")
    command = f"exec python3 counting.py {other_samples} 0.2"
    other = desk.submit(desk.manifest(command, learners=POOL_GPUS // 2, cpus=0.05, more=GROWS, with_store=True))
    try:
        await_(lambda: desk.job(first)["attempts"][0]["resizes"], f"{first} shrinks", desk.options.patience_s)
    except Failed as late:
        raise Failed(f"{late}; its attempts are {desk.job(first)['attempts']}") from None
    left = desk.job(first)["attempts"][0]["resizes"][0]["learners"]
    spec = (desk.room.admin.get("Job", f"{first}-1") or {"spec": {}})["spec"]
    if (spec.get("completions"), spec.get("parallelism")) != (left, left):
        raise Failed(f"{first} has {left} learners, and its Job is {spec}")
    await_(lambda: all(map(desk.has_ended, (first, other))), "both end", LONGEST * desk.options.patience_s)
    desk.await_state(other, "COMPLETED")
    attempts = desk.await_state(first, "COMPLETED")["attempts"]
    log = desk.log(first)
    if len(attempts) != 1 or log.count("session ") != 1 or f"saved {samples}\n" not in log:
        raise Failed(f"{first} had the attempts {attempts}, and printed {log[-500:]!r}")
    return f"{first}: {POOL_GPUS} learners, then {left} in the same attempt and Job"


def _has_grown(desk: Desk, job_id: str) -> bool:
    return any(attempt["learners"] > LEARNERS for attempt in desk.job(job_id)["attempts"])


def _sizes(desk: Desk, job_id: str, samples: int) -> list[int]:
    """Return the sizes of the job's attempts. Raises Failed if training was lost or done twice, or if the number of
    pods was wrong."""
    job = desk.await_state(job_id, "COMPLETED")
    saved = 0
    for attempt in job["attempts"]:
        number, learners = attempt["number"], attempt["learners"]
        log = desk.log(job_id, number)
        for session in _sessions(log):
            if (session["after"], session["learners"]) != (saved, learners):
                raise Failed(f"attempt {number} of {job_id} with {learners} learners began as {session} after {saved}")
        saved = max((int(line.split()[1]) for line in log.splitlines() if line.startswith("saved ")), default=saved)
        spec = (desk.room.admin.get("Job", f"{job_id}-{number}") or {"spec": {}})["spec"]
        if (spec.get("completions"), spec.get("parallelism")) != (learners, learners):
            raise Failed(f"attempt {number} of {job_id} with {learners} learners had the Job {spec}")
    if saved != samples:
        raise Failed(f"{job_id} is complete, and saved {saved} of {samples} samples")
    return [attempt["learners"] for attempt in job["attempts"]]


def _sessions(log: str) -> Iterator[dict[str, Any]]:
    for line in log.splitlines():
        if line.startswith("session "):
            yield json.loads(line.removeprefix("session "))
