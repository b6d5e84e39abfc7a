"""Run collectors, sample resource usage and detect hangs, in one thread of the node controller.

Only :meth:`Monitor.finish` waits for the thread, and for a bounded time: a file system that hangs costs metrics alone.
"""

from __future__ import annotations

import os
import threading
import time
from dataclasses import replace
from functools import partial
from typing import Callable, List, Mapping, Optional, Set, Tuple

from ffdl_batch.attempt.event_journal import Journal
from ffdl_batch.attempt.file_writer import open_own
from ffdl_batch.attempt.layout import AttemptDir
from ffdl_batch.controller.metrics.collector_process import Collector, all_over, make_spec
from ffdl_batch.controller.metrics.hang_detection import HangDetection
from ffdl_batch.controller.metrics.idle_gpus import IdleGpus
from ffdl_batch.controller.metrics.resource_usage import Cgroup, Gpus, ProcessUsage, find_own
from ffdl_batch.domain.launch.launch_file import LaunchFile
from ffdl_batch.domain.metrics.usage import GpuUse, UsageSample, encode_sample
from ffdl_batch.domain.outcome.controller_events import EventKind
from ffdl_batch.host.nonblocking_stderr import ErrorReporter
from ffdl_batch.host.processes import all_processes, descendants
from ffdl_batch.host.worker_thread import Full, WorkerThread

EVERY_S = 10.0
THINNING = 2000.0
"""The pause is at least the running time divided by this, so a month has six times as many samples, not a hundred."""
MAX_BYTES = 16 * 1024**2
GPU_PATIENCE_S = 5.0
"""Seconds that a sample waits for the use of its GPUs. rocm-smi may take several."""


def pause_after(running_s: float) -> float:
    """Return the seconds until the next sample."""
    return max(EVERY_S, running_s / THINNING)


class Sampler:
    """Samples the use of one node. GPUs are read in a thread of their own, because a driver may hang."""

    def __init__(self, path: str, gpus: Gpus, *, shares_group: bool = True) -> None:
        """`shares_group` means that the learners are in the control group of this process."""
        self._path, self._gpus, self._looked = path, gpus, False
        self._shares_group = shares_group
        self._trees = ProcessUsage()
        self._cgroup: Optional[Cgroup] = None
        self._worker = WorkerThread("gpus", most_waiting=1)
        self._last = UsageSample(0.0, "")

    def take(self, roots: Mapping[int, int]) -> UsageSample:
        """Take and store a sample. `roots` are the main processes of the living learners. Raises OSError."""
        table = all_processes()
        if not self._looked:
            self._looked = True
            if self._shares_group:
                self._cgroup = find_own(set(descendants(os.getpid(), table)))
            if self._gpus.is_available:
                self._worker.begin()
        node = self._cgroup.read() if self._cgroup is not None else None
        sample = UsageSample(time.time(), os.uname().nodename, node, self._trees.read(roots, table), self._read_gpus())
        sample = self._with_traffic(sample, roots)
        self._append(sample)
        return sample

    def _read_gpus(self) -> Tuple[GpuUse, ...]:
        if not self._gpus.is_available:
            return ()
        try:
            return self._worker.ask(self._gpus.read, (), GPU_PATIENCE_S)
        except Full:
            return ()

    def _with_traffic(self, sample: UsageSample, roots: Mapping[int, int]) -> UsageSample:
        """Add the traffic of the network, which all learners of a node share; the last known one if none is alive."""
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


TICK_S, HURRY_TICK_S = 1.0, 0.1
END_S = 10.0
"""Seconds that collectors may take to read the rest after the learners have ended."""
LEAST_END_S = 3.0
"""Minimum seconds to wait for them. Less would be useless."""

Roots = Callable[[], Mapping[int, int]]
"""The main processes of the learners that live now, by their ids."""


class Monitor:
    """Monitors the learners of one run of a node controller."""

    def __init__(
        self,
        launch: LaunchFile,
        node_rank: int,
        learner_ids: List[int],
        journal: Journal,
        look: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`look` is called repeatedly. `clock` measures silence; it stands still while the job is suspended."""
        self._attempt, self._journal = AttemptDir(launch.attempt_dir), journal
        specs = [spec for number in learner_ids for spec in (make_spec(launch, number),) if spec is not None]
        self._collectors = [Collector(launch, spec, self._report) for spec in specs]
        self._look, self._clock = look, clock
        self._node_rank, self._in_pod = node_rank, launch.pod is not None
        self._health = HangDetection(launch, learner_ids, journal)
        self.idle_gpus = IdleGpus(launch.limits.idle, journal)
        self._roots: Roots = dict
        self._ended: Set[int] = set()
        self._finishing = self._is_abandoned = False
        self._woken = threading.Event()
        self._thread = threading.Thread(target=self._run, name="meter", daemon=True)
        self._errors = ErrorReporter("metrics may be incomplete")

    def begin(self, roots: Roots, gpus: Mapping[int, str]) -> None:
        """Start the thread. Call this after the learners were started, which are forked."""
        self._roots = roots
        self._sampler = Sampler(self._attempt.usage(self._node_rank), Gpus(gpus), shares_group=not self._in_pod)
        self._thread.start()

    @property
    def pids(self) -> Set[int]:
        """Return the process ids of the collectors."""
        return {collector.pid for collector in self._collectors} - {0}

    def learner_ended(self, learner_id: int) -> None:
        """Let the learner's collector read the rest and end, because the learner does not start again."""
        self._ended.add(learner_id)
        self._woken.set()

    def finish_soon(self) -> None:
        """Let all collectors read the rest and end."""
        self._finishing = True
        self._woken.set()

    def finish(self, patience_s: float = END_S) -> None:
        """Wait up to `patience_s` seconds, at least LEAST_END_S, until everything is collected, and end the collectors.

        With 0, do not wait, because another run may use the files.
        """
        waits_s = max(patience_s, LEAST_END_S) if patience_s else 0.0
        if self._thread.ident is not None:
            self.finish_soon()
            self._thread.join(waits_s)
        late = [collector for collector in self._collectors if not collector.is_over]
        self._is_abandoned = True
        for collector in late:
            collector.kill()
            if self._thread.ident is not None and waits_s:
                message = f"metrics may be incomplete: not all was read {waits_s:g} s after the learner had ended"
                self._report(collector.spec.learner_id, message)

    def _report(self, learner_id: int, message: str) -> None:
        self._journal.append(EventKind.METRICS, learner_id=learner_id, message=message)

    # ------------------------------------------------------------------------------------------------- in the thread

    def _run(self) -> None:
        begun = now = time.monotonic()
        next_sample = 0.0
        self._try(self._prepare)
        while not self._is_abandoned:
            finishing, now = self._finishing, time.monotonic()
            for collector in self._collectors:
                if finishing or collector.spec.learner_id in self._ended:
                    self._try(collector.stop)
                self._try(partial(collector.look, now))
            if now >= next_sample:
                next_sample = now + pause_after(now - begun)
                self._try(self._sample)
                self._try(self._look)
            if finishing and all_over(self._collectors):
                break
            self._woken.wait(HURRY_TICK_S if finishing else TICK_S)
            self._woken.clear()
        if not self._is_abandoned:
            self._try(self._sample)

    def _sample(self) -> None:
        roots = self._roots()
        sample = self._sampler.take(roots)
        if roots:
            self.idle_gpus.look(self._clock(), sample)
        self._health.look(self._clock(), roots, sample)

    def _prepare(self) -> None:
        os.makedirs(self._attempt.metrics, mode=0o700, exist_ok=True)
        for collector in self._collectors:
            collector.prepare()

    def _try(self, work: Callable[[], None]) -> None:
        try:
            work()
        except OSError as error:
            self._errors.report(error)
