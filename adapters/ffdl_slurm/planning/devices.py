"""What node controllers hold devices against, and which of the container's options bring them in. Pure."""

from __future__ import annotations

import re

from ffdl_batch.domain.launch.devices import AMD, NVIDIA, Devices
from ffdl_batch.runtimes.apptainer import GpuLibraries
from ffdl_slurm.planning.request_check import NodeRequest
from ffdl_slurm.settings import GpuFlag, SlurmSettings

_AMD_TYPE = re.compile(r"^(amd|mi\d{2,}|radeon|gfx|instinct)", re.IGNORECASE)
_OF_GPUS = frozenset({"gpu", "shard", "mps"})
_OPTIONS = {NVIDIA: (GpuLibraries.NVIDIA.value,), AMD: (GpuLibraries.AMD.value,)}


def plan_devices(node: NodeRequest, settings: SlurmSettings) -> Devices:
    """For the launch file."""
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
    """A warning for each generic resource of which nobody knows whether nodes have device files for it."""
    kinds = {name.partition(":")[0] for name in node.generic.each} - _OF_GPUS - set(settings.gres_devices)
    return tuple(
        f"batch.gres: {kind} is allocated, but no device file of it gets into containers: the configuration names "
        f"none (gres_devices.{kind} of [backend.slurm]; [] where it has none)"
        for kind in sorted(kinds)
    )


def gpu_libraries(node: NodeRequest, settings: SlurmSettings) -> GpuLibraries:
    """The option that is the same on every node; where the node decides there is none. A site that names no device
    files leaves its nodes nothing to decide by: then the names of the GPU types say whose they are."""
    if not node.load.devices or settings.gpu_flag is GpuFlag.NONE:
        return GpuLibraries.NONE
    if settings.gpu_flag is not GpuFlag.AUTO:
        return GpuLibraries.AMD if settings.gpu_flag is GpuFlag.ROCM else GpuLibraries.NVIDIA
    if settings.gpu_devices:
        return GpuLibraries.NONE
    kinds = (node.generic.gpu_type,) if node.generic.gpu_type else node.kinds
    return GpuLibraries.AMD if kinds and all(map(_AMD_TYPE.match, kinds)) else GpuLibraries.NVIDIA
