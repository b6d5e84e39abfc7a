"""What is wrong with a job as a whole, or surprises its owner, though every single value is right."""

from __future__ import annotations

import re

from ffdl_batch.domain.data.mounts import Mounting
from ffdl_batch.domain.job.data_stores import REMOTE
from ffdl_batch.domain.job.elastic import workers_of
from ffdl_batch.domain.job.learner_layout import PS_COUNT, count_parameter_servers, starts_mpi
from ffdl_batch.domain.job.metric_collection import find_metric_mistakes
from ffdl_batch.domain.job.spec import JobSpec, NetworkLevel, Restart, Staging
from ffdl_batch.domain.job.spec_errors import find_mistakes
from ffdl_batch.domain.number_text import whole_number
from ffdl_batch.domain.quantity import doubt_about_minutes
from ffdl_batch.manifest.document.tree import Place, Scalar, find, locate
from ffdl_batch.manifest.finding_log import FindingLog
from ffdl_batch.manifest.models.sweep import PLACE as SWEEP

_TIME: Place = ("batch", "time")
_LEVEL: Place = ("batch", "network", "level")
_SERVERS = re.compile(rf"\b{PS_COUNT}=([^\s;&|()<>]*)")


def check_job(job: JobSpec, log: FindingLog) -> None:
    """Report what no backend can make a job of, and what its owner may not have meant."""
    for mistake in find_mistakes(job):
        place, cure = mistake.place, mistake.cure
        if place == SWEEP:
            continue  # read_sweep has reported it at the line of the value
        if place == _LEVEL:
            place = _level_place(log)
            cure = "write egress:HOST:PORT" if locate(log.root, place)[0].option else cure
        log.error(place, mistake.message, cure)
    _check_metrics(job, log)
    _warn_about_minutes(log)
    _note_network(job, log)
    _note_servers(job, log)
    _note_restarts(job, log)
    _note_staging(job, log)
    _note_mount(job, log)
    _note_shared_checkpoints(job, log)
    _note_batch(job, log)


def _check_metrics(job: JobSpec, log: FindingLog) -> None:
    """A job trains as well without metrics; but who wrote an expression wants what it finds."""
    for finding, decides in find_metric_mistakes(job.metrics):
        add = log.error if decides else log.warning
        add(("evaluation_metrics", *finding.path), finding.message, finding.cure)


def _warn_about_minutes(log: FindingLog) -> None:
    node = find(log.root, _TIME)
    doubt = doubt_about_minutes(node.text) if isinstance(node, Scalar) and not node.is_null else None
    if doubt is not None:
        log.warning(_TIME, *doubt)


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
    if not made or whole_number(asked, made) != made:
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


def _note_staging(job: JobSpec, log: FindingLog) -> None:
    from_stores = any(store.effective_type in REMOTE and store.training_data for store in job.data_stores)
    if job.batch.staging is not Staging.AHEAD:
        return
    if not from_stores:
        log.note(("batch", "staging"), "no data come from a store, so there is nothing to bring ahead")
    elif job.batch.array or job.batch.sweep:
        log.note(("batch", "staging"), "elements of an array bring their data in their own allocations")


def _note_mount(job: JobSpec, log: FindingLog) -> None:
    """A word about mounts that changes nothing."""
    if job.batch.mount is None:
        return
    inputs = [store for store in job.data_stores if store.training_data and store.effective_type in REMOTE]
    if not any(not store.is_copied for store in inputs):
        log.note(("batch", "mount"), "no data come from a store of a type that is mounted")
    elif job.batch.mount is not Mounting.NEVER and job.batch.staging is Staging.AHEAD and not job.batch.array:
        log.note(("batch", "mount"), "data that are staged ahead are not mounted")


def _note_shared_checkpoints(job: JobSpec, log: FindingLog) -> None:
    if not job.batch.checkpoint.shared:
        return
    if not any(store.training_results and not store.is_copied for store in job.data_stores):
        message = "has no effect: no data store of a type that FfDL mounts takes the results"
        log.warning(("batch", "checkpoint", "shared"), message, "add training_results to one, or leave shared out")


def _note_batch(job: JobSpec, log: FindingLog) -> None:
    elastic = job.batch.elasticity
    if elastic is None:
        return
    most = elastic.per_gpu_max * workers_of(elastic.max_learners, job.resources.gpus)
    if elastic.batch_min <= most < elastic.batch_max:
        message = f"is never used: with max_learners {elastic.max_learners}, GPUs hold a batch of {most} at most"
        log.warning(("batch", "elastic", "batch", "max"), message, f"write {most}, or raise max_learners")


def _level_place(log: FindingLog) -> Place:
    """Where the network level stands: `network: job` is short for a mapping."""
    return _LEVEL[:2] if isinstance(find(log.root, _LEVEL[:2]), Scalar) else _LEVEL
