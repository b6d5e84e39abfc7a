"""Measure what each learner uses, with control groups, /proc (proc(5)), network counters, NVML and rocm-smi."""

from __future__ import annotations

import ctypes
import os
from typing import Collection, Dict, Iterable, List, Mapping, Optional, Tuple

from ffdl_batch.controller.metrics.amd_gpus import AmdGpus, find_program
from ffdl_batch.domain.metrics.usage import GpuUse, Use
from ffdl_batch.host.cgroups import group_paths, read_field, read_number
from ffdl_batch.host.processes import Process, session_members

ROOT, PROC = "/sys/fs/cgroup", "/proc"
LEVELS_MAX, GROUPS_MAX = 3, 64


class Cgroup:
    """A control group, found by :func:`find_own`."""

    def __init__(self, version: int, places: Dict[str, str]) -> None:
        """`places` has the directories by controller: `cpu`, `memory`, `io`."""
        self.version, self.places = version, places

    def read(self) -> Use:
        """Return the current counters; None for those that this kernel lacks."""
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
    """Return the group of this process, or a level above it, in which only `own_pids` run; None if there is none."""
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
    """Return the nearest level that has the file and in which only `own` run; "" if there is none."""
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
    """Return the sums over all devices. Version 2 has `8:0 rbytes=1 wbytes=2 ...`, version 1 `8:0 Read 1`."""
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


_TICKS, _PAGE = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")


class ProcessUsage:
    """Sums up what the processes of learners use. Counters never decrease when a process ends."""

    def __init__(self, proc: str = PROC) -> None:
        self._proc = proc
        self._seen: Dict[int, Use] = {}

    def read(self, roots: Mapping[int, int], table: Mapping[int, Process]) -> Dict[str, Use]:
        """Return the use of each learner by its id. `roots` are their main processes."""
        found = {}
        for learner, root in roots.items():
            use = _later(self._seen.get(learner), self._sum(session_members(root, table)))
            self._seen[learner] = use
            found[str(learner)] = use
        return found

    def _sum(self, pids: Iterable[int]) -> Use:
        cpu_s, memory, read, written = 0.0, 0, 0, 0
        for pid in pids:
            cpu_s += self._cpu_s(pid)
            memory += self._resident(pid)
            storage = self._storage(pid)
            read, written = read + storage[0], written + storage[1]
        return Use(cpu_s, memory, None, read, written)

    def _cpu_s(self, pid: int) -> float:
        """Return user and system time, with that of ended children."""
        text = self._text(pid, "stat")
        fields = text[text.rfind(")") + 2 :].split()
        return sum(int(value) for value in fields[11:15]) / _TICKS if len(fields) > 15 else 0.0

    def _resident(self, pid: int) -> int:
        fields = self._text(pid, "statm").split()
        return int(fields[1]) * _PAGE if len(fields) > 1 else 0

    def _storage(self, pid: int) -> Tuple[int, int]:
        lines = (line.partition(": ") for line in self._text(pid, "io").splitlines())
        values = {name: int(value) for name, _, value in lines if value.isdecimal()}
        return values.get("read_bytes", 0), values.get("write_bytes", 0)

    def _text(self, pid: int, name: str) -> str:
        try:
            with open(os.path.join(self._proc, str(pid), name), encoding="ascii", errors="replace") as file:
                return file.read()
        except OSError:  # ended, or another user's
            return ""

    def traffic(self, pid: int) -> Optional[Tuple[str, int, int]]:
        """Return `job` or `node`, the owner of the process's network, and the bytes received and sent there.

        The loopback device is left out. Return None if it cannot be read.
        """
        own, other = self._namespace("self"), self._namespace(str(pid))
        text = self._text(pid, "net/dev")
        if not other or not text:
            return None
        received = sent = 0
        for line in text.splitlines()[2:]:
            name, _, rest = line.partition(":")
            fields = rest.split()
            if name.strip() != "lo" and len(fields) > 8:
                received, sent = received + int(fields[0]), sent + int(fields[8])
        return ("node" if own == other else "job"), received, sent

    def _namespace(self, pid: str) -> str:
        try:
            return os.readlink(os.path.join(self._proc, pid, "ns", "net"))
        except OSError:
            return ""


def _later(before: Optional[Use], now: Use) -> Use:
    if before is None:
        return now
    return Use(
        max(before.cpu_s or 0.0, now.cpu_s or 0.0),
        now.memory_bytes,
        None,
        max(before.read_bytes or 0, now.read_bytes or 0),
        max(before.written_bytes or 0, now.written_bytes or 0),
    )


LIBRARY = "libnvidia-ml.so.1"
_SUCCESS = 0


class _Utilization(ctypes.Structure):
    """nvmlUtilization_t: per cent of the last sample period."""

    _fields_ = [("gpu", ctypes.c_uint), ("memory", ctypes.c_uint)]


class _Memory(ctypes.Structure):
    """nvmlMemory_t: bytes."""

    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


class Gpus:
    """Reads the GPUs of a node's learners."""

    def __init__(self, named: Mapping[int, str], library: str = LIBRARY) -> None:
        """`named` has the GPUs of each learner as the scheduler names them: this process's numbers or NVML's UUIDs."""
        self._named = [(name, learner) for learner, names in named.items() for name in names.split(",") if name]
        self._library = library
        self._nvml: Optional[ctypes.CDLL] = None
        self._amd: Optional[AmdGpus] = None
        self._handles: List[Tuple[str, int, ctypes.c_void_p]] = []
        self.is_available = bool(self._named)

    def read(self) -> Tuple[GpuUse, ...]:
        """Return the use of each GPU; () if neither NVML nor rocm-smi works. A driver may take long to answer."""
        if self.is_available and self._nvml is None and self._amd is None:
            self._open()
        if self._amd is not None:
            return self._amd.read()
        return tuple(self._use(*device) for device in self._handles) if self.is_available else ()

    def _open(self) -> None:
        try:
            nvml = ctypes.CDLL(self._library)
            is_up = nvml.nvmlInit_v2() == _SUCCESS
        except (OSError, AttributeError):  # no driver, or one from before 2013
            is_up = False
        if not is_up:
            program = find_program()
            self._amd = AmdGpus(self._named, program) if program else None
            self.is_available = bool(program)
            return
        self._nvml = nvml
        for name, learner in self._named:
            handle = ctypes.c_void_p()
            if name.isdecimal():
                status = nvml.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(int(name)), ctypes.byref(handle))
            else:
                status = nvml.nvmlDeviceGetHandleByUUID(name.encode(), ctypes.byref(handle))
            if status == _SUCCESS:
                self._handles.append((name, learner, handle))
        self.is_available = bool(self._handles)

    def _use(self, name: str, learner: int, handle: ctypes.c_void_p) -> GpuUse:
        assert self._nvml is not None
        busy, memory = _Utilization(), _Memory()
        has_busy = self._nvml.nvmlDeviceGetUtilizationRates(handle, ctypes.byref(busy)) == _SUCCESS
        has_memory = self._nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)) == _SUCCESS
        return GpuUse(
            name,
            learner,
            busy.gpu / 100.0 if has_busy else None,
            int(memory.used) if has_memory else None,
            int(memory.total) if has_memory else None,
        )
