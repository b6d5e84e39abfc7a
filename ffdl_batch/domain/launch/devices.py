"""The devices of a node's learners, which are checked before the learners start. Runs on Python 3.9."""

from __future__ import annotations

from dataclasses import field
from typing import Mapping, Tuple

from ffdl_batch.host.fast_dataclass import dataclass

NVIDIA, AMD, INTEL = "nvidia", "amd", "intel"
VENDORS = (NVIDIA, AMD, INTEL)
"""The order in which a node's files are searched for GPUs."""
DEVICE_OPTIONS = "{device_options}"
"""A word of a learner's argv that is replaced by the options for its devices on its node, or by nothing."""


@dataclass(frozen=True)
class Devices:
    """What was requested, and where a node has it."""

    gpus: int = 0
    """GPUs of each node of the allocation; 0 = none."""
    shared: bool = False
    """Whether other jobs may have a share of the GPU; all learners of the node then get the same one."""
    each: Mapping[str, int] = field(default_factory=dict)
    """Other generic resource → how many each learner takes."""
    learners: int = 1
    """How many learners the fullest node has; every node gets resources for that many."""
    gpu_files: Mapping[str, Tuple[str, ...]] = field(default_factory=dict)
    """Vendor → patterns of device files. A node has GPUs of a vendor if each pattern matches a file; a file whose name
    ends in a digit is a GPU."""
    gres_files: Mapping[str, Tuple[str, ...]] = field(default_factory=dict)
    """Resource → patterns of device files. A resource without patterns is not checked."""
    options: Mapping[str, Tuple[str, ...]] = field(default_factory=dict)
    """Vendor → options of the container."""
