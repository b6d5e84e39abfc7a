"""Plan one attempt: the batch script, the launch file, its devices and the environment. Pure: no clock, no file, no
network."""

from __future__ import annotations

import re
from dataclasses import replace

from ffdl_batch.attempt.layout import BATCH_LOG, ArrayDir
from ffdl_batch.domain.job.array import UNNUMBERED, chunk_name
from ffdl_batch.domain.launch.devices import AMD, NVIDIA, Devices
from ffdl_batch.domain.launch.launch_file import HostVariables, NodeCache, Succession
from ffdl_batch.domain.launch.limits import Limits
from ffdl_batch.domain.launch.network_level import OVERLAYS, NetworkLevel
from ffdl_batch.domain.launch.placeholders import literal
from ffdl_batch.domain.scheduler_errors import InvalidRequest
from ffdl_batch.runtimes.apptainer import GpuLibraries
from ffdl_batch.runtimes.launch_plan import assemble, base_succession, plan_base, require_image
from ffdl_batch.runtimes.launch_request import LaunchPlan, LaunchRequest, PlannedFile
from ffdl_batch.runtimes.learner_start import RequestRefused, Runtime, choose_network, refusal, refuse_unsupported
from ffdl_batch.runtimes.slurm_environment import HOST_VALUES
from ffdl_slurm.commands import limit_argv, requeue_argv, sbatch_argv, successor_argv
from ffdl_slurm.gateways.command_runner import FOR_JOBS
from ffdl_slurm.planning.job_network import Offer, mark_of, offer, only_host
from ffdl_slurm.planning.request_check import NodeRequest, fit_request, nodes_of
from ffdl_slurm.planning.sbatch_options import batch_options, continues_in_place, effective_lead_s, may_shrink
from ffdl_slurm.sbatch_script import NATIVE_ID, render_array_script, render_script
from ffdl_slurm.settings import ContainerRuntime, GpuFlag, SlurmSettings

BACKEND = "slurm"
_HOST = HostVariables(
    native_id="SLURM_JOB_ID",
    restart_count="SLURM_RESTART_COUNT",
    node_rank="SLURM_NODEID",
    node_list="SLURM_JOB_NODELIST",
    gpus="CUDA_VISIBLE_DEVICES",
    allocation="SLURM_JOB_ID",
    machine="SLURMD_NODENAME",
)
_ELEMENTS_HOST = replace(_HOST, native_id=NATIVE_ID)
"""A task of an array is listed by another id than the one in SLURM_JOB_ID (sbatch(1)); its script sets it."""
_OUT_OF_MEMORY = (": Out Of Memory",)
"""srun's message for the exit of a task in a step in which the kernel killed a process (src/srun/launch.c,
`_task_finish`, up to 22.05 src/plugins/launch/slurm; the same in 20.11 and 25.05)."""


def make_plan(request: LaunchRequest, settings: SlurmSettings) -> LaunchPlan:
    """Return what will be sent, exactly. Raises InvalidRequest."""
    spec, facts = request.spec, request.facts
    refuse_unsupported(spec)
    require_image(request)
    if not facts.python:
        raise InvalidRequest("the cluster was never asked what it is; ffdl-submitd has to reach Slurm once")
    partition = spec.batch.partition or settings.partition
    node = fit_request(spec, partition, facts)
    offered = _offer(request, node, partition, settings)
    network = choose_network(spec, offered.provable, request.minimum_network, offered.lacking)
    level = NetworkLevel(network.level)
    if level in OVERLAYS:
        network = replace(network, directory=settings.network_dir)
    mark = mark_of(level, node.gang, spec.batch.egress, settings)
    devices = plan_devices(node, settings)
    runtime = Runtime(
        request.image,
        settings.apptainer,
        gpu_libraries(node, settings),
        devices=bool(devices.options or devices.gres_files),
        network=level,
        staging=facts.staging,
        cache=NodeCache(request.cache_dir, request.cache_bytes) if request.cache_dir else None,
        images=request.images_dir,
        mounting=request.mounting,
        host_values=HOST_VALUES,
        enroot=settings.runtime is ContainerRuntime.PYXIS,
    )
    base = plan_base(request, node.gang, runtime, BACKEND)
    controller = (facts.python, *facts.controller)
    launch = replace(
        base.launch,
        step=_step(settings, node, controller),
        shrinks=may_shrink(spec.batch) and node.is_uniform,
        out_of_memory=_OUT_OF_MEMORY,
        limits=_limits(base.launch.limits, request, settings),
        network=network,
        host=_HOST if spec.element is None else _ELEMENTS_HOST,
        devices=devices,
        scratch_base=settings.scratch_base,
        health=f"{settings.network_dir}/health",
        succession=_succession(request, settings, node),
    )
    command = (*controller, *_head_words(request), "--launch", request.attempt_dir.launch)
    named = () if spec.element is None else (f"{NATIVE_ID}=$SLURM_JOB_ID", f"export {NATIVE_ID}")
    script = render_script(batch_options(request, settings, node, mark), command, named)
    doubts = (*unknown_files(node, settings), *_hints(request, node))
    plan = assemble(request, base, launch, (*node.warnings, *offered.warnings, *facts.warnings, *doubts))
    plan = replace(
        plan,
        files=(PlannedFile("script.sh", script, 0o700), *plan.files),
        submit_argv=tuple(sbatch_argv(request.attempt_dir.script)),
        script=script,
    )
    if spec.element is None or request.array_dir is None:
        return plan
    array_script = _array_script(request, request.array_dir, settings, node, mark)
    return replace(plan, array_script=array_script, array_index=spec.element.index)


def _offer(request: LaunchRequest, node: NodeRequest, partition: str, settings: SlurmSettings) -> Offer:
    """Return the network levels of the job. Raises RequestRefused if the site requires what enroot does not support."""
    if settings.runtime is ContainerRuntime.PYXIS:
        if request.signers:
            message = "the site requires signed image files, and enroot checks no signatures"
            raise RequestRefused([refusal("framework", message, "set runtime to apptainer in [backend.slurm]", "S103")])
        return only_host()
    return offer(request.spec, node.gang, nodes_of(partition, request.facts), request.facts.network_levels, settings)


def _head_words(request: LaunchRequest) -> tuple[str, ...]:
    """Return the command of the head. With ``--requeue=expedite`` Slurm starts every job again whose script fails, also
    after the training has failed, so it must not see that."""
    return ("head", "--exit-zero") if request.spec.batch.expedite else ("head",)


def _array_script(
    request: LaunchRequest, directory: ArrayDir, settings: SlurmSettings, node: NodeRequest, mark: str
) -> str:
    """Return the script of a native array in which this attempt is one of the tasks."""
    assert request.spec.element is not None
    chunk = directory.chunk(UNNUMBERED)
    whole = replace(request, token=chunk_name(request.spec.element.array, UNNUMBERED), attempt_dir=chunk)
    options = batch_options(whole, settings, node, mark, as_array=True)
    command = (request.facts.python, *request.facts.controller, *_head_words(request))
    return render_array_script(options, command, chunk.tasks, "" if request.spec.batch.output else BATCH_LOG)


def _step(settings: SlurmSettings, node: NodeRequest, controller: tuple[str, ...]) -> tuple[str, ...]:
    """Return the argv of the head's only srun.

    It repeats CPUs and GRES: since 22.05 a step does not inherit the job's --cpus-per-task, and a step that names no
    GRES gets none or all, depending on the release.
    """
    count = str(node.gang.nodes)
    argv = (
        "srun", "--kill-on-bad-exit=0", "--wait=0", "--export=ALL", "--input=none", f"--nodes={count}",
        f"--ntasks={count}", "--ntasks-per-node=1", f"--cpus-per-task={node.load.cpus}",
        *((f"--gres={node.gres}",) if node.gres else ()), *settings.srun_args,
        *controller, "node", "--launch",
    )  # fmt: skip
    return (*(literal(word) for word in argv), "{launch}")


def _limits(limits: Limits, request: LaunchRequest, settings: SlurmSettings) -> Limits:
    """Return the limits that the controllers enforce. Slurm enforces the time limit."""
    lead_s, kill_wait_s, fence_s = effective_lead_s(request), settings.kill_wait_s, settings.fence_s
    return replace(limits, kill_wait_s=kill_wait_s, time_s=None, lead_s=lead_s, fence_s=fence_s)


def _succession(request: LaunchRequest, settings: SlurmSettings, node: NodeRequest) -> Succession:
    """Return how the head submits the next attempt without the daemon.

    sbatch then runs on a compute node, with as little of the job's environment as the daemon gives it on the login
    node.
    """
    lead_s = effective_lead_s(request)
    return replace(
        base_succession(request, node.allocated_gpus),
        submit=tuple(successor_argv(warned=lead_s is not None)),
        requeue=tuple(requeue_argv()) if continues_in_place(request.spec.batch, settings) else (),
        keep_env=tuple(sorted(FOR_JOBS)),
        timeout_s=settings.command_timeout_s,
        lead_s=lead_s,
        deadline_variables=("SLURM_JOB_END_TIME",),
        limit_s=request.spec.batch.limit_s,
        limit_now=tuple(limit_argv()),
    )


_MIXED = (
    "batch.elastic.in_place: the nodes of the job may have GPUs of several types, so ffdl halts it instead of "
    "shrinking it in place; set gpu_type"
)
"""If a job has released a node, slurmctld 26.05.5 crashes (in gres_step_list_delete) at the end of a step with GPUs of
several types."""


def _hints(request: LaunchRequest, node: NodeRequest) -> tuple[str, ...]:
    """Return a warning for each option that has no effect here."""
    batch = request.spec.batch
    found = []
    if may_shrink(batch) and not node.is_uniform:
        found.append(_MIXED)
    if batch.signal and batch.checkpoint.lead_s is not None:
        found.append("batch.checkpoint.lead_s: batch.signal is used instead, Slurm sends one signal before the end")
    if batch.preemptible is not None:
        found.append("batch.preemptible: in Slurm this follows from partition and QOS; it changes nothing here")
    if request.spec.resources.storage_bytes is not None:
        found.append("storage: Slurm reserves no space for a job; the shared file system's quota is what counts")
    return tuple(found)


_AMD_TYPE = re.compile(r"^(amd|mi\d{2,}|radeon|gfx|instinct)", re.IGNORECASE)
_OF_GPUS = frozenset({"gpu", "shard", "mps"})
_OPTIONS = {NVIDIA: (GpuLibraries.NVIDIA.value,), AMD: (GpuLibraries.AMD.value,)}


def plan_devices(node: NodeRequest, settings: SlurmSettings) -> Devices:
    """Return the devices for the launch file."""
    gpus = node.load.devices
    each: dict[str, int] = {}
    for name, number in node.generic.each.items():
        kind = name.partition(":")[0]
        each[kind] = each.get(kind, 0) + number
    files = settings.gpu_devices if gpus else {}
    auto = settings.gpu_flag is GpuFlag.AUTO
    return Devices(
        gpus=gpus,
        shared=bool(node.load.shares),
        each=each,
        learners=node.load.equipped or 1,
        gpu_files=files,
        gres_files={name: files for name, files in settings.gres_devices.items() if files and name in each},
        options={vendor: _OPTIONS.get(vendor, ()) for vendor in files} if auto else {},
    )


def unknown_files(node: NodeRequest, settings: SlurmSettings) -> tuple[str, ...]:
    """Return a warning for each generic resource without device files in the configuration."""
    kinds = {name.partition(":")[0] for name in node.generic.each} - _OF_GPUS - set(settings.gres_devices)
    return tuple(
        f"batch.gres: {kind} is allocated, but no device file of it gets into containers: the configuration names "
        f"none (gres_devices.{kind} of [backend.slurm]; [] if it has none)"
        for kind in sorted(kinds)
    )


def gpu_libraries(node: NodeRequest, settings: SlurmSettings) -> GpuLibraries:
    """Return Apptainer's option for GPUs if it is equal on all nodes; NONE if the node decides. If the site names no
    device files, nodes cannot decide, so the names of the GPU types show the vendor."""
    if not node.load.devices or settings.gpu_flag is GpuFlag.NONE:
        return GpuLibraries.NONE
    if settings.gpu_flag is not GpuFlag.AUTO:
        return GpuLibraries.AMD if settings.gpu_flag is GpuFlag.ROCM else GpuLibraries.NVIDIA
    if settings.gpu_devices:
        return GpuLibraries.NONE
    kinds = (node.generic.gpu_type,) if node.generic.gpu_type else node.kinds
    return GpuLibraries.AMD if kinds and all(map(_AMD_TYPE.match, kinds)) else GpuLibraries.NVIDIA
