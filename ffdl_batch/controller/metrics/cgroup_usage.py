"""What the control group of this controller and its learners uses (cgroups(7)), versions 1 and 2.

Only of a group in which nothing else runs: a plain host has all of a user's session, or of a container, in one.
"""

from __future__ import annotations

import os
from typing import Collection, Dict, List, Optional, Tuple

from ffdl_batch.domain.metrics.usage import Use
from ffdl_batch.host.cgroups import group_paths, read_field, read_number

ROOT, PROC = "/sys/fs/cgroup", "/proc"
LEVELS_MAX, GROUPS_MAX = 3, 64


class Cgroup:
    """Where to read; made once, by :func:`find_own`. Directories by what they tell: `cpu`, `memory`, `io`."""

    def __init__(self, version: int, places: Dict[str, str]) -> None:
        self.version, self.places = version, places

    def read(self) -> Use:
        """The counters now; None for what this kernel does not tell."""
        read_bytes, written_bytes = self._storage()
        if self.version == 2:
            micros = read_field(self._path("cpu", "cpu.stat"), "usage_usec")
            return Use(
                None if micros is None else micros / 1e6,
                read_number(self._path("memory", "memory.current")),
                read_number(self._path("memory", "memory.peak")),
                read_bytes,
                written_bytes,
            )
        nanos = read_number(self._path("cpu", "cpuacct.usage"))
        return Use(
            None if nanos is None else nanos / 1e9,
            read_number(self._path("memory", "memory.usage_in_bytes")),
            read_number(self._path("memory", "memory.max_usage_in_bytes")),
            read_bytes,
            written_bytes,
        )

    def _path(self, kind: str, name: str) -> str:
        return os.path.join(self.places.get(kind, ""), name) if kind in self.places else ""

    def _storage(self) -> Tuple[Optional[int], Optional[int]]:
        if self.version == 2:
            return _sums(self._path("io", "io.stat"), ("rbytes=", "wbytes="), "")
        return _sums(self._path("io", "blkio.throttle.io_service_bytes"), ("Read", "Write"), " ")


def find_own(own_pids: Collection[int], proc: str = PROC, root: str = ROOT) -> Optional[Cgroup]:
    """The group of this process, with the levels above it, as far as nothing but `own_pids` runs in them; None where
    none tells of these alone."""
    v1, v2 = group_paths(proc)
    if v2 is not None:
        files = {"cpu": "cpu.stat", "memory": "memory.current", "io": "io.stat"}
        for base in (root, os.path.join(root, "unified")):
            places = {kind: _place(base, v2, name, own_pids) for kind, name in files.items()}
            found = {kind: place for kind, place in places.items() if place}
            if found.get("cpu") and (found.get("memory") or not v1):
                return Cgroup(2, found)
    files = {"cpu": "cpuacct.usage", "memory": "memory.usage_in_bytes", "io": "blkio.throttle.io_service_bytes"}
    hierarchies = {"cpu": "cpuacct", "memory": "memory", "io": "blkio"}
    found = {}
    for kind, controller in hierarchies.items():
        base = next((os.path.join(root, names) for names in v1 if controller in names.split(",")), "")
        base = base if os.path.isdir(base) else os.path.join(root, controller)
        path = next((path for names, path in v1.items() if controller in names.split(",")), None)
        place = _place(base, path, files[kind], own_pids) if path is not None else ""
        if place:
            found[kind] = place
    return Cgroup(1, found) if found else None


def _place(base: str, path: str, name: str, own: Collection[int]) -> str:
    """The nearest level with that file in which only `own` runs; "" where there is none."""
    here = path
    for _ in range(LEVELS_MAX):
        directory = os.path.join(base, here.lstrip("/"))
        if here in ("", "/") or not _only(directory, own):
            return ""
        if os.path.exists(os.path.join(directory, name)):
            return directory
        here = os.path.dirname(here)
    return ""


def _only(directory: str, own: Collection[int]) -> bool:
    waiting, seen = [directory], 0
    while waiting:
        place = waiting.pop()
        seen += 1
        pids = _pids(place)
        if seen > GROUPS_MAX or pids is None or any(pid not in own for pid in pids):
            return False
        with os.scandir(place) as entries:
            waiting.extend(entry.path for entry in entries if entry.is_dir(follow_symlinks=False))
    return True


def _pids(directory: str) -> Optional[List[int]]:
    try:
        with open(os.path.join(directory, "cgroup.procs"), encoding="ascii") as file:
            return [int(line) for line in file]
    except (OSError, ValueError):
        return None


def _sums(path: str, marks: Tuple[str, str], between: str) -> Tuple[Optional[int], Optional[int]]:
    """Over all devices: version 2 has `8:0 rbytes=1 wbytes=2 ...`, version 1 `8:0 Read 1`."""
    try:
        with open(path, encoding="ascii") as file:
            text = file.read()
    except OSError:
        return None, None
    found = [0, 0]
    words = text.split()
    for index, word in enumerate(words):
        for which, mark in enumerate(marks):
            value = word[len(mark) :] if not between else (words[index + 1] if index + 1 < len(words) else "")
            if (word == mark if between else word.startswith(mark)) and value.isdecimal():
                found[which] += int(value)
    return found[0], found[1]
