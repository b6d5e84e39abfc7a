"""Plans the elements of an array together: one is planned, and the others differ from it in few values.

Planning an element and writing its files costs far more than its row. Elements whose specs are equal but for their
index and their sweep's variables get their files from one table (:mod:`ffdl_batch.attempt.element_files`). The last of
them is planned, too: if its files are not exactly those that the table gives, or anything else differs, each element is
planned by itself.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ffdl_batch.attempt.element_files import PLACES, Changes, ElementTable, derive_files
from ffdl_batch.config.images import UnknownImage
from ffdl_batch.domain.job.array import element_environment
from ffdl_batch.domain.job.job import Job, Overrides
from ffdl_batch.domain.job.secret_references import needed_secrets
from ffdl_batch.domain.job.spec import JobSpec
from ffdl_batch.domain.scheduler_errors import InvalidRequest
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.ports.capabilities import SubmitsArrays
from ffdl_batch.runtimes.launch_request import LaunchPlan
from ffdl_batch.runtimes.rendezvous import first_port
from ffdl_batch.runtimes.slurm_environment import job_number
from ffdl_batch.services.backends.adapters import Adapters
from ffdl_batch.services.backends.node_exclusion import NodeExclusion
from ffdl_batch.services.deployment.attempt_planning import plan_attempt, plan_template
from ffdl_batch.services.deployment.delivery import Member
from ffdl_batch.services.job_files.attempt_directory import exported_environment
from ffdl_batch.services.job_storage import JobStorage

log = logging.getLogger(__name__)

_PLANNED_BY_VARIABLES = ("SLURM_", "PS_")
"""Prefixes of variables in a manifest that change more of a plan than the learner's environment."""


_INDEX_PATTERN = re.compile(r"%\d*a", re.ASCII)


@dataclass(frozen=True, slots=True)
class PlannedElement:
    """An element that was planned by itself, and its files."""

    job: Job
    plan: LaunchPlan
    files: Mapping[str, str]


def gather(storage: JobStorage, adapters: Adapters, jobs: Sequence[Job]) -> tuple[list[list[Job]], list[Job]]:
    """Return those of `jobs`, whose attempts have just begun, that can be planned together, by index, and the
    others."""
    groups: dict[str, list[Job]] = {}
    alone: list[Job] = []
    for job in jobs:
        element = job.spec.element
        if element is None or not _may_share(storage, adapters, job):
            alone.append(job)
        else:
            groups.setdefault(element.array, []).append(job)
    shared: list[list[Job]] = []
    for group in groups.values():
        first = _common(group[0].spec)
        equal = [job for job in group if _common(job.spec) == first]
        if len(equal) < 2:
            equal = []
        else:
            shared.append(sorted(equal, key=_index))
        taken = {job.id for job in equal}
        alone += [job for job in group if job.id not in taken]
    return shared, alone


def _may_share(storage: JobStorage, adapters: Adapters, job: Job) -> bool:
    element = job.spec.element
    assert element is not None
    values = tuple(element.values)
    return (
        job.attempt == 1
        and job.overrides == Overrides()
        and not any(name.startswith(_PLANNED_BY_VARIABLES) for name in values)
        and isinstance(adapters.get(job.backend), SubmitsArrays)
        and not needed_secrets(job.spec)
        and not _INDEX_PATTERN.search(job.spec.batch.output)  # its script would have another name of the file
        and not os.path.lexists(storage.root.job(job.id).attempt(1).path)
    )


def _common(spec: JobSpec) -> JobSpec:
    """Return what equal elements have in common."""
    element = spec.element
    assert element is not None
    env = {name: value for name, value in spec.batch.env.items() if name not in element.values}
    return replace(spec, name="", batch=replace(spec.batch, env=env), element=replace(element, index=0, values={}))


def _index(job: Job) -> int:
    return job.spec.element.index if job.spec.element is not None else 0


def plan_together(
    storage: JobStorage, adapters: Adapters, node_exclusion: NodeExclusion, jobs: Sequence[Job]
) -> list[Member] | None:
    """Return the elements `jobs`, planned together; None if each has to be planned by itself. Raises
    SchedulerUnreachable, OSError."""
    try:
        first, last = (_plan(storage, adapters, node_exclusion, job) for job in (jobs[0], jobs[-1]))
    except (InvalidRequest, UnknownImage):
        return None
    if not first.plan.array_script or not Path(storage.root.model(first.job.model_digest)).exists():
        return None
    table = tabulate(first, exported_environment(storage.root, jobs[0]), jobs)
    plans = {job.id: _plan_of(first.plan, first.job, job) for job in jobs}
    shared = plans[last.job.id]
    same = derive_files(table, last.job.id) == last.files and _outside(shared) == _outside(last.plan)
    if not same:
        log.info("the elements of %s are planned one by one, because their files differ", jobs[0].id)
        return None
    return [Member(job, plans[job.id], table) for job in jobs]


def _plan(storage: JobStorage, adapters: Adapters, node_exclusion: NodeExclusion, job: Job) -> PlannedElement:
    plan = plan_attempt(storage, adapters, node_exclusion, job)
    template = plan_template(storage, adapters, node_exclusion, job, plan)
    files = {f"{PLACES[0]}/{file.name}": file.text for file in plan.files}
    files |= {f"{PLACES[1]}/{file.name}": file.text for file in (template.files if template is not None else ())}
    return PlannedElement(job, plan, files)


def tabulate(first: PlannedElement, exported: Mapping[str, str], jobs: Sequence[Job]) -> ElementTable:
    """Return the table from which the files of `jobs`, elements equal to `first`, are derived. `exported` are the
    variables that the submission exported."""
    planned = {**exported, **first.job.spec.batch.env}
    env = first.plan.launch.learner.env
    names = [name for name, value in _own_variables(first.job).items() if env.get(name) == value]
    has_own_ports = first.plan.launch.ports == first_port(first.job.id)
    elements: dict[str, Changes] = {}
    for job in jobs:
        user, own = {**exported, **job.spec.batch.env}, _own_variables(job)
        elements[job.id] = Changes(
            ports=first_port(job.id) if has_own_ports else first.plan.launch.ports,
            learner=[own[name] for name in names],
            set_variables={name: value for name, value in user.items() if planned.get(name) != value},
            unset_variables=[name for name in planned if name not in user],
        )
    return ElementTable(first.job.id, first.job.model_digest, first.files, names, elements)


def _own_variables(job: Job) -> dict[str, str]:
    """Return the variables of the element's learners that no other element has with these values."""
    assert job.spec.element is not None
    number, port = str(job_number(job.id)), str(first_port(job.id))
    return {
        **element_environment(job.spec.element),
        "SLURM_JOB_ID": number,
        "SLURM_JOBID": number,
        "MASTER_PORT": port,
        "PET_MASTER_PORT": port,
        "JAX_COORDINATOR_ADDRESS": f"{{master_addr}}:{port}",
    }


def _plan_of(plan: LaunchPlan, planned: Job, job: Job) -> LaunchPlan:
    """Return the plan of `job` without its files, from that of an equal element."""
    attempt = plan.attempt_dir.path.replace(planned.id, job.id)
    stores = plan.launch.stores
    return replace(
        plan,
        token=job.token,
        attempt_dir=replace(plan.attempt_dir, path=attempt),
        launch=replace(plan.launch, stores=replace(stores, results=stores.results.replace(planned.id, job.id))),
        files=(),
        submit_argv=tuple(word.replace(planned.id, job.id) for word in plan.submit_argv),
        array_index=_index(job),
    )


def _outside(plan: LaunchPlan) -> tuple[object, ...]:
    """Return what the deployer uses of a plan besides its files."""
    return (
        plan.token, plan.attempt_dir, plan.submit_argv, plan.array_script, plan.array_index, plan.network,
        plan.kept_off, plan.warnings, plan.launch.stores.results, plan.launch.umask, plan.launch.network.level,
    )  # fmt: skip
