"""What is wrong with a job as a whole, or surprises its owner, though every single value is right."""

from __future__ import annotations

import re

from ffdl_batch.domain.gang import PS_COUNT, count_parameter_servers, starts_mpi
from ffdl_batch.domain.mistakes import find_mistakes
from ffdl_batch.domain.spec import JobSpec, NetworkLevel, Restart
from ffdl_batch.manifest.log import FindingLog
from ffdl_batch.manifest.tree import Place, Scalar, find, locate

_LEVEL: Place = ("batch", "network", "level")
_SERVERS = re.compile(rf"\b{PS_COUNT}=([^\s;&|()<>]*)")


def check_job(job: JobSpec, log: FindingLog) -> None:
    """Report what no backend can make a job of, and what its owner may not have meant."""
    for mistake in find_mistakes(job):
        place, cure = mistake.place, mistake.cure
        if place == _LEVEL:
            place = _level_place(log)
            cure = "write egress:HOST:PORT" if locate(log.root, place)[0].option else cure
        log.error(place, mistake.message, cure)
    _note_network(job, log)
    _note_servers(job, log)
    _note_restarts(job, log)


def _note_network(job: JobSpec, log: FindingLog) -> None:
    if job.batch.network is NetworkLevel.NONE and job.resources.learners > 1:
        message = f"at level none the {job.resources.learners} learners cannot reach each other; they share files alone"
        log.warning(_level_place(log), message, "leave network out, unless that is all they need")


def _note_servers(job: JobSpec, log: FindingLog) -> None:
    """FfDL's number of parameter servers, where not so many are made."""
    if job.batch.roles or starts_mpi(job):
        return
    in_command = _SERVERS.search(job.framework.command)
    place: Place = ("framework", "command") if in_command else ("batch", "env", PS_COUNT)
    asked = in_command[1].strip("\"'") if in_command else job.batch.env.get(PS_COUNT)
    if asked is None:
        return
    learners = job.resources.learners
    made = count_parameter_servers(f"{PS_COUNT}={asked}", learners)
    if not made or not asked.isdecimal() or int(asked) != made:
        message = f"{PS_COUNT}={asked[:60]} makes {made} of {learners} learners parameter servers"
        log.warning(place, message, "write a number from 1 up, and more learners than that")


def _note_restarts(job: JobSpec, log: FindingLog) -> None:
    failures = job.batch.retry.failures
    if job.batch.restart is Restart.LEARNER and failures:
        runs = (failures + 1) ** 2
        message = (
            f"retry.failures counts twice: each node starts failed learners again {failures} times, and when they fail "
            f"once more up to {failures} attempts follow: a learner that always fails runs {runs} times"
        )
        log.note(("batch", "restart"), message)


def _level_place(log: FindingLog) -> Place:
    """Where the network level stands: `network: job` is short for a mapping."""
    return _LEVEL[:2] if isinstance(find(log.root, _LEVEL[:2]), Scalar) else _LEVEL
