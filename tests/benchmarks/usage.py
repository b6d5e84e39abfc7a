"""What a process used so far, by its files in /proc (proc(5))."""

from __future__ import annotations

import os
from pathlib import Path


def cpu_seconds(pid: int) -> tuple[float, float]:
    """Processor time of a process, and of its children that have ended (fields 14 to 17 of stat)."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    ticks = os.sysconf("SC_CLK_TCK")
    return (int(fields[11]) + int(fields[12])) / ticks, (int(fields[13]) + int(fields[14])) / ticks


def resident_mib(pid: int) -> float:
    """Resident memory now."""
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="utf-8").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def io_calls(pid: int) -> int:
    """How often it read and wrote, whatever it was and however much (syscr and syscw of io)."""
    lines = Path(f"/proc/{pid}/io").read_text(encoding="utf-8").splitlines()
    numbers = {name: int(value) for name, _, value in (line.partition(": ") for line in lines)}
    return numbers["syscr"] + numbers["syscw"]


def private_mib(pid: int) -> float:
    """Return the memory that no other process shares: what one more process of this kind costs the machine."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="utf-8").splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith(("Private_Clean:", "Private_Dirty:"))) / 1024
