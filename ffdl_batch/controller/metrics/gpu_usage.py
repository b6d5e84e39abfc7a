"""How far NVIDIA's GPUs are used, by NVML (libnvidia-ml.so.1, which comes with the driver)."""

from __future__ import annotations

import ctypes
from typing import List, Mapping, Optional, Tuple

from ffdl_batch.domain.metrics.usage import GpuUse

LIBRARY = "libnvidia-ml.so.1"
_SUCCESS = 0


class _Utilization(ctypes.Structure):
    """nvmlUtilization_t: per cent of the last sample period."""

    _fields_ = [("gpu", ctypes.c_uint), ("memory", ctypes.c_uint)]


class _Memory(ctypes.Structure):
    """nvmlMemory_t: bytes."""

    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


class Gpus:
    """The devices of a node's learners. `named` is the list of each learner as the scheduler names them: numbers as
    this process sees them, or NVML's UUIDs."""

    def __init__(self, named: Mapping[int, str], library: str = LIBRARY) -> None:
        self._named = [(name, learner) for learner, names in named.items() for name in names.split(",") if name]
        self._library = library
        self._nvml: Optional[ctypes.CDLL] = None
        self._handles: List[Tuple[str, int, ctypes.c_void_p]] = []
        self.is_there = bool(self._named)

    def read(self) -> Tuple[GpuUse, ...]:
        """Of each device; nothing where there is no such library. A driver may take long to answer."""
        if self.is_there and self._nvml is None:
            self._open()
        return tuple(self._use(*device) for device in self._handles) if self.is_there else ()

    def _open(self) -> None:
        try:
            nvml = ctypes.CDLL(self._library)
            is_up = nvml.nvmlInit_v2() == _SUCCESS
        except (OSError, AttributeError):  # no such driver here, or one that is older than 2013
            is_up = False
        if not is_up:
            self.is_there = False
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
        self.is_there = bool(self._handles)

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
