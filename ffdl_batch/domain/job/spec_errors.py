"""Finds requests that no backend can serve, from the spec alone. Pure.

Manifests with such a request are refused, and so is every plan.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ffdl_batch.domain.job.elastic import Elastic, workers_of
from ffdl_batch.domain.job.environment_variables import why_too_long, why_too_many
from ffdl_batch.domain.job.learner_layout import Part, parts_of, starts_mpi
from ffdl_batch.domain.job.spec import JobSpec, NetworkLevel
from ffdl_batch.domain.launch.egress_destination import DESTINATIONS_MOST, why_no_destination
from ffdl_batch.domain.quantity import WHOLE_NODE
from ffdl_batch.host.fast_dataclass import dataclass

INTO_A_FILE = "put the value into a file of the model, or into a data store"
MOST_LEARNERS = 4096
"""Maximum of one job: the addresses of all of them are in TF_CONFIG, and Linux accepts no variable of more than 128 KiB
(execve(2), MAX_ARG_STRLEN)."""
SHARING = ("shard", "mps")
"""Generic resources that count shares of a GPU (gres.conf(5))."""
_ELASTIC = ("batch", "elastic")
_ROLE_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,31}", re.ASCII)
_BOTH = "shares of a GPU and whole GPUs, or two kinds of shares: Slurm gives a job one of them"


@dataclass(frozen=True, slots=True)
class Mistake:
    """What is wrong with a job: where in the manifest, what, and what would be right."""

    place: tuple[str | int, ...]
    message: str
    cure: str

    @property
    def path(self) -> str:
        """The place as text."""
        return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in self.place)[1:]


def find_mistakes(spec: JobSpec) -> Iterator[Mistake]:
    """Yield all mistakes, by topic."""
    yield from _of_learners(spec)
    yield from _of_gpus(spec)
    yield from _of_destinations(spec)
    yield from _of_variables(spec)
    if spec.batch.elasticity is not None:
        yield from _of_elastic_job(spec)
        yield from _of_sizes(spec, spec.batch.elasticity)


def _of_learners(spec: JobSpec) -> Iterator[Mistake]:
    roles = spec.batch.roles
    total = sum(role.learners for role in roles.values()) if roles else spec.resources.learners
    if total > MOST_LEARNERS:
        place = ("batch", "roles") if roles else ("learners",)
        cure = "use fewer learners with more processes each, or a job array"
        yield Mistake(place, f"{total} learners, but a job has at most {MOST_LEARNERS}", cure)
    if len({part.memory_bytes == WHOLE_NODE for part in parts_of(spec)}) > 1:
        message = "some learners ask for all memory of their node, and others for a part"
        yield Mistake(("batch", "roles"), message, "write memory: all for every role, or a size for each")
    if not roles:
        return
    for name in roles:
        if not _ROLE_NAME.fullmatch(name):
            cure = "begin it with a letter; letters, digits, - and _ may follow, 32 in all"
            yield Mistake(("batch", "roles", name), f"{name[:60]!r} cannot be the name of a role", cure)
    if total != spec.resources.learners:
        message = f"{spec.resources.learners} learners, but the roles have {total} together"
        yield Mistake(("learners",), message, f"leave it out, or write learners: {total}")
    if all(role.service for role in roles.values()):
        message = "every role is a service: no learner would train, and the job never be done"
        yield Mistake(("batch", "roles"), message, "write service: false in the role whose end is the job's")


def _of_gpus(spec: JobSpec) -> Iterator[Mistake]:
    parts = parts_of(spec)
    wrong = [part for part in parts if part.gpus < 0 or (is_share(part) and part.gpus > 1)]
    for place, gpus in dict.fromkeys((_place(part), part.gpus) for part in wrong):
        message = f"{gpus:g} GPUs: write a whole number, or shares of a GPU below 1"
        yield Mistake(place, message, f"write {int(gpus)}, to which FfDL cut it" if gpus > 1 else "write 0 for none")
    if wrong:
        return
    shares = [part for part in parts if is_share(part)]
    whole = [part for part in parts if part.gpus and not is_share(part)]
    if shares and whole:
        yield Mistake(_place(shares[0]), _BOTH, "write shares for all, or whole GPUs")
    named = [name for name, count in spec.resources.gres.items() if count and name.partition(":")[0] in SHARING]
    if len(named) > 1 or (named and (shares or whole)):
        yield Mistake(("batch", "gres", named[-1]), f"{', '.join(named)}: {_BOTH}", "leave gpus out, and name one")


def is_share(part: Part) -> bool:
    """Return whether the learners of this part requested a fraction of a GPU."""
    return part.gpus != int(part.gpus)


def _place(part: Part) -> tuple[str, ...]:
    return ("batch", "roles", part.role, "gpus") if "gpus" in part.own else ("gpus",)


def _of_destinations(spec: JobSpec) -> Iterator[Mistake]:
    place, level, asked = ("batch", "network", "allow"), spec.batch.network, spec.batch.egress
    if asked and level is not NetworkLevel.EGRESS:
        message = f"destinations mean something at level egress only, not at {level}"
        yield Mistake(place, message, "write level: egress, or delete allow")
    if level is NetworkLevel.EGRESS and not asked:
        cure = "write {level: egress, allow: ['host:port']}"
        yield Mistake(("batch", "network", "level"), "level egress needs destinations", cure)
    for number, one in enumerate(asked):
        message, cure = why_no_destination(one.host, one.port)
        if message:
            yield Mistake((*place, number), message, cure)
    different = list(dict.fromkeys(asked))
    if len(different) > DESTINATIONS_MOST:
        message = f"{len(different)} destinations; level egress takes 1 to {DESTINATIONS_MOST}"
        cure = "name the few hosts and ports that the training needs"
        yield Mistake((*place, asked.index(different[DESTINATIONS_MOST])), message, cure)


def _of_variables(spec: JobSpec) -> Iterator[Mistake]:
    own = spec.batch.env
    for name, value in own.items():
        if why := why_too_long(name, value):
            yield Mistake(("batch", "env", name), why, INTO_A_FILE)
    swept = (why_too_long(name, value) for values in spec.batch.sweep for name, value in values.items())
    for why in dict.fromkeys(filter(None, swept)):
        yield Mistake(("batch", "sweep"), why, INTO_A_FILE)
    most = max(spec.batch.sweep, key=lambda values: sum(map(len, values.values())), default={})
    if why := why_too_many({**own, **most}):
        yield Mistake(("batch", "env"), why, INTO_A_FILE)


def _of_elastic_job(spec: JobSpec) -> Iterator[Mistake]:
    """Yield the reasons why the size of a job cannot change."""
    if spec.batch.array or spec.batch.sweep or spec.element is not None:
        cure = "remove batch.elastic, or submit the jobs one by one"
        yield Mistake(_ELASTIC, "the elements of an array cannot be elastic", cure)
    if len(parts_of(spec)) > 1 and not starts_mpi(spec):
        message = "all learners of an elastic job must have the same role, but this job has several roles"
        yield Mistake(_ELASTIC, message, "remove batch.elastic, or the roles")
    if not spec.batch.checkpoint.grace_s:
        message = "an elastic job is halted to change its size, and 0 leaves no time for a checkpoint"
        yield Mistake(
            ("batch", "checkpoint", "grace_s"), message, "write the number of seconds that a checkpoint takes"
        )
    if spec.batch.elasticity is not None and spec.batch.elasticity.in_place:
        if spec.batch.requeue:
            message = "Slurm must not requeue a job with batch.elastic.in_place, because it may have released nodes"
            yield Mistake(("batch", "requeue"), message, "remove it; ffdl continues the job in another attempt")
        if starts_mpi(spec):
            message = "mpirun ends all learners when one leaves, so an MPI job cannot shrink in place"
            yield Mistake((*_ELASTIC, "in_place"), message, "remove it; ffdl then halts the job to change its size")


def _of_sizes(spec: JobSpec, elastic: Elastic) -> Iterator[Mistake]:
    """Yield mistakes in the bounds or, if they are possible, in the size of the job."""
    least, most = elastic.min_learners, elastic.max_learners
    if most > MOST_LEARNERS:
        message = f"{most} learners, but a job has at most {MOST_LEARNERS}"
        yield Mistake((*_ELASTIC, "max_learners"), message, f"write a number up to {MOST_LEARNERS}")
    elif least > most:
        message = f"max_learners {most} is less than min_learners {least}"
        yield Mistake((*_ELASTIC, "max_learners"), message, f"write {least} or more")
    elif elastic.batch_min > elastic.batch_max:
        message = f"batch.max {elastic.batch_max} is less than batch.min {elastic.batch_min}"
        yield Mistake((*_ELASTIC, "batch", "max"), message, f"write {elastic.batch_min} or more")
    else:
        yield from _of_requested_size(spec.resources.learners, elastic)
        learners: dict[int, tuple[str, ...]] = {most: (*_ELASTIC, "max_learners"), least: (*_ELASTIC, "min_learners")}
        if least < spec.resources.learners < most:
            learners[spec.resources.learners] = ("learners",)
        for count, place in learners.items():
            yield from _of_batch(count, spec.resources.gpus, elastic, place)


def _of_requested_size(learners: int, elastic: Elastic) -> Iterator[Mistake]:
    if not elastic.min_learners <= learners <= elastic.max_learners:
        allowed = f"{elastic.min_learners} to {elastic.max_learners}"
        cure = f"write a number from {allowed}, or change min_learners or max_learners"
        yield Mistake(("learners",), f"{learners} is not in the range of batch.elastic, {allowed}", cure)
    for key, batch in (("start", elastic.start), ("", elastic.global_batch)):
        if batch is not None and not elastic.batch_min <= batch <= elastic.batch_max:
            allowed = f"{elastic.batch_min} to {elastic.batch_max}"
            place = (*_ELASTIC, "batch", *filter(None, [key]))
            yield Mistake(place, f"a batch of {batch} is not in the range {allowed}", "write a number in the range")


def _of_batch(learners: int, gpus: float, elastic: Elastic, place: tuple[str, ...]) -> Iterator[Mistake]:
    """Yield the reason why no batch is permitted for this number of learners."""
    each, all_gpus = workers_of(1, gpus), workers_of(learners, gpus)
    if elastic.batches_per_gpu(all_gpus):
        return
    most = elastic.per_gpu_max * all_gpus
    if most < elastic.batch_min:
        message = f"with learners: {learners}, GPUs hold a batch of {most}, which is less than "
        message += f"batch.min {elastic.batch_min}"
        enough = -(-elastic.batch_min // (elastic.per_gpu_max * each))
        cure = f"write {enough} or more learners, or change per_gpu_max or batch.min"
    elif elastic.batch_max < all_gpus:
        message = f"batch.max {elastic.batch_max} is less than one sample for each of {all_gpus} GPUs"
        cure = "use fewer learners, or raise batch.max"
    else:
        message = (
            f"no batch from {elastic.batch_min} to {elastic.batch_max} can be divided evenly among {all_gpus} GPUs"
        )
        cure = "use another number of learners, or a wider range of batches"
    yield Mistake(place, message, cure)
