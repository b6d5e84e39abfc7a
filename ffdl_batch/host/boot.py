"""Names the current boot of this machine, so that records of an earlier one can be told apart."""

from __future__ import annotations

_PATH = "/proc/sys/kernel/random/boot_id"


def boot_id() -> str:
    """Return the id that Linux draws at each boot (proc(5)); "" on another system."""
    try:
        with open(_PATH, encoding="ascii") as file:
            return file.read().strip()
    except FileNotFoundError:
        return ""
