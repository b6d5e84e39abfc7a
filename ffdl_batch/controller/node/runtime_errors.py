"""What a container runtime's complaint is about, where the user's command was never reached. Pure."""

from __future__ import annotations

import re
from typing import Sequence, Tuple

from ffdl_batch.controller.network.job_network import FAULT, HOST
from ffdl_batch.domain.launch.launch_file import EnvDelivery, LaunchFile
from ffdl_batch.domain.launch.network_level import OVERLAYS, is_unreachable
from ffdl_batch.domain.launch.pod_protocol import NO_BASH

IMAGE_COMPLAINTS = (
    "could not open image",
    "image format",
    "squashfs",
    "executable file not found",
    ".sif",
    "container registry",
)
REGISTRY_COMPLAINTS = ("registry", "docker://", "oras://", "library://", "https://")
_SILENT = re.compile(r"i/o timeout|connection (?:refused|reset)|handshake timeout|deadline exceeded|awaiting headers")
"""What Go, in which Apptainer is written, prints about a host that does not answer."""
NETWORK_COMPLAINTS = (
    "netns",
    "network namespace",
    "/net: permission denied",
    "/net: no such file",
    "cni plugin",
    "apptainer.conf",  # one that the setuid starter does not take: only it makes networks
)
IMAGE_CODE, RUNTIME_CODE = "S103", "S105"
_CURE = (
    "; what Apptainer needs to join a job's network is in apptainer.conf and its setuid starter: the program `check` "
    "of slurm-configs/libexec says on that node which is missing (docs/network.md)"
)


def read_complaint(launch: LaunchFile, lines: Sequence[str], host: str) -> Tuple[str, str]:
    """A sentence with what was said last, and the code of whoever has to do something about it."""
    said = " ".join(line.strip() for line in lines[-3:]) or "it said nothing"
    if launch.pod is not None:
        code = IMAGE_CODE if NO_BASH in said else RUNTIME_CODE
        return f"the learner's container in pod {host} did not reach its command: {said}", code
    if launch.learner.delivery is not EnvDelivery.FILE:
        return f"the learner's shell did not come up on {host}: {said}", RUNTIME_CODE
    if launch.network.level != HOST and any(word in said.lower() for word in NETWORK_COMPLAINTS):
        cure = _CURE if launch.network.level in OVERLAYS else ""
        return f"the container runtime refused network level {launch.network.level} on {host}: {said}{cure}", FAULT
    if any(word in said.lower() for word in REGISTRY_COMPLAINTS) and (is_unreachable(said) or _SILENT.search(said)):
        return f"the image cannot be fetched on {host}, because its registry cannot be reached: {said}", RUNTIME_CODE
    if any(word in said.lower() for word in IMAGE_COMPLAINTS):
        return f"the image cannot be used on {host}: {said}", IMAGE_CODE
    return f"the container runtime failed on {host}: {said}", RUNTIME_CODE
