"""Finds PCI devices of this node in sysfs."""

from __future__ import annotations

import re
from pathlib import Path

DEVICES = Path("/sys/bus/pci/devices")
_ADDRESS = re.compile(r"(?:[0-9a-f]{0,4}([0-9a-f]{4}):)?([0-9a-f]{2}:[0-9a-f]{2})(?:\.[0-7])?")


def address(text: str) -> str:
    """Return domain, bus and device of a PCI address; "" if the text is not one.

    Drivers may leave out the function, and nvidia-smi writes eight digits for the domain.
    """
    found = _ADDRESS.fullmatch(text.lower())
    return f"{found.group(1) or '0000'}:{found.group(2)}" if found else ""


def functions(device: str) -> list[Path]:
    """Return the directories of a device's functions. Raises OSError."""
    return [path for path in DEVICES.iterdir() if address(path.name) == device] if device else []
