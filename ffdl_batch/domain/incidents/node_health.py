"""Findings of root's health program on a node: the kind of incident of each, and whether a lasting one explains an end
that came long after it began. Pure.

A node that has had a fault since yesterday is not the cause of every failure there. A lasting finding explains an end
only if the node is unfit for jobs with it, and the messages of the end are those of a process that met this fault: a
GPU is missing, an I/O error, a file system that is suddenly read-only. Messages that faulty programs print, too (an
illegal address on a GPU, no memory, no such file), are never enough.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable

from ffdl_batch.domain.incidents.incident import Evidence, Origin
from ffdl_batch.domain.incidents.kinds import KINDS
from ffdl_batch.host.fast_dataclass import dataclass

HEALTH_S = 60.0
"""A finding about a node is evidence for the end of an attempt that ended so soon before or after it."""
_KINDS = {
    "xid": "node.gpu",
    "sxid": "node.gpu",
    "ecc": "node.gpu",
    "nvlink": "node.gpu",
    "gpu": "node.gpu",
    "disk": "node.disk",
    "ext4": "node.disk",
    "xfs": "node.disk",
    "nfs": "node.disk",
    "io": "node.disk",
    "mount": "node.disk",
    "memory": "node.memory_error",
    "mce": "node.memory_error",
    "edac": "node.memory_error",
    "clock": "node.clock",
    "slurmd": "node.slurmd",
}
"""Kinds of findings → kinds of incidents. A finding may also have the full name of a kind."""
_NO_GPU = re.compile(
    r"no CUDA-capable device|No CUDA GPUs are available|CUDA_ERROR_NO_DEVICE|cudaErrorNoDevice"
    r"|invalid device ordinal|CUDA_ERROR_INVALID_DEVICE"
    r"|device\(s\) is/are busy or unavailable|CUDA_ERROR_DEVICE_UNAVAILABLE|cudaErrorDevicesUnavailable"
    r"|CUDA driver initialization failed|CUDA unknown error|CUDA error: unknown error|CUDA_ERROR_UNKNOWN"
    r"|CUDA_ERROR_SYSTEM_NOT_READY|cudaErrorSystemNotReady|system not yet initialized"
    r"|uncorrectable ECC error|CUDA_ERROR_ECC_UNCORRECTABLE|cudaErrorECCUncorrectable"
    r"|uncorrectable NVLink error|CUDA_ERROR_NVLINK_UNCORRECTABLE"
    r"|No HIP GPUs are available|hipErrorNoDevice|hipErrorInvalidDevice|hipErrorECCNotCorrectable"
    r"|GPU has fallen off the bus|GPU is lost|Unable to determine the device handle"
)
"""What CUDA, NVML and HIP report about a GPU that is missing or fails; not what they report about faulty programs."""
_NO_IO = re.compile(r"\[Errno (?:5|116)\]|Input/output error|Stale (?:NFS )?file handle")
"""EIO and ESTALE: programs do not cause them."""
_NO_IO_ON_DEVICE = re.compile(
    r"\[Errno (?:30|107|112)\]|Read-only file system|Transport endpoint is not connected|Host is down"
)
"""The root of an image is read-only, too, and sockets cause the others: they count with a path below the faulty
place."""


@dataclass(frozen=True, slots=True)
class HealthLine:
    """One finding of root's program about a node."""

    node: str
    at: float
    """When it began, in seconds since the epoch."""
    kind: str
    text: str
    device: str = ""
    """What it is about; "" = the node."""
    lasts: bool = False
    """Whether it still lasted when the attempt ended."""
    drains: bool = False
    """Whether the node is unfit for jobs with it."""

    @property
    def sentence(self) -> str:
        """The finding with its node, its device, and since when it lasts."""
        device = f" {self.device}" if self.device else ""
        return f"{self.node}{device}: {self.text}{self._since}"

    @property
    def evidence(self) -> Evidence:
        """The finding as a line of an incident."""
        return Evidence(f"health {self.node}", f"{self.text}{self._since}", self.at)

    @property
    def _since(self) -> str:
        return f" (lasts since {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(self.at))})" if self.lasts else ""


def nodes_kind(finding: str) -> str:
    """Return the kind of incident of a finding; "" if it is none."""
    if finding in KINDS and KINDS[finding].origin is Origin.NODE:
        return finding
    return _KINDS.get(finding, "")


def explains(line: HealthLine, words: Iterable[str], *, has_gpus: bool) -> bool:
    """Return whether a lasting finding explains an end with these messages. `has_gpus`: the attempt had GPUs."""
    if not (line.lasts and line.drains):
        return False
    kind = nodes_kind(line.kind)
    if kind == "node.gpu":
        return has_gpus and any(_NO_GPU.search(text) for text in words)
    return kind == "node.disk" and any(_NO_IO.search(text) or _is_below(line.device, text) for text in words)


def _is_below(place: str, text: str) -> bool:
    """Return whether a line reports an error of a path below that place. Every path is below `/`, so that proves
    nothing."""
    if not place.startswith("/") or place == "/" or _NO_IO_ON_DEVICE.search(text) is None:
        return False
    return re.search(rf"(?:^|[\s'\"=:(]){re.escape(place.rstrip('/'))}(?:[/\s'\":)]|$)", text) is not None
