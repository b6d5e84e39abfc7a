"""What the devices of a node's learners are held against before they start. Runs on Python 3.9."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Mapping, Tuple

NVIDIA, AMD, INTEL = "nvidia", "amd", "intel"
VENDORS = (NVIDIA, AMD, INTEL)
"""In this order a node is asked whose GPUs it has."""
DEVICE_OPTIONS = "{device_options}"
"""A word of a learner's argv that stands for as many options as its devices need on its node, none among them."""


@dataclass(frozen=True)
class Devices:
    """What was asked for, and where a node has it.

    `gpus` are those of each node of the allocation, 0 = none; `shared`: it is one that others may have a share of, and
    all learners of the node are told the same. `each` has how many of another generic resource each learner takes, by
    its name, and `learners` how many learners the fullest node has: all nodes are asked for as much as that one.

    `gpu_files` are patterns of device files by vendor; a node has a vendor's GPUs where each pattern has a file, and
    what ends in a digit is a GPU. `gres_files` are patterns by the name of the resource. What has no pattern is not
    looked at. `options` are the container's options by vendor.
    """

    gpus: int = 0
    shared: bool = False
    each: Mapping[str, int] = field(default_factory=dict)
    learners: int = 1
    gpu_files: Mapping[str, Tuple[str, ...]] = field(default_factory=dict)
    gres_files: Mapping[str, Tuple[str, ...]] = field(default_factory=dict)
    options: Mapping[str, Tuple[str, ...]] = field(default_factory=dict)
