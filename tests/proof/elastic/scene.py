"""Runs the jobs of the proof on the real cluster, and collects what is left of them."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path

from ffdl_batch.host.fast_dataclass import dataclass
from tests.cluster.rig import Cluster
from tests.proof.chain import ProofError, until
from tests.proof.desk import Desk
from tests.proof.elastic.jobs import GPUS, JOBS, Job, manifest, model_files, read, samples_of

USER = "alice"
INTERVAL_S = 5
POOL = f"""
[elastic.pools.default]
gpus = {GPUS}
backend = "slurm"
interval_s = {INTERVAL_S}
min_between_s = 15
"""
SETTINGS = "fence_s = 10\nkill_wait_s = 5\n"
LONGEST_S = 900.0
"""How long the jobs may take altogether before the proof gives up."""
_SACCT = ("sacct", "-X", "--noheader", "--parsable2", "--format=JobName,Start,End,AllocTRES")


@dataclass(frozen=True, slots=True)
class Session:
    """One life of the first learner: the samples that it began after, and those of its last checkpoint."""

    attempt: int
    after: int
    saved: int
    gpus: int
    batch: int


@dataclass(frozen=True, slots=True)
class Allocation:
    """One allocation in Slurm's accounting. Times are seconds since the epoch."""

    attempt: int
    start: float
    end: float
    gpus: int


@dataclass(frozen=True, slots=True)
class Trained:
    """What is left of a job."""

    job: Job
    samples: int
    state: str
    submitted: float
    ended: float
    sessions: tuple[Session, ...]
    allocations: tuple[Allocation, ...]
    loss: float | None


def run_jobs(cluster: Cluster, *, elastic: bool, kills: int, seed: int, say: Callable[[str], None]) -> list[Trained]:
    """Submit the jobs at their times, and wait until all have ended."""
    kind = "elastic" if elastic else "fixed"
    times = read()
    with Desk(cluster, USER, f"proof-{kind}", "cli", settings=SETTINGS, site=POOL if elastic else "") as desk:
        learner = Path(__file__).with_name("learner.py").read_text(encoding="utf-8")
        model = {**model_files(times), "learner.py": learner}
        desk.write({f"{desk.base}/model/{name}": text for name, text in model.items()})
        desk.write({f"{desk.base}/{job.name}.yml": manifest(times, job, elastic=elastic) for job in JOBS})
        ids = _submit(desk, kills, seed, say)
        listed = {one["id"]: one for one in desk.jobs()}
        allocations = _allocations(desk)
        return [
            Trained(
                job,
                samples_of(times, job),
                listed[ids[job.name]]["state"],
                listed[ids[job.name]]["submitted_at"],
                listed[ids[job.name]]["ended_at"] or 0.0,
                tuple(_sessions(desk, ids[job.name])),
                tuple(one for token, one in allocations if token.rpartition("-")[0] == ids[job.name]),
                _loss(desk, ids[job.name]),
            )
            for job in JOBS
        ]


def _submit(desk: Desk, kills: int, seed: int, say: Callable[[str], None]) -> dict[str, str]:
    """Return the ids of the jobs by name, when all have ended. Kill the daemon so many times meanwhile."""
    chance = random.Random(seed)
    began, ids = time.monotonic(), dict[str, str]()
    coming = list(JOBS)
    next_kill = began + 20.0 if kills else float("inf")
    while True:
        now = time.monotonic()
        while coming and now - began >= coming[0].arrives_s:
            job = coming.pop(0)
            ids[job.name] = desk.run("ffdl-submit", "--parsable", f"{job.name}.yml", "model").stdout.strip()
        states = {one["id"]: one["state"] for one in desk.jobs()}
        if not coming and all(state in ("COMPLETED", "FAILED", "CANCELLED", "HALTED") for state in states.values()):
            return ids
        if now - began > LONGEST_S:
            raise ProofError(f"after {LONGEST_S:.0f} s the jobs are {states}")
        if kills and now >= next_kill:
            kills, next_kill = kills - 1, now + chance.uniform(5, 20)
            if (pid := desk.host_pid()) is not None:
                os.kill(pid, signal.SIGKILL)
                until(lambda: desk.host_pid() is None, "the end of the daemon", 60.0)
                say("daemon killed")
        time.sleep(1.0)


def _sessions(desk: Desk, job_id: str) -> Iterator[Session]:
    for number, lines in _logs(desk, job_id):
        begun: dict[str, int] = {}
        for line in lines:
            word, _, rest = line.partition(" ")
            if word == "session":
                if begun:
                    yield Session(number, **begun)
                given = json.loads(rest)
                begun = {
                    "after": given["after"],
                    "saved": given["after"],
                    "gpus": given["gpus"],
                    "batch": given["batch"],
                }
            elif word == "saved":
                begun["saved"] = int(rest)
        if begun:
            yield Session(number, **begun)


def _logs(desk: Desk, job_id: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the numbers of the attempts, and the lines of their first learners."""
    directory = desk.host_path(f"{desk.base}/jobs/jobs/{job_id}")
    names = (path.name.removeprefix("attempt-") for path in directory.glob("attempt-*"))
    for number in sorted(int(name) for name in names if name.isdigit()):
        log = directory / f"attempt-{number}" / "logs" / "learner-1" / "training-log.txt"
        if log.exists():
            yield number, log.read_text(encoding="utf-8").splitlines()


def _loss(desk: Desk, job_id: str) -> float | None:
    found = [line for _, lines in _logs(desk, job_id) for line in lines if line.startswith("loss ")]
    return float(found[-1].split()[1]) if found else None


def _allocations(desk: Desk) -> list[tuple[str, Allocation]]:
    """Return the names and the data of all allocations of the user that have ended."""
    found = []
    for line in desk.run(*_SACCT).stdout.splitlines():
        token, start, end, tres = line.split("|")
        gpus = next((int(one.split("=")[1]) for one in tres.split(",") if one.startswith("gres/gpu=")), 0)
        number = token.rpartition("-")[2]
        if start[:1].isdigit() and end[:1].isdigit() and number.isdigit():
            begin, ended = (datetime.fromisoformat(text).astimezone().timestamp() for text in (start, end))
            found.append((token, Allocation(int(number), begin, ended, gpus)))
    return found
