"""Asks a second source whether what the kernel's log says is so, before it may drain the node.

Users can put text into that log. None of the sources here has any text of theirs.
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
    """Return a finding of the log as it is, or as one that does not drain the node if nothing confirms it."""
    if not one.badly or _is_so(one.kind, one.device):
        return one
    return one._replace(text=f"{one.text} [no second source confirms it: it does not drain the node]", badly=False)


@functools.lru_cache(maxsize=None)
def _is_so(kind: str, device: str) -> bool:
    """One answer for all lines of a look."""
    try:
        return _SOURCES[kind](device)
    except OSError:
        return False


def _gpu(device: str) -> bool:
    """The node has this GPU, and nvidia-smi does not find it well."""
    here = pci.functions(pci.address(device))
    return any(_text(path / "vendor") == _NVIDIA for path in here) and gpus.is_faulty(pci.address(device))


def _memory(_device: str) -> bool:
    """The kernel counts uncorrected errors (Documentation/admin-guide/RAS), or keeps away from broken pages."""
    counts = [_text(path) for name in ("ue_count", "ue_noinfo_count") for path in EDAC.glob(f"mc*/{name}")]
    return any(count.isdecimal() and int(count) > 0 for count in counts) or bool(_CORRUPTED.search(_text(MEMORY)))


def _file_system(device: str) -> bool:
    """It is mounted, and is read-only or answers with an error."""
    places = [one for one in mounts.local() if Path(os.path.realpath(one.source)).name == device]
    return any(not one.writable or _fails(one.place) for one in places)


def _fails(place: str) -> bool:
    answer = bounded.ask(["stat", "--", place], TIMEOUT_S)
    return answer.status not in (0, None) and answer.text.rstrip().endswith("Input/output error")


def _adapter(device: str) -> bool:
    """The node has this adapter, and none of its ports is up."""
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
