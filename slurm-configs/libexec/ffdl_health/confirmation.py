"""Checks a finding from the kernel log against a second source before it may drain the node.

Users can put text into that log. They cannot put text into the sources that this module reads.
"""

from __future__ import annotations

import functools
import os
import re
from pathlib import Path
from typing import Callable, Mapping

from . import bounded, gpus, mounts, pci
from .findings import Finding

EDAC = Path("/sys/devices/system/edac/mc")
MEMORY = Path("/proc/meminfo")
TIMEOUT_S = 8.0
_NVIDIA = "0x10de"
_CORRUPTED = re.compile(r"^HardwareCorrupted: +[1-9]", re.MULTILINE)


def confirmed(one: Finding) -> Finding:
    """Return the finding unchanged if a second source confirms it, else a copy that does not drain the node."""
    if not one.badly or _is_so(one.kind, one.device):
        return one
    return one._replace(text=f"{one.text} [no second source confirms it, so it does not drain the node]", badly=False)


@functools.lru_cache(maxsize=None)
def _is_so(kind: str, device: str) -> bool:
    """Return whether the source confirms the fault. All lines of one check share the answer."""
    try:
        return _SOURCES[kind](device)
    except OSError:
        return False


def _gpu(device: str) -> bool:
    """Return whether the node has this GPU and nvidia-smi reports a fault of it."""
    here = pci.functions(pci.address(device))
    return any(_text(path / "vendor") == _NVIDIA for path in here) and gpus.is_faulty(pci.address(device))


def _memory(_device: str) -> bool:
    """Return whether the kernel counts uncorrected errors (Documentation/admin-guide/RAS) or isolates broken pages."""
    counts = [_text(path) for name in ("ue_count", "ue_noinfo_count") for path in EDAC.glob(f"mc*/{name}")]
    return any(count.isdecimal() and int(count) > 0 for count in counts) or bool(_CORRUPTED.search(_text(MEMORY)))


def _file_system(device: str) -> bool:
    """Return whether the device is mounted, and its file system is read-only or returns an I/O error.

    A mount point alone may be read-only on a healthy file system, such as a bind mount.
    """
    places = [one for one in mounts.local() if Path(os.path.realpath(one.source)).name == device]
    return any("ro" in one.options or _fails(one.place) for one in places)


def _fails(place: str) -> bool:
    answer = bounded.ask(["stat", "--", place], TIMEOUT_S)
    return answer.status not in (0, None) and answer.text.rstrip().endswith("Input/output error")


def _adapter(device: str) -> bool:
    """Return whether the node has this adapter and all its ports are down."""
    here = pci.functions(pci.address(device))
    patterns = ("net/*/operstate", "infiniband/*/ports/*/state")
    states = [_text(file) for path in here for pattern in patterns for file in path.glob(pattern)]
    return bool(here) and not any(state == "up" or state.endswith("ACTIVE") for state in states)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""


_SOURCES: Mapping[str, Callable[[str], bool]] = {
    "gpu": _gpu,
    "ecc": _gpu,
    "memory": _memory,
    "disk": _file_system,
    "network": _adapter,
}
