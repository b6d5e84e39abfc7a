"""Judges the proof of elastic jobs by what the jobs left: nothing lost, nothing trained twice, no GPU idle for long."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from tests.proof.elastic.jobs import GPUS
from tests.proof.elastic.scene import Trained

UNTRAINED_LOSS = 6.0
"""About the loss before the first step."""
LOSS_TOLERANCE = 0.05 * UNTRAINED_LOSS
ROUND_S = 45.0
"""A scheduling round: the interval of the scaler, a halt with a checkpoint, and Slurm's next cycle."""


def troubles(fixed: Sequence[Trained], elastic: Sequence[Trained]) -> Iterator[str]:
    """Yield what is wrong, a sentence each."""
    for one in (*fixed, *elastic):
        yield from _of_training(one)
    for same, other in zip(fixed, elastic, strict=True):
        if same.loss is not None and other.loss is not None and abs(same.loss - other.loss) > LOSS_TOLERANCE:
            yield f"{other.job.name}: its loss is {other.loss:.4f}, and {same.loss:.4f} with a fixed size"
    if not any(len({each.gpus for each in one.sessions}) > 1 for one in elastic):
        yield "no job ever had two sizes"
    if (idle := longest_idle(elastic)) > ROUND_S:
        yield f"GPUs were idle for {idle:.0f} s while an elastic job waited"


def _of_training(one: Trained) -> Iterator[str]:
    name = one.job.name
    if one.state != "COMPLETED":
        yield f"{name}: it is {one.state}"
    if one.loss is None:
        yield f"{name}: it printed no loss"
    saved = 0
    for session in one.sessions:
        if session.after != saved:
            yield f"{name}: attempt {session.attempt} began after sample {session.after}, and {saved} were saved"
        saved = session.saved
    if saved != one.samples:
        yield f"{name}: {saved} of {one.samples} samples were trained"
    for earlier, later in pairwise(sorted(one.allocations, key=lambda each: each.start)):
        if later.start < earlier.end:
            yield f"{name}: attempts {earlier.attempt} and {later.attempt} ran at the same time"
    if len({each.attempt for each in one.allocations}) != len(one.allocations):
        yield f"{name}: an attempt has two allocations"


def longest_idle(trained: Sequence[Trained]) -> float:
    """Return the longest time in seconds for which GPUs were free while a job waited for its first allocation or the
    next."""
    moments = sorted({moment for one in trained for moment in _moments(one)})
    longest, begun = 0.0, None
    for moment, following in pairwise(moments):
        middle = (moment + following) / 2
        busy = sum(each.gpus for one in trained for each in one.allocations if each.start <= middle < each.end)
        if busy < GPUS and any(_waits(one, middle) for one in trained):
            begun = moment if begun is None else begun
            longest = max(longest, following - begun)
        else:
            begun = None
    return longest


def _moments(one: Trained) -> Iterator[float]:
    yield from (one.submitted, one.ended)
    for each in one.allocations:
        yield from (each.start, each.end)


def _waits(one: Trained, moment: float) -> bool:
    last = max((each.end for each in one.allocations), default=one.ended)
    return one.submitted <= moment < last and not any(each.start <= moment < each.end for each in one.allocations)


def report(fixed: Sequence[Trained], elastic: Sequence[Trained]) -> str:
    """Return a line for each job, and one for all."""
    lines = []
    for same, other in zip(fixed, elastic, strict=True):
        sizes = " ".join(f"{each.gpus}x{each.batch // each.gpus}" for each in other.sessions)
        lines.append(
            f"{other.job.name} {other.job.model}: {_took(other):.0f} s elastic, {_took(same):.0f} s fixed with "
            f"{same.job.learners}; GPUs x batch of one: {sizes}"
        )
    means = [sum(map(_took, each)) / len(each) for each in (elastic, fixed)]
    sessions = sum(len(one.sessions) for one in elastic)
    lines.append(
        f"jobs {len(elastic)} attempts {sessions} mean completion {means[0]:.0f} s elastic, {means[1]:.0f} s fixed; "
        f"GPUs idle while a job waited: {longest_idle(elastic):.0f} s elastic, {longest_idle(fixed):.0f} s fixed"
    )
    return "\n".join(lines)


def _took(one: Trained) -> float:
    return one.ended - one.submitted
