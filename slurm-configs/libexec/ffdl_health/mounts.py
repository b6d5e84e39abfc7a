"""Finds mounts that hang or are stale, and local file systems that became read-only or are full.

A process that accesses a file system that hangs may never return, so only child processes do this, in parallel.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Iterator, Sequence

import ffdl_mounts
from ffdl_mounts import Mount

from . import bounded
from .findings import Finding

TIMEOUT_S = 8.0
MOUNTS_MOST = 64
_NETWORKED = frozenset(
    {"nfs", "nfs4", "lustre", "gpfs", "beegfs", "ceph", "cifs", "smb3", "wekafs", "panfs", "afs", "9p"}
)
_LOCAL = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs"})
_STALE = ("Stale file handle", "Input/output error", "Transport endpoint is not connected", "Host is down")


def table() -> list[Mount]:
    """Return all mounts. Of several at one path, return only the uppermost. Raises OSError."""
    return list({one.place: one for one in ffdl_mounts.table()}.values())


def local() -> list[Mount]:
    """Return the mounts of local disks. Raises OSError."""
    return [one for one in table() if one.kind in _LOCAL]


def stale(mounts: Sequence[Mount], named: Sequence[str], memory: dict[str, Any]) -> Iterator[Finding]:
    """Yield findings for mounts that do not answer: those in `named`, or all network file systems if it is empty."""
    places = list(named) or [one.place for one in mounts if one.kind in _NETWORKED]
    sources = {one.place: f"{one.source} ({one.kind})" for one in mounts}
    for place, wrong, _ in _asked(places, "mount", memory):
        if wrong:
            text = f"{place}, {sources.get(place, 'not mounted')}: {wrong}"
            yield Finding(time.time(), "mount", place, text, badly=True, standing=f"mount:{place}")


def read_only(mounts: Sequence[Mount], memory: dict[str, Any]) -> Iterator[Finding]:
    """Yield findings for local file systems that were writable at an earlier check and are now read-only."""
    known = set(memory.get("writable", ()))
    for one in mounts:
        if one.kind not in _LOCAL:
            continue
        if one.writable:
            known.add(one.place)
        elif one.place in known:
            text = f"{one.source} on {one.place} ({one.kind}) has become read-only"
            yield Finding(time.time(), "disk", one.place, text, badly=True, standing=f"read-only:{one.place}")
    memory["writable"] = sorted(known & {one.place for one in mounts})


def full(places: Sequence[str], percent: int, memory: dict[str, Any]) -> Iterator[Finding]:
    """Yield findings for `places` whose file system uses `percent` or more of its blocks or files."""
    for place, _, shown in _asked(places, "disk", memory):
        numbers = shown.split()
        if len(numbers) != 4 or not all(one.isdecimal() for one in numbers):
            continue  # it does not exist, or it hangs, which `stale` reports
        blocks, blocks_free, files, files_free = map(int, numbers)
        filled = [
            f"{100 * (whole - free) // whole} % of its {name}"
            for name, whole, free in (("space", blocks, blocks_free), ("files", files, files_free))
            if whole and 100 * (whole - free) >= percent * whole
        ]
        if filled:
            text = f"{place} is full: {' and '.join(filled)}"
            yield Finding(time.time(), "full", place, text, standing=f"full:{place}")


def _asked(places: Sequence[str], name: str, memory: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Return each place with its fault ("" if none) and the output of `stat -f`."""
    stuck: dict[str, list[int]] = memory.setdefault("stuck", {})

    def ask(place: str) -> tuple[str, str, str]:
        argv = ["stat", "-f", "-c", "%b %a %c %d", "--", place]
        answer = bounded.ask_once(f"{name}:{place}", argv, TIMEOUT_S, stuck)
        if answer is None:
            return place, f"does not answer within {TIMEOUT_S:g} s", ""
        wrong = next((words for words in _STALE if words in answer.text), "") if answer.status else ""
        return place, wrong, answer.text if answer.status == 0 else ""

    chosen = list(dict.fromkeys(places))[:MOUNTS_MOST]
    if not chosen:
        return []
    with ThreadPoolExecutor(max_workers=len(chosen)) as pool:
        return list(pool.map(ask, chosen))
