"""What root's program on a node found: the kind of incident that it is, and when something that lasts there explains an
end that came long after it began. Pure.

That a node has been sick since yesterday does not make it guilty of all that fails there. A finding that lasts explains
an end only where the node is not fit with it, and the words of the end are those of one who met just that: no GPU where
one was given, an error of input or output, a file system that is suddenly read-only. What programs say that do wrong
themselves (an illegal address on a GPU, no memory, no such file) is never enough.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from dataclasses import dataclass

from ffdl_batch.domain.incidents.incident import Evidence, Origin
from ffdl_batch.domain.incidents.kinds import KINDS

HEALTH_S = 60.0
"""A finding about a node speaks for the end of an attempt that ended so soon before or after it."""
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
"""Kinds of findings of a node's health to those of incidents; a finding may also have a kind's whole name."""
_NO_GPU = re.compile(
    r"no CUDA-capable device|No CUDA GPUs are available|CUDA_ERROR_NO_DEVICE|cudaErrorNoDevice"
    r"|invalid device ordinal|CUDA_ERROR_INVALID_DEVICE"
    r"|device\(s\) is/are busy or unavailable|CUDA_ERROR_DEVICE_UNAVAILABLE|cudaErrorDevicesUnavailable"
    r"|CUDA driver initialization failed|CUDA unknown error|CUDA error: unknown error|CUDA_ERROR_UNKNOWN"
    r"|CUDA_ERROR_SYSTEM_NOT_READY|cudaErrorSystemNotReady|system not yet initialized"
    r"|uncorrectable ECC error|CUDA_ERROR_ECC_UNCORRECTABLE|cudaErrorECCUncorrectable"
    r"|uncorrectable NVLink error|CUDA_ERROR_NVLINK_UNCORRECTABLE"
    r"|GPU has fallen off the bus|GPU is lost|Unable to determine the device handle"
)
"""What CUDA and NVML say of a GPU that is gone or refuses. Not what they say of programs that do wrong."""
_NO_IO = re.compile(r"\[Errno (?:5|116)\]|Input/output error|Stale (?:NFS )?file handle")
"""EIO and ESTALE: no program brings them about by itself."""
_NO_IO_ON_DEVICE = re.compile(
    r"\[Errno (?:30|107|112)\]|Read-only file system|Transport endpoint is not connected|Host is down"
)
"""An image's root is read-only, too, and sockets say the others: they count with a path below the sick place."""


@dataclass(frozen=True, slots=True)
class HealthLine:
    """One finding about a node, by root's program there. `device` is what it is about ("" = the node).

    `lasts`: it began at `at`, and lasted when the attempt ended. `drains`: with it the node is not fit for jobs."""

    node: str
    at: float
    kind: str
    text: str
    device: str = ""
    lasts: bool = False
    drains: bool = False

    @property
    def sentence(self) -> str:
        """The finding with its node, its device, and since when it lasts."""
        device = f" {self.device}" if self.device else ""
        return f"{self.node}{device}: {self.text}{self._since}"

    @property
    def evidence(self) -> Evidence:
        """As a line of an incident."""
        return Evidence(f"health {self.node}", f"{self.text}{self._since}", self.at)

    @property
    def _since(self) -> str:
        return f" (lasts since {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(self.at))})" if self.lasts else ""


def nodes_kind(finding: str) -> str:
    """The kind of incident that a finding of a node's health is, "" where it is none."""
    if finding in KINDS and KINDS[finding].origin is Origin.NODE:
        return finding
    return _KINDS.get(finding, "")


def explains(line: HealthLine, words: Iterable[str], *, has_gpus: bool) -> bool:
    """Whether a finding that lasts is why something ended with these words. `has_gpus`: it was to have some."""
    if not (line.lasts and line.drains):
        return False
    kind = nodes_kind(line.kind)
    if kind == "node.gpu":
        return has_gpus and any(_NO_GPU.search(text) for text in words)
    return kind == "node.disk" and any(_NO_IO.search(text) or _is_below(line.device, text) for text in words)


def _is_below(place: str, text: str) -> bool:
    """Whether a line complains of a path below that place. Below `/` is everything, so nothing is told by that."""
    if not place.startswith("/") or place == "/" or _NO_IO_ON_DEVICE.search(text) is None:
        return False
    return re.search(rf"(?:^|[\s'\"=:(]){re.escape(place.rstrip('/'))}(?:[/\s'\":)]|$)", text) is not None
