"""Plans the staging attempt, which loads a job's data before the training requests GPUs (``batch.staging: ahead``).

A job whose nodes cannot reach a store gets one in any case. It is the first attempt, is submitted and followed like
every other, and its head submits the training as the next attempt. The data are loaded once: the training's own
``load-data`` finds them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace

from ffdl_batch.domain.job.data_stores import REMOTE
from ffdl_batch.domain.job.learner_layout import PS_COUNT
from ffdl_batch.domain.job.spec import JobSpec, Placement, Resources, Restart, Staging
from ffdl_batch.domain.launch.launch_file import encode
from ffdl_batch.domain.outcome.continuation import Interruption
from ffdl_batch.domain.sbatch.option_table import BY_NAME
from ffdl_batch.domain.sbatch.script_options import read_passed
from ffdl_batch.runtimes.data import without_learners
from ffdl_batch.runtimes.launch_request import LaunchPlan, PlannedFile
from ffdl_batch.store import Attempt

CPUS = 4.0
MEMORY_BYTES = 4 * 1000**3
"""Resources of the staging attempt. A job with less for a learner gets that."""


def stages_ahead(spec: JobSpec, earlier: Iterable[Attempt]) -> bool:
    """Return whether the attempt after `earlier` ones only loads the data.

    An array's element never has such an attempt: the next one would be a job outside the native array, and the array's
    limit of running elements would not apply to it.
    """
    if spec.batch.staging is not Staging.AHEAD or spec.element is not None:
        return False
    if not any(store.effective_type in REMOTE and store.training_data for store in spec.data_stores):
        return False
    return all(attempt.interruption != Interruption.STAGED.value for attempt in earlier)


def has_to_stage(plan: LaunchPlan, earlier: Iterable[Attempt]) -> bool:
    """Return whether an attempt before `plan` must still load the data, because the nodes of `plan` reach no store."""
    if not plan.launch.cut_off or not plan.launch.fetches:
        return False
    return all(attempt.interruption != Interruption.STAGED.value for attempt in earlier)


def trains_from(earlier: Iterable[Attempt]) -> int:
    """Return the number of the first attempt that starts learners."""
    staged = (one.number for one in earlier if one.interruption == Interruption.STAGED.value)
    return 1 + max(staged, default=0)


def for_staging(spec: JobSpec) -> JobSpec:
    """Return the request to the scheduler: one node, few CPUs, no GPU, and else the training's."""
    own = spec.resources
    small = Resources(cpus=min(own.cpus, CPUS), memory_bytes=min(own.memory_bytes, MEMORY_BYTES))
    env = {name: value for name, value in spec.batch.env.items() if name != PS_COUNT}
    args = tuple(arg for arg in spec.batch.slurm_args if not BY_NAME[read_passed(arg).name].of_gpus)
    one = replace(spec.batch, placement=Placement.NODE, restart=Restart.JOB, roles={}, nodelist="", elasticity=None)
    batch = replace(one, env=env, slurm_args=args)
    framework = replace(spec.framework, command="true")  # the commands define roles, like the variable
    return replace(spec, framework=framework, resources=small, batch=batch)


def only_staging(plan: LaunchPlan) -> LaunchPlan:
    """Return the plan of an attempt that starts no learner."""
    launch = without_learners(plan.launch)
    name = os.path.basename(plan.attempt_dir.launch)  # noqa: PTH119 - pure, without file access
    files = tuple(PlannedFile(name, encode(launch), f.mode) if f.name == name else f for f in plan.files)
    return replace(plan, launch=launch, files=files)
