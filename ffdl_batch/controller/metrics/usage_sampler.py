"""Samples of what the learners of a node use, appended to a file of the attempt that stays small."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from typing import Mapping, Optional, Tuple

from ffdl_batch.attempt.file_writer import open_own
from ffdl_batch.controller.metrics.cgroup_usage import Cgroup, find_own
from ffdl_batch.controller.metrics.gpu_usage import Gpus
from ffdl_batch.controller.metrics.process_usage import Trees
from ffdl_batch.domain.metrics.usage import GpuUse, UsageSample, encode_sample
from ffdl_batch.host.processes import all_processes, descendants
from ffdl_batch.host.worker_thread import Full, Hand

EVERY_S = 10.0
THINNING = 2000.0
"""After so many samples the pause grows with the time gone by: a month has six times as many, not a hundred times."""
MAX_BYTES = 16 * 1024**2
GPU_PATIENCE_S = 2.0


def pause_after(running_s: float) -> float:
    """Seconds until the next sample."""
    return max(EVERY_S, running_s / THINNING)


class Sampler:
    """Of one node. All is read in the thread that asks, but for the GPUs: a driver may hang."""

    def __init__(self, path: str, gpus: Gpus, *, shares_group: bool = True) -> None:
        """`shares_group`: the learners are in the control group of this process."""
        self._path, self._gpus, self._looked = path, gpus, False
        self._shares_group = shares_group
        self._trees = Trees()
        self._cgroup: Optional[Cgroup] = None
        self._hand = Hand("gpus", most_waiting=1)
        self._last = UsageSample(0.0, "")

    def take(self, roots: Mapping[int, int]) -> UsageSample:
        """One sample; `roots` are the main processes of the learners that live. Raises OSError."""
        table = all_processes()
        if not self._looked:
            self._looked = True
            if self._shares_group:
                self._cgroup = find_own(set(descendants(os.getpid(), table)))
            if self._gpus.is_there:
                self._hand.begin()
        node = self._cgroup.read() if self._cgroup is not None else None
        sample = UsageSample(time.time(), os.uname().nodename, node, self._trees.read(roots, table), self._read_gpus())
        sample = self._with_traffic(sample, roots)
        self._append(sample)
        return sample

    def _read_gpus(self) -> Tuple[GpuUse, ...]:
        if not self._gpus.is_there:
            return ()
        try:
            return self._hand.ask(self._gpus.read, (), GPU_PATIENCE_S)
        except Full:
            return ()

    def _with_traffic(self, sample: UsageSample, roots: Mapping[int, int]) -> UsageSample:
        """All learners of a node are in one network; the last that was seen of it where none lives any more."""
        for pid in roots.values():
            found = self._trees.traffic(pid)
            if found is not None:
                self._last = replace(sample, network=found[0], received_bytes=found[1], sent_bytes=found[2])
                return self._last
        last = self._last
        return replace(sample, network=last.network, received_bytes=last.received_bytes, sent_bytes=last.sent_bytes)

    def _append(self, sample: UsageSample) -> None:
        descriptor = open_own(self._path, os.O_WRONLY | os.O_APPEND)
        try:
            if os.fstat(descriptor).st_size < MAX_BYTES:
                os.write(descriptor, encode_sample(sample).encode("ascii"))
        finally:
            os.close(descriptor)
