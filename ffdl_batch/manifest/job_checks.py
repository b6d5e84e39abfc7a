"""What is wrong with a job as a whole, or surprises its owner, though every single value is right."""

from __future__ import annotations

from ffdl_batch.domain.mistakes import find_mistakes
from ffdl_batch.domain.spec import JobSpec
from ffdl_batch.manifest.log import FindingLog
from ffdl_batch.manifest.tree import Place, Scalar, find, locate

_LEVEL: Place = ("batch", "network", "level")


def check_job(job: JobSpec, log: FindingLog) -> None:
    """Report what no backend can make a job of."""
    for mistake in find_mistakes(job):
        place, cure = mistake.place, mistake.cure
        if place == _LEVEL:
            place = _level_place(log)
            cure = "write egress:HOST:PORT" if locate(log.root, place)[0].option else cure
        log.error(place, mistake.message, cure)


def _level_place(log: FindingLog) -> Place:
    """Where the network level stands: `network: job` is short for a mapping."""
    return _LEVEL[:2] if isinstance(find(log.root, _LEVEL[:2]), Scalar) else _LEVEL
