"""Check the evidence of the proof: nothing is lost or trained twice, and no GPU is idle for long."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from tests.cluster.rig.topology import COMPUTE_NODES
from tests.cluster.rig.topology import GPUS as NODE_GPUS
from tests.proof.elastic.decisions import wrong_decisions
from tests.proof.elastic.evidence import Allocation, Course, Gpu, Outage, Trained

UNTRAINED_LOSS = 6.0
"""Approximate loss before the first step."""
LOSS_TOLERANCE = 0.05 * UNTRAINED_LOSS
ROUND_S = 30.0
"""A scheduling round: the interval of the scaler, a halt with a checkpoint, and Slurm's next cycle. While a job waits,
no GPU may be idle for longer than this. No change of size may leave a job without GPUs for longer."""
RATIO = 0.9
"""Maximum mean completion time of elastic jobs, as a fraction of that of the same jobs with fixed sizes."""
SEEN_S = 5.0
"""The proof must have seen the GPUs of every allocation that lasts at least this long."""
ALL_GPUS: tuple[Gpu, ...] = tuple((node.name, number) for node in COMPUTE_NODES for number in range(NODE_GPUS))


def troubles(fixed: Course | None, elastic: Course) -> Iterator[str]:
    """Yield a sentence for each fault. `fixed` None = the jobs were not run with fixed sizes."""
    for one in (*(() if fixed is None else fixed.trained), *elastic.trained):
        yield from _of_training(one)
    if fixed is not None:
        yield from _beside(fixed, elastic)
    if not any(len({each.gpus for each in one.sessions}) > 1 for one in elastic.trained):
        yield "no job changed its size"
    if (idle := longest_idle(elastic)) > ROUND_S:
        yield f"a GPU was idle for {idle:.0f} s while an elastic job waited"
    for one in elastic.trained:
        for gap in changes(one, elastic.outages):
            if gap > ROUND_S:
                yield f"{one.job.name}: a change of size left it without GPUs for {gap:.0f} s"
    if not elastic.decisions:
        yield "the scaler recorded no decisions"
    yield from wrong_decisions(elastic.decisions)


def _beside(fixed: Course, elastic: Course) -> Iterator[str]:
    for same, one in zip(fixed.trained, elastic.trained, strict=True):
        if same.loss is not None and one.loss is not None and abs(same.loss - one.loss) > LOSS_TOLERANCE:
            yield f"{one.job.name}: the loss is {one.loss:.4f}, but {same.loss:.4f} with a fixed size"
    if (own := mean_s(elastic)) > RATIO * (other := mean_s(fixed)):
        yield f"mean completion {own:.0f} s is more than {RATIO:g} times the {other:.0f} s with fixed sizes"


def _of_training(one: Trained) -> Iterator[str]:
    name = one.job.name
    if one.state != "COMPLETED":
        yield f"{name}: the job is {one.state}, not COMPLETED: {one.why}"
    if one.loss is None:
        yield f"{name}: the job printed no loss"
    saved, saving = 0, 0
    for session in one.sessions:
        if session.after not in (saved, saving):
            yield f"{name}: attempt {session.attempt} started after sample {session.after}, but {saved} were saved"
        saved, saving = session.saved, session.saving
    if saved != one.samples:
        yield f"{name}: {saved} of {one.samples} samples were trained"
    for earlier, later in pairwise(_in_order(one)):
        if later.start < earlier.end:
            yield f"{name}: attempts {earlier.attempt} and {later.attempt} ran at the same time"
    if len({each.native for each in one.allocations}) != len({each.attempt for each in one.allocations}):
        yield f"{name}: an attempt was submitted twice"
    for each in one.allocations:
        if len(each.places) != each.gpus and each.end - each.start >= SEEN_S:
            yield f"{name}: attempt {each.attempt} had {each.gpus} GPUs, but Slurm listed {sorted(each.places)}"


def _in_order(one: Trained) -> list[Allocation]:
    return sorted(one.allocations, key=lambda each: each.start)


def changes(one: Trained, outages: Sequence[Outage] = ()) -> list[float]:
    """Return how many seconds the job had no GPUs during each change of size. Changes after an outage do not count, nor
    do those after which the scaler let the job wait."""
    return [
        later.start - earlier.end
        for earlier, later in pairwise(_in_order(one))
        if earlier.attempt not in one.stopped and not any(each.begin < later.start for each in outages)
    ]


def longest_idle(course: Course) -> float:
    """Return the longest time in seconds for which one GPU was free while a job waited, until a node lost its power.

    From then on, the pool has fewer GPUs than configured, and jobs avoid the failed node.
    """
    trained, longest = course.trained, 0.0
    known = {moment for one in trained for moment in _moments(one)} | {one.begin for one in course.outages}
    until = min((one.begin for one in course.outages), default=max(known))
    spans = [
        (begin, end)
        for begin, end in pairwise(sorted(known))
        if end <= until and any(_waits(one, (begin + end) / 2) for one in trained)
    ]
    for gpu in ALL_GPUS:
        uses = [each for one in trained for each in one.allocations if gpu in each.places]
        idle_from = idle_to = 0.0
        for begin, end in spans:
            if any(each.start < end and begin < each.end for each in uses):
                continue
            idle_from, idle_to = (idle_from if begin == idle_to else begin), end
            longest = max(longest, idle_to - idle_from)
    return longest


def _moments(one: Trained) -> Iterator[float]:
    yield from (one.submitted, one.ended)
    for each in one.allocations:
        yield from (each.start, each.end, each.end + ROUND_S)


def _waits(one: Trained, moment: float) -> bool:
    """Return whether the job waits for GPUs: it never had any, the scaler took them away, or a change of its size takes
    longer than a round. During a change, the GPUs that it will get next may be idle."""
    ordered = _in_order(one)
    earlier = [each for each in ordered if each.start <= moment]
    if moment < one.submitted or moment >= one.ended or any(moment < each.end for each in earlier):
        return False
    if not earlier:
        return True
    last = earlier[-1]
    return last is not ordered[-1] and (last.attempt in one.stopped or moment >= last.end + ROUND_S)


def took_s(one: Trained) -> float:
    """Return the seconds from submission to end."""
    return one.ended - one.submitted


def mean_s(course: Course) -> float:
    """Return the mean completion time in seconds."""
    return sum(map(took_s, course.trained)) / len(course.trained)


def job_lines(fixed: Course | None, elastic: Course) -> Iterator[str]:
    """Yield a line for each job."""
    for same, other in zip((fixed or elastic).trained, elastic.trained, strict=True):
        sizes = " ".join(f"{each.gpus}x{each.batch // each.gpus}" for each in other.sessions)
        beside = "" if fixed is None else f", {took_s(same):.0f} s fixed with {same.job.learners}"
        yield f"{other.job.name} {other.job.model}: {took_s(other):.0f} s elastic{beside}; GPUs x batch of one: {sizes}"


def line(fixed: Course | None, elastic: Course) -> str:
    """Return the summary of all jobs."""
    gaps = [gap for one in elastic.trained for gap in changes(one, elastic.outages)]
    means, idle = (
        " and ".join(
            f"{measure(course):.0f} s {kind}"
            for kind, course in (("elastic", elastic), ("fixed", fixed))
            if course is not None
        )
        for measure in (mean_s, longest_idle)
    )
    return (
        f"jobs {len(elastic.trained)} sessions {sum(len(one.sessions) for one in elastic.trained)} kills "
        f"{elastic.kills} of the daemon, {len(elastic.outages)} of nodes; mean completion {means}; longest change "
        f"{max(gaps, default=0.0):.0f} s; longest idle GPU while a job waited {idle}"
    )
