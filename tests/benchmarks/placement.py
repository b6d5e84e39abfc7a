"""Simulate two choices of a scheduler that the FfDL papers discuss: gang or per-pod placement, and pack or spread.

Nodes have four GPUs. `gangs`: many jobs of several learners arrive at once. `packing`: the arrivals and sizes of the
measured jobs of :mod:`tests.benchmarks.elastic`, drawn for 400 GPUs; jobs keep their requested size and start in the
order of submission. What is simulated is the rule alone, not Slurm's or Kubernetes' code.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ffdl_batch.elastic.measured import read_models, read_times
from tests.benchmarks.elastic import POOL, measured_sets, resampled
from tests.benchmarks.figures import Figure
from tests.benchmarks.knobs import Knobs
from tests.unit.elastic.recomputed import DATA

NODE_GPUS = POOL.node_gpus
GANG_NODES = 15
GANGS = ((50, 2), (50, 4), (25, 8))
"""Numbers of jobs, and of their learners; each learner has one GPU."""
PACKING_NODES = 100
PACKING_JOBS = (400, 450)
"""Fewer jobs for each GPU than in the measured sets, which ask for more GPU time than there is."""
LONG_S = 15 * 60.0
Choose = Callable[[Sequence[int], int], int | None]
"""Returns the node for a learner, from the numbers of free GPUs; None if no node has enough."""


@dataclass(frozen=True, slots=True)
class Job:
    """A job that keeps its GPUs until its end."""

    submitted_s: float
    learners: tuple[int, ...]
    """GPUs of each learner. A learner is on one node."""
    duration_s: float


def pack(free: Sequence[int], gpus: int) -> int | None:
    """Return the fullest node that has enough."""
    return min((node for node, left in enumerate(free) if left >= gpus), key=lambda node: free[node], default=None)


def spread(free: Sequence[int], gpus: int) -> int | None:
    """Return the emptiest node that has enough."""
    return max((node for node, left in enumerate(free) if left >= gpus), key=lambda node: free[node], default=None)


def place(free: list[int], learners: Sequence[int], choose: Choose) -> list[int] | None:
    """Take GPUs for all learners of a job and return their nodes, or take none."""
    nodes: list[int] = []
    for gpus in learners:
        node = choose(free, gpus)
        if node is None:
            for taken, back in zip(nodes, learners, strict=False):
                free[taken] += back
            return None
        free[node] -= gpus
        nodes.append(node)
    return nodes


# --------------------------------------------------------------------------------------------------------- gangs


def measure_gangs(knobs: Knobs) -> list[Figure]:
    """Return GPUs that jobs hold which cannot start, at the moment when nothing more fits; a sample for each order."""
    figures = []
    for jobs, learners in GANGS:
        what = f"{jobs} jobs of {learners} learners"
        for who, held_of in (("gang", held_by_gangs), ("pod by pod", held_by_pods)):
            found = [held_of(jobs, learners, random.Random(seed)) for seed in range(knobs.repeat)]
            stuck = 100 * sum(not started for _, started in found) / len(found)
            figures += [
                Figure("gangs", f"{what}: held by jobs that cannot start", who, "GPUs", [held for held, _ in found]),
                Figure("gangs", f"{what}: orders in which no job starts", who, "%", [stuck]),
            ]
    return figures


def held_by_pods(jobs: int, learners: int, chance: random.Random) -> tuple[int, int]:
    """Place single learners of all jobs in random order. Return held GPUs of incomplete jobs, and complete jobs."""
    free = [NODE_GPUS] * GANG_NODES
    placed = [0] * jobs
    pods = [job for job in range(jobs) for _ in range(learners)]
    chance.shuffle(pods)
    for job in pods:
        placed[job] += place(free, (1,), pack) is not None
    return _held(placed, learners)


def held_by_gangs(jobs: int, learners: int, chance: random.Random) -> tuple[int, int]:
    """The same, all learners of a job or none."""
    free = [NODE_GPUS] * GANG_NODES
    order = list(range(jobs))
    chance.shuffle(order)
    placed = [0] * jobs
    for job in order:
        placed[job] = len(place(free, (1,) * learners, pack) or ())
    return _held(placed, learners)


def _held(placed: Sequence[int], learners: int) -> tuple[int, int]:
    return sum(count for count in placed if count < learners), sum(count == learners for count in placed)


# ------------------------------------------------------------------------------------------------------- packing


def measure_packing(knobs: Knobs) -> list[Figure]:
    """Return the share of jobs that wait long, by packing, by spreading, and without any fragmentation."""
    ways: tuple[tuple[str, Choose, int], ...] = (
        ("pack", pack, PACKING_NODES),
        ("spread", spread, PACKING_NODES),
        ("one large node", pack, 1),
    )
    figures = []
    for count in PACKING_JOBS:
        sets = [drawn_jobs(count, seed) for seed in range(1, knobs.rounds + 1)]
        for who, choose, nodes in ways:
            free = [PACKING_NODES * NODE_GPUS // nodes] * nodes
            waits = [waits_of(jobs, list(free), choose) for jobs in sets]
            late = [100 * sum(wait > LONG_S for wait in some) / count for some in waits]
            figures += [
                Figure("packing", f"{count} jobs: they wait longer than 15 minutes", who, "%", late),
                Figure("packing", f"{count} jobs: mean wait", who, "s", [sum(some) / count for some in waits]),
            ]
    return figures


def drawn_jobs(count: int, seed: int) -> list[Job]:
    """Return jobs with the sizes, hours and durations of the measured ones."""
    truth = read_times(DATA / "throughput.csv")
    models = read_models(DATA / "convergence.csv", truth)
    pooled = [one for jobs in measured_sets(models, 0) for one in jobs.arrivals]
    return [
        Job(
            one.submitted_s,
            tuple(learners_of(one.gpus)),
            models[one.model].iterations[one.batch] * truth.step_s(one.model, one.gpus, one.batch),
        )
        for one in resampled(pooled, count, seed)
    ]


def learners_of(gpus: int) -> Iterator[int]:
    """Split a job into learners that fill nodes, and one for the rest."""
    for first in range(0, gpus, NODE_GPUS):
        yield min(NODE_GPUS, gpus - first)


def waits_of(jobs: Sequence[Job], free: list[int], choose: Choose) -> list[float]:
    """Return the wait of each job, in the order of submission. A job that does not fit blocks those behind it."""
    waits: list[float] = []
    waiting: deque[Job] = deque()
    ends: list[tuple[float, list[int], tuple[int, ...]]] = []
    arrivals = deque(jobs)
    while arrivals or waiting:
        now = min([*(one[0] for one in ends[:1]), *([arrivals[0].submitted_s] if arrivals else [])])
        while ends and ends[0][0] <= now:
            _, nodes, learners = heapq.heappop(ends)
            for node, gpus in zip(nodes, learners, strict=True):
                free[node] += gpus
        while arrivals and arrivals[0].submitted_s <= now:
            waiting.append(arrivals.popleft())
        while waiting and (taken := place(free, waiting[0].learners, choose)) is not None:
            job = waiting.popleft()
            waits.append(now - job.submitted_s)
            heapq.heappush(ends, (now + job.duration_s, taken, job.learners))
    return waits
