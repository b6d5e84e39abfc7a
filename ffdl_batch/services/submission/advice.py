"""Advise on the resources of a submission, based on the user's earlier jobs like it. Submits nothing."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import replace

from ffdl_batch.domain.job.elastic import workers_of
from ffdl_batch.domain.job.spec import JobSpec, Placement
from ffdl_batch.domain.job.submission import Caller, Submission
from ffdl_batch.domain.metrics.advice import (
    Advice,
    Choice,
    Form,
    LikeJob,
    PastAttempt,
    advise_memory,
    find_bottleneck,
    history_notes,
    measured_choices,
    recommend,
    time_limit,
)
from ffdl_batch.domain.metrics.rates import Rates
from ffdl_batch.domain.metrics.usage_report import HOUR_S
from ffdl_batch.domain.number_text import counted
from ffdl_batch.domain.scheduler_errors import SchedulerUnreachable
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.services.backends.adapters import Adapters
from ffdl_batch.services.job_storage import JobStorage
from ffdl_batch.services.queries.like_jobs import PATIENCE_S, LikeJobs
from ffdl_batch.services.submission.validation import Candidate, read_submission

GROWTH = 2
"""The largest choice, as a multiple of the largest measured size."""


def advise(storage: JobStorage, adapters: Adapters, caller: Caller, submission: Submission) -> Advice:
    """Return the advice for a submission. Raises :class:`Refused` if the submission would be refused."""
    candidate = read_submission(storage, adapters, submission)
    ends_at = storage.clock.monotonic() + PATIENCE_S
    past = LikeJobs(storage, caller, candidate.spec, candidate.backend, lambda: storage.clock.monotonic() > ends_at)
    jobs = past.jobs()
    rates = adapters.settings.rates
    part = rates.part_of_gpu(candidate.spec.resources.gpu_type)
    sizes = _Sizes(candidate.spec, _gpus_per_node(adapters, candidate, jobs), part)
    notes, choices = _choose(sizes, jobs)
    if rates.is_set:
        choices = [_with_cost(one, rates, candidate.spec.resources.gpu_type) for one in choices]
    checkpoint, more = past.checkpoints()
    if past.unread:
        more.append(
            f"the measurements of {counted(past.unread, 'attempt')} could not be read within {PATIENCE_S:.0f} s"
        )
    return Advice(
        candidate.spec.name,
        candidate.spec.framework.name,
        candidate.backend,
        tuple(job.id for job in jobs),
        tuple(choices),
        advise_memory(jobs),
        checkpoint,
        (*notes, *_bottleneck(jobs, choices), *history_notes(jobs), *more),
        _profile(sizes),
        rates.currency,
        rates.is_set,
    )


def _bottleneck(jobs: Sequence[LikeJob], choices: Sequence[Choice]) -> list[str]:
    """Return what limits the newest attempt whose speed or GPU use was measured, if anything does."""
    exchange = {one.form: one.exchange for one in choices}
    for job in jobs:
        for one in reversed(job.attempts):
            if one.samples_per_s is not None or one.gpu_use is not None:
                limit = find_bottleneck(one, exchange.get(one.form))
                return [f"{job.id}: {limit}"] if limit else []
    return []


def _with_cost(choice: Choice, rates: Rates, gpu_type: str) -> Choice:
    if choice.gpu_hours is None or choice.cpu_hours is None:
        return choice
    return replace(choice, cost=rates.cost(choice.gpu_hours * HOUR_S, choice.cpu_hours * HOUR_S, gpu_type))


def _gpus_per_node(adapters: Adapters, candidate: Candidate, jobs: Sequence[LikeJob]) -> int:
    """Return the largest number of GPUs of the job's type on a node of its backend. If it is unknown, derive it from
    earlier jobs on several nodes. 0 = unknown."""
    try:
        nodes = adapters.facts(candidate.backend).nodes
    except SchedulerUnreachable:
        nodes = ()
    kind, partition = candidate.spec.resources.gpu_type.lower(), candidate.spec.batch.partition
    known = [
        count
        for node in nodes
        for name, count in node.gpus.items()
        if (not kind or name.lower() in ("", kind)) and (not partition or partition in node.partitions)
    ]
    seen = [-(-one.workers // one.nodes) for job in jobs for one in job.attempts if one.nodes > 1]
    return max(known or seen, default=0)


@dataclass(frozen=True, slots=True)
class _Sizes:
    """The sizes that a job could have."""

    spec: JobSpec
    per_node: int
    """GPUs of a node; 0 = unknown."""
    part: float = 1.0
    """Size of a device of the requested type, as a fraction of a GPU."""

    @property
    def requested(self) -> Form:
        """The size in the manifest."""
        resources, elastic = self.spec.resources, self.spec.batch.elasticity
        batch = None if elastic is None else elastic.batch_on(workers_of(resources.learners, resources.gpus))
        return Form(resources.learners, resources.gpus, batch)

    def forms(self, most_workers: int) -> list[Form]:
        """Return the requested size, and powers of two up to this number of GPUs."""
        elastic, requested = self.spec.batch.elasticity, replace(self.requested, batch=None)
        powers = [2**exponent for exponent in range(most_workers.bit_length())]
        found = [requested]
        if elastic is not None:
            wanted = sorted({*powers, elastic.min_learners, elastic.max_learners})
            counts = [number for number in wanted if elastic.min_learners <= number <= elastic.max_learners]
            found += [replace(requested, learners=number) for number in counts]
        elif self.spec.batch.roles:
            pass  # their learners differ
        elif requested.learners > 1:
            found += [replace(requested, learners=number) for number in powers]
        elif requested.gpus >= 1:
            most = self.per_node or most_workers
            found += [replace(requested, gpus=float(number)) for number in powers if number <= most]
        small = [form for form in found if form == requested or _workers(form) <= most_workers]
        return [one for form in dict.fromkeys(small) for one in self._with_batches(form)]

    def _with_batches(self, form: Form) -> list[Form]:
        """Return the size with the requested and the largest batch."""
        elastic, workers = self.spec.batch.elasticity, _workers(form)
        if elastic is None:
            return [form]
        usual = elastic.batch_on(workers)
        if usual is None:
            return []
        largest = elastic.batches_per_gpu(workers)[-1] * workers
        return [replace(form, batch=batch) for batch in dict.fromkeys((usual, largest))]

    def usual_batch(self, form: Form) -> int | None:
        """Return the batch that an attempt of this size gets."""
        elastic = self.spec.batch.elasticity
        return None if elastic is None else elastic.batch_on(_workers(form))

    def key(self, form: Form) -> tuple[int, int, int]:
        """Return nodes, GPUs and batch per GPU, for the throughput model."""
        workers = _workers(form)
        nodes = 1 if self.spec.batch.placement is Placement.PACK else form.learners
        if self.per_node and form.gpus:
            nodes = max(nodes, -(-workers // self.per_node))
        return nodes, workers, (form.batch or workers) // workers


def _workers(form: Form) -> int:
    return workers_of(form.learners, form.gpus)


def _profile(sizes: _Sizes) -> tuple[Form, ...]:
    """Return the sizes of short runs that measure the throughput; none without the extra elastic."""
    try:
        from ffdl_batch.elastic.throughput_model import Size, choose_profile
    except ImportError:
        return ()
    elastic = sizes.spec.batch.elasticity
    largest = sizes.requested if elastic is None else replace(sizes.requested, learners=elastic.max_learners)
    forms = sizes.forms(max(_workers(largest), sizes.per_node if elastic is None else 0))
    by_size = {Size(*sizes.key(form)): form for form in forms if form.batch == sizes.usual_batch(form)}
    return tuple(by_size[size] for size in choose_profile(list(by_size))) if by_size else ()


def _choose(sizes: _Sizes, jobs: Sequence[LikeJob]) -> tuple[list[str], list[Choice]]:
    """Return notes and choices. Speeds can be compared only if the batches of all of them are known, or of none."""
    is_elastic = sizes.spec.batch.elasticity is not None
    measured = [
        one for job in jobs for one in job.attempts if one.samples_per_s and is_elastic == (one.form.batch is not None)
    ]
    if not measured:
        return _missing(jobs), _finish(sizes, jobs, [])
    try:
        predicted = _predict(sizes, measured)
    except ImportError:
        cure = "install it for the daemon: pip install 'ffdl-batch[elastic]'"
        return [f"sizes are not compared: the extra elastic is missing; {cure}"], _finish(sizes, jobs, [])
    notes = [] if is_elastic else ["the batch of each GPU is assumed to be the same at all sizes"]
    if all(job.samples is None for job in jobs):
        notes.append("no time is predicted: no job like it has completed or reported remaining= with its throughput")
    return notes, _finish(sizes, jobs, predicted)


def _predict(sizes: _Sizes, measured: Sequence[PastAttempt]) -> list[Choice]:
    """Return the speeds of the measured sizes and of others. Raises ImportError without the extra elastic."""
    from ffdl_batch.elastic.advice import predict_speeds
    from ffdl_batch.elastic.throughput_model import Measurement, Size

    places = {one.form: Size(one.nodes, *sizes.key(one.form)[1:]) for one in measured}
    measurements = [
        Measurement(*(size := Size(one.nodes, *sizes.key(one.form)[1:])), size.gpus * size.local_batch / speed)
        for one in measured
        if (speed := one.samples_per_s) is not None
    ]
    forms = list(dict.fromkeys([*places, *sizes.forms(GROWTH * max(one.workers for one in measured))]))
    speeds = predict_speeds(measurements, [places.get(form) or Size(*sizes.key(form)) for form in forms])
    return [Choice(form, _workers(form), *speed) for form, speed in zip(forms, speeds, strict=True)]


def _missing(jobs: Sequence[LikeJob]) -> list[str]:
    if not jobs:
        return [
            "none of your earlier jobs is like it; to print commands that measure it: ffdl advise --profile MANIFEST"
        ]
    return [
        "sizes are not compared: these jobs report no throughput; have the first learner print "
        "ffdl-throughput: samples=N seconds=S"
    ]


def _finish(sizes: _Sizes, jobs: Sequence[LikeJob], predicted: Sequence[Choice]) -> list[Choice]:
    """Return the predicted choices with times, costs and limits, or the measured ones if none are predicted."""
    measured = {one.form: one for one in measured_choices(jobs)}
    work = [samples for job in jobs if (samples := job.samples) is not None]
    extra = [
        job.run_s - math.fsum(one.processing_s for one in job.attempts) for job in jobs if job.completed
    ]  # times in which no learner ran
    choices = []
    for one in predicted or measured.values():
        choice = one
        if one.samples_per_s and work:
            overhead_s = statistics.median(extra) if extra else 0.0
            time_s = overhead_s + statistics.median(work) / one.samples_per_s
            runs = measured.get(one.form)
            limit = runs.time_limit_s if runs else time_limit([time_s * (1 + 2 * (one.relative_std or 0.0))])
            choice = replace(one, time_s=time_s, time_limit_s=limit)
        if choice.time_s is not None:
            hours = choice.form.learners * choice.time_s / HOUR_S
            gpus, cpus = choice.form.gpus * sizes.part, sizes.spec.resources.cpus
            choice = replace(choice, gpu_hours=hours * gpus, cpu_hours=hours * cpus)
        choices.append(choice)
    return recommend(choices, lambda form: form.batch == sizes.usual_batch(form))
